"""Which runs there are, and SLURM's view of those that need it: at most one batched query."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher.errors import RunNotFoundError
from launcher.report.history import History
from launcher.report.summary import RunSummary, SlurmView, summarise_history
from launcher.run.paths import RunPaths

__all__ = ["all_runs", "ask_slurm", "find", "needs_slurm", "summarise_all"]


def all_runs() -> list[RunPaths]:
    """Every run of this user that can be found from here, newest first."""
    root = Path(os.environ.get("LAUNCHER_RUNS_DIR", "runs"))
    try:
        names = [e.path for e in os.scandir(root) if not e.name.startswith(".") and e.is_dir()]
    except OSError:
        return []
    return [RunPaths(Path(p)) for p in sorted(names, key=os.path.getmtime, reverse=True)]


def find(name: str) -> RunPaths:
    """The run that ``name`` means: an id, a unique prefix or ending, a job's name (its newest), ``@last``.

    Raises RunNotFoundError.
    """
    runs = all_runs()
    if name == "@last" and runs:
        return runs[0]
    hits = [r for r in runs if r.id == name] or [r for r in runs if r.id.startswith(name) or r.id.endswith(name)]
    if not hits:
        raise RunNotFoundError(f"no run answers to {name!r}; launcher ls shows what there is")
    return hits[0]


def ask_slurm(job_ids: Iterable[str]) -> Mapping[str, SlurmView] | None:
    """SLURM's view of the jobs, by id; None when there is no SLURM here or it does not answer."""
    return None


def needs_slurm(summary: RunSummary) -> bool:
    """Whether the files alone leave open what SLURM knows: it waits in a queue, or has fallen silent."""
    if summary.backend != "slurm" or not summary.active or summary.job_id is None:
        return False
    return summary.state == "pending" or summary.silent


def summarise_all(histories: list[History], now: float) -> list[RunSummary]:
    """Summaries of all; SLURM is asked once, for those that need it."""
    first = [summarise_history(h, None, now) for h in histories]
    open_ = [i for i, s in enumerate(first) if needs_slurm(s)]
    if not open_:
        return first
    jobs = ask_slurm([s.job_id for s in (first[i] for i in open_) if s.job_id is not None])
    if jobs is None:
        return first
    for i in open_:
        first[i] = summarise_history(histories[i], jobs, now)
    return first
