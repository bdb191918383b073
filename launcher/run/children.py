"""The end of a worker and of its child processes. Agents' and workers' sides both need it, so it lives where they meet."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from multiprocessing import popen_fork, resource_tracker
from typing import NoReturn


def exit_now(code: int) -> NoReturn:
    """Write what is buffered and end the process at once: a stuck thread or loader worker would hang a normal exit."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a program may have put None in its place
            stream.flush()
    os._exit(code)


def end_by_kill() -> None:
    """Have ``terminate()`` send KILL: children inherit the blocked TERM, so leaving a Pool or a DataLoader would wait for ever.

    And keep TERM blocked here when Python starts its resource tracker (spawn, shared memory), which unblocks TERM in its caller
    (3.10 to 3.13). It blocks signals there only so that they do not end the tracker while it starts; ours are blocked already.
    """
    popen_fork.Popen.terminate = popen_fork.Popen.kill  # type: ignore[attr-defined, method-assign]
    subprocess.Popen.terminate = subprocess.Popen.kill  # type: ignore[method-assign]
    resource_tracker._HAVE_SIGMASK = False  # type: ignore[attr-defined]
