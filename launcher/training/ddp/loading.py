"""How long this process waits for data: in torch's DataLoaders, and where the launcher reads a batch itself."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any


class Loading:
    """How long this process has waited for data so far."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._watched = False

    def watch_loaders(self) -> None:
        """Count the time that torch's DataLoaders take for each batch, from now on; where a torch lacks the private class, nothing."""
        from torch.utils.data import dataloader

        iterators = getattr(dataloader, "_BaseDataLoaderIter", None)
        if iterators is None or self._watched:
            return
        self._watched = True
        following = iterators.__next__

        @functools.wraps(following)
        def measured(loader: Any) -> Any:
            began = time.perf_counter()
            try:
                return following(loader)
            finally:
                if threading.current_thread() is threading.main_thread():  # others read ahead
                    self.seconds += time.perf_counter() - began

        iterators.__next__ = measured


LOADING = Loading()
