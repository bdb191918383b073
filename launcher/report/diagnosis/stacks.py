"""Where all ranks of a round stood, and which one the others wait for, by the stacks that they have dumped into their logs."""

from __future__ import annotations

from launcher.report.diagnosis.traces import tail
from launcher.run.paths import RunPaths
from launcher.run.tracebacks import WAITS, Trace, last_stack

MOST_STACKS = 128


class Stacks:
    """Where each rank of a round was when its stack was dumped."""

    def __init__(self, paths: RunPaths, attempt: int, round_: int, ranks: list[int]) -> None:
        self.ranks = ranks
        self._silent: list[int] = []
        self._busy: list[int] = []
        self._waiting: dict[tuple[str, int], list[int]] = {}
        self._stacks: dict[int, Trace] = {}
        for rank in ranks[:MOST_STACKS]:
            stack = last_stack(tail(paths.rank_log(attempt, round_, rank)))
            if stack is None:
                self._silent.append(rank)
                continue
            self._stacks[rank] = stack
            if any(WAITS.search(frame.file) for frame in stack.frames):
                self._waiting.setdefault(_called_from(stack), []).append(rank)
            else:
                self._busy.append(rank)

    def odd_one(self) -> int | None:
        """Return the rank that is alone without a stack (it was frozen), or does not wait in a collective; None: no one stands out."""
        for found in (self._silent, self._busy):
            if 0 < len(found) <= len(self.ranks) / 2:
                return found[0]
        # All wait, but not for the same: most ranks are where they belong.
        few = sorted(self._waiting.values(), key=len)[:-1]
        return few[0][0] if few and len(few[0]) < len(self.ranks) / 2 else None

    def places(self) -> list[tuple[list[int], Trace, str]]:
        """Return the places at which ranks wait for each other, where these differ: ranks, a stack, the collective's name."""
        groups = sorted(self._waiting.values())
        found = [(ranks, self._stacks[ranks[0]], _collective(self._stacks[ranks[0]])) for ranks in groups]
        return found if len(found) > 1 else []


def _collective(stack: Trace) -> str:
    """``all_reduce``; "backward" of a backward pass that reduces gradients."""
    names = (f.function for f in stack.frames if "torch/distributed/" in f.file and f.function != "wrapper")
    return next((name for name in names if name), "backward")


def _called_from(stack: Trace) -> tuple[str, int]:
    """The line outside torch from which a collective was entered."""
    frame = next((f for f in reversed(stack.frames) if "/torch/" not in f.file), stack.frames[-1])
    return frame.file, frame.line
