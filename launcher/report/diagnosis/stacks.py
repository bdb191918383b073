"""The rank that the others wait for, by the stacks that all ranks of a round have dumped into their logs."""

from __future__ import annotations

import re

from launcher.report.diagnosis.traces import tail
from launcher.run.paths import RunPaths
from launcher.run.tracebacks import Trace, last_stack

_WAITS = re.compile(r"torch/distributed/|nn/parallel/distributed\.py|autograd/graph\.py")
"""Files of a stack that waits for other ranks: in a collective, or in a backward pass that reduces gradients."""
MOST_STACKS = 128


def odd_one(paths: RunPaths, attempt: int, round_: int, ranks: list[int]) -> int | None:
    """Return the rank that is alone without a stack (it was frozen), or does not wait in a collective; None: no one stands out."""
    silent, busy = [], []
    waiting: dict[tuple[str, int], list[int]] = {}
    for rank in ranks[:MOST_STACKS]:
        stack = last_stack(tail(paths.rank_log(attempt, round_, rank)))
        if stack is None:
            silent.append(rank)
        elif not any(_WAITS.search(frame.file) for frame in stack.frames):
            busy.append(rank)
        else:
            waiting.setdefault(_called_from(stack), []).append(rank)
    for found in (silent, busy):
        if 0 < len(found) <= len(ranks) / 2:
            return found[0]
    # All wait, but not for the same: most ranks are where they belong.
    few = sorted(waiting.values(), key=len)[:-1]
    return few[0][0] if few and len(few[0]) < len(ranks) / 2 else None


def _called_from(stack: Trace) -> tuple[str, int]:
    """The line outside torch from which a collective was entered."""
    frame = next((f for f in reversed(stack.frames) if "/torch/" not in f.file), stack.frames[-1])
    return frame.file, frame.line
