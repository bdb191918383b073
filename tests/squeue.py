"""What squeue prints of a job, for tests that put a command of that name on PATH."""

from __future__ import annotations

from launcher.slurm.jobs import SQUEUE_FORMAT


def squeue_line(job_id: str, state: str, name: str = "", **columns: str) -> str:
    """One line in the launcher's format; ``columns`` are more of them by squeue's letters, such as ``r`` for the reason."""
    values = {"i": job_id, "A": job_id, "T": state, "j": name, **columns}
    return "|".join(values.get(column[1:], "") for column in SQUEUE_FORMAT.split("|"))
