"""The allocation of a hold, as a rerun sees it, and what is written of a rerun whose leader could not write its end."""

from __future__ import annotations

import sys

from launcher.node.allocation.allocation import Allocation, SignalMeaning
from launcher.node.allocation.end_run import end_run
from launcher.node.allocation.slurm_allocation import SlurmAllocation
from launcher.node.checkpoints import claims
from launcher.run import event_lines
from launcher.run.events import RerunEnded, RerunStarted
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import read_outcome


class HeldAllocation(Allocation):
    """The job of a hold, for its reruns: they ask it why signals come, and give nothing back."""

    requeues = True
    """SLURM signals the scripts of a rerun, too. It is not requeued all the same: its ``restart.requeue`` is off."""

    def __init__(self, spec: RunSpec, paths: RunPaths) -> None:
        super().__init__(paths)
        self._job = SlurmAllocation(spec, paths)
        self.job_id, self.restart_count = self._job.job_id, self._job.restart_count

    def meaning(self, signal: str) -> SignalMeaning:
        """See `Allocation`."""
        return self._job.meaning(signal)

    def answers(self) -> bool:
        """See `Allocation`."""
        return self._job.answers()

    def cancelled(self) -> bool:
        """See `Allocation`."""
        return self._job.cancelled()


def allocation_of_rerun(spec: RunSpec, paths: RunPaths) -> Allocation:
    """Return the allocation as a rerun sees it."""
    return HeldAllocation(spec, paths) if spec.batch == "slurm" else Allocation(paths)


def conclude_reruns(hold: RunPaths, said: str) -> list[str]:
    """Write an outcome for each rerun of ``hold`` that has none; ``said`` is what ended it. Never raises for one's files.

    Returns those of which the hold's history tells no end.
    """
    open_runs: dict[str, None] = {}
    for event in event_lines.read(hold.events, RerunStarted, RerunEnded):
        if isinstance(event, RerunStarted) and event.run is not None:
            open_runs[event.run] = None
        elif isinstance(event, RerunEnded):
            open_runs.pop(event.run or "", None)
    for run in open_runs:
        conclude_rerun(hold, run, said)
    return list(open_runs)


def conclude_rerun(hold: RunPaths, run: str, said: str) -> None:
    """Write the outcome of a rerun of ``hold`` where there is none: its leader could not. Never raises for its files."""
    try:
        paths = hold.beside(run)
        spec = RunSpec.read(paths.spec)
        if spec.held_by != hold.id or read_outcome(paths.outcome) is not None:
            return
        allocation, attempt = allocation_of_rerun(spec, paths), max(claims.attempts(paths), default=0)
        claims.depose(paths, attempt)
        cancelled = allocation.cancelled()
        reason = "The job was cancelled." if cancelled else f"{said[:1].upper()}{said[1:].rstrip('.')}."
        end_run(paths, allocation, attempt, "cancelled" if cancelled else "failed", reason)
    except (OSError, ValueError) as error:
        print(f"{run}: how it ended cannot be written: {error}", file=sys.stderr, flush=True)
