"""Hold signals back while something is begun that must be known, or taken back, to its end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C, TERM and HUP take effect at the end of the block, so that no job is queued, and no process started, of which nothing is known.

    Yields what raises KeyboardInterrupt if Ctrl-C came: it takes back what has been done, TERM and HUP leave what is recorded.

    Programs that are started inside have the usual handlers: Ctrl-C ends an sbatch that hangs. A signal that is ignored
    stays so (nohup). Only the main thread can hold signals: others hold nothing.
    """
    came: list[int] = []

    def interrupted() -> None:
        if signal.SIGINT in came:
            raise KeyboardInterrupt

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {n: old for n in _HELD if (old := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, lambda told, _: came.append(told))
        yield interrupted
    finally:
        for number, old in before.items():
            signal.signal(number, old)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)
