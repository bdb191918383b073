"""How long this rank waits for others in a step: this distinguishes a slow rank from those that it slows.

Steps take equally long on every rank, as all of them leave a gradient's reduction together. DDP times its first ten backward
passes and one in a hundred after: the part of the reduction that is not hidden behind computing is waiting.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import threading
import time
from collections import deque
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from launcher.run.tracebacks import WAITS

_EVERY_S = 1.0
_KEYS = ("backward_comm_time", "backward_compute_comm_overlap_time", "backward_compute_time")
"""Of DDP's prototype interface, in nanoseconds; where a torch lacks it, nothing is known."""


def waits_for_ranks() -> bool | None:
    """Return whether the main thread is in a collective, or in a backward pass; asked by another thread. None: it has no frame."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return None
    while frame is not None:
        if WAITS.search(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


class Waits:
    """The median of the last five times that DDP took."""

    def __init__(self) -> None:
        self._model: Any = None
        self._looked = 0.0
        self._last: tuple[int, ...] = ()
        self._recent: deque[float] = deque(maxlen=5)
        self._median: float | None = None

    def watch(self, model: Any) -> None:
        """Measure this model from now on; one that is not wrapped in DDP waits for no rank."""
        if isinstance(model, DistributedDataParallel):
            self._model = model

    def seconds(self) -> float | None:
        """Return the seconds of a step spent waiting; None before anything was measured."""
        now = time.monotonic()
        if self._model is not None and now - self._looked >= _EVERY_S:
            self._looked = now
            with contextlib.suppress(AttributeError, KeyError, RuntimeError):
                data = self._model._get_ddp_logging_data()
                sample = tuple(int(data[key]) for key in _KEYS)
                if sample != self._last and all(sample):
                    self._last = sample
                    self._recent.append(max(0.0, (sample[0] - sample[1]) / 1e9))
                    self._median = round(statistics.median(self._recent), 7)
        return self._median
