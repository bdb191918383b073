"""Where all ranks of a round stood, and which one the others wait for, by the stacks that they have dumped into their logs."""

from __future__ import annotations

from launcher.report.diagnosis.traces import tail, user_frame
from launcher.run.paths import RunPaths
from launcher.run.tracebacks import WAITS, Trace, last_stack

MOST_STACKS = 4096
"""Of more ranks the logs of so many are read, evenly drawn: a log takes half a millisecond on a local disk."""


class Stacks:
    """Where each rank of a round was when its stack was dumped."""

    def __init__(self, paths: RunPaths, attempt: int, round_: int, ranks: list[int]) -> None:
        drawn = (ranks[i * len(ranks) // MOST_STACKS] for i in range(MOST_STACKS))
        self.ranks = ranks if len(ranks) <= MOST_STACKS else list(drawn)
        """Those whose logs were read."""
        self._silent: list[int] = []
        self._waiting: dict[tuple[str, int], list[int]] = {}
        self._at_work: dict[tuple[str, int], list[int]] = {}
        self._stacks: dict[int, Trace] = {}
        for rank in self.ranks:
            stack = last_stack(tail(paths.rank_log(attempt, round_, rank)))
            if stack is None:
                self._silent.append(rank)
                continue
            self._stacks[rank] = stack
            if any(WAITS.search(frame.file) for frame in stack.frames):
                self._waiting.setdefault(_called_from(stack), []).append(rank)
            else:
                self._at_work.setdefault(_called_from(stack), []).append(rank)

    def odd_one(self) -> int | None:
        """Return the rank that is alone without a stack (it was frozen), or does not wait in a collective; None: no one stands out."""
        busy = sorted(rank for ranks in self._at_work.values() for rank in ranks)
        for found in (self._silent, busy):
            if 0 < len(found) <= len(self.ranks) / 2:
                return found[0]
        # All wait, but not for the same: most ranks are where they belong.
        few = sorted(self._waiting.values(), key=len)[:-1]
        return few[0][0] if few and len(few[0]) < len(self.ranks) / 2 else None

    def places(self) -> list[tuple[list[int], Trace, str]]:
        """Return where ranks stood, if that tells anything: ranks, a stack, the name of the collective or of the user's function.

        One place is that of all ranks, which are at work there; of a collective in which all wait nothing can be said.
        """
        groups = [(ranks, self._stacks[ranks[0]]) for ranks in self._waiting.values()]
        found = [(ranks, stack, _collective(stack)) for ranks, stack in groups]
        for ranks in self._at_work.values():
            frame = user_frame(self._stacks[ranks[0]].frames)
            found.append((ranks, self._stacks[ranks[0]], (frame and frame.function) or "?"))
        alone = len(found) == 1 and (self._waiting or found[0][0] != self.ranks)
        return [] if alone else sorted(found, key=lambda place: place[0])


def _collective(stack: Trace) -> str:
    """``all_reduce``; "backward" of a backward pass that reduces gradients."""
    names = (f.function for f in stack.frames if "torch/distributed/" in f.file and f.function != "wrapper")
    return next((name for name in names if name), "backward")


def _called_from(stack: Trace) -> tuple[str, int]:
    """The line outside torch from which a collective was entered."""
    frame = next((f for f in reversed(stack.frames) if "/torch/" not in f.file), stack.frames[-1])
    return frame.file, frame.line
