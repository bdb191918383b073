"""``after``: find the runs that a job waits for, and refuse a job that can never start."""

from __future__ import annotations

from launcher.config.document.schema import After
from launcher.errors import StateError
from launcher.run import index
from launcher.run.after import Predecessor, WaitKind, broken, may_start, state_of
from launcher.run.paths import RunPaths
from launcher.run.state import read_end
from launcher.submission.liveness import RunLocation, locate


def predecessors(after: str | After | None) -> list[Predecessor]:
    """Return the runs in a job's ``after`` that have not ended yet.

    Raises RunNotFoundError, and StateError when one has ended in a way that the job can never start after.
    """
    if after is None:
        return []
    named: dict[WaitKind, list[str]]
    named = {"ok": [after]} if isinstance(after, str) else {"ok": after.ok, "any": after.any, "fails": after.fails}
    found = []
    for kind, runs in named.items():
        for run in runs:
            paths = RunPaths(index.resolve(run))
            where = locate(paths)
            one = Predecessor(kind, str(paths.root), where.job_id if where.backend == "slurm" else "")
            state = state_of(one)
            if state is None and not where.alive(fresh=True):
                state = _end_of(where)
            if state is None and where.hold is not None:
                raise StateError(
                    f"after: {paths.id} trains in {where.hold.id}, whose job goes on when it has ended; submit the job then"
                )
            if state is None:
                found.append(one)
            elif not may_start(kind, state):
                raise StateError(f"after: {broken(one, state).replace('It never started', 'the job can never start')}")
    return found


def _end_of(where: RunLocation) -> str:
    """Return how a run ended on which nothing works and whose outcome is not seen: it was killed, or NFS shows it late."""
    if (end := read_end(where.paths)) is not None:
        return str(end.get("state"))
    # A batch script ends with 0 only after its run has completed; that of a hold, whatever its reruns did.
    return "completed" if where.hold is None and where.latest_state == "COMPLETED" else "failed"


def check_same_backend(after: list[Predecessor], backend: str) -> None:
    """Refuse to wait for a run of the other backend. Raises StateError."""
    for one in after:
        if bool(one.job_id) != (backend == "slurm"):
            where = "in SLURM, this job on this machine" if one.job_id else "on this machine, this job in SLURM"
            raise StateError(f"after: {one.run} runs {where}; name a run of the same backend")
