"""Which signals a script receives. SLURM sends TERM and USR2 to every process of a step, loader workers included.

Tasks and functions never receive them: both are blocked before the worker starts. A script receives them until it calls
`launcher.attach`. From then on the leader tells it when to stop, and the signals must end neither the script nor its children.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from traceback import walk_stack
from types import FrameType
from typing import Any

from launcher.run.children import end_by_kill
from launcher.run.messages import WorkerHandlesUsr2
from launcher.training.process.place import here

_SLURMS = (signal.SIGTERM, signal.SIGUSR2)
"""The signals SLURM sends to a step: the end, and the warning before it."""
_NOT_MAIN_THREAD = (
    "launcher.attach() was not called on the main thread: SIGTERM and SIGUSR2, which SLURM sends to every process of the job,"
    " may end the script or its child processes before it has saved; call it on the main thread"
)
_set = signal.signal
_taken = _told = False
_pid = 0


def as_in_python() -> None:
    """Give a script the signals of a Python program, but for USR2 and for scripts that handle USR2 alone.

    USR2 announces the time limit: by default it would end the script before TERM comes, so it is ignored. A script that
    handles USR2 and not TERM (many sbatch scripts are written so) saves in that handler: TERM, which SLURM sends at a preemption
    and the launcher at a time limit, calls it, too. All others have TERM as Python has it: libraries look
    (Lightning's handler calls the one that it finds), and the default ends a process even inside a collective.
    """
    global _pid
    _pid = os.getpid()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGCONT):
        _set(number, signal.SIG_DFL)
    _set(signal.SIGUSR2, signal.SIG_IGN)
    _set(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if signal.signal is _set:
        signal.signal = functools.update_wrapper(_signal, _set)  # type: ignore[assignment]
        os.register_at_fork(after_in_child=_forget)


def take_over() -> str | None:
    """Keep TERM and USR2 from ending this script or what it starts. Returns what could not be done, in one sentence.

    Both are blocked in this thread: loader workers, pools and programs inherit that. An ignored signal would stay ignored in
    them, too, and torch's loader workers replace an ignored TERM by a handler that ends them. Other threads still take the
    signals, so a handler that the script has, or sets later, is called as ever.
    """
    global _taken
    _taken = True
    end_by_kill()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SLURMS)
    if threading.current_thread() is not threading.main_thread():
        return _NOT_MAIN_THREAD
    for number, ours in ((signal.SIGTERM, _pass_on), (signal.SIGUSR2, signal.SIG_IGN)):
        found = signal.getsignal(number)
        if found is _pass_on or (found in (ours, signal.SIG_DFL) and not _is_caught(number)):
            _set(number, _nothing)
            signal.siginterrupt(number, False)  # no system call of the script's or of a library's ends with EINTR
    return None


def let_loaders_end() -> None:
    """Take torch's handler for SIGCHLD away: exit functions end loader workers, here by KILL, and it raises at each that is killed."""
    if getattr(signal.getsignal(signal.SIGCHLD), "__module__", "") == "torch.utils.data._utils.signal_handling":
        _set(signal.SIGCHLD, signal.SIG_DFL)


def _signal(signalnum: int, handler: Any) -> Any:
    global _told
    before = _set(signalnum, handler)
    if signalnum == signal.SIGUSR2 and callable(handler) and os.getpid() == _pid:
        if not _taken and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            _set(signal.SIGTERM, _pass_on)
        if not _told:
            _told = True  # once: a handler may come here while this thread sends something
            here().channel.send(WorkerHandlesUsr2())
    return before


def _is_caught(number: int) -> bool:
    """Whether the signal has a handler unknown to Python's `signal`: faulthandler's, a library's."""
    with open("/proc/self/status") as f:
        caught = next((line.split()[1] for line in f if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing: the leader tells the script when to stop."""


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Handle TERM in a script that handles USR2 alone: call that handler."""
    handler = signal.getsignal(signal.SIGUSR2)
    if handler in (signal.SIG_DFL, signal.SIG_IGN):  # it handles USR2 no more
        _set(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
        return
    if _is_leaving(frame):
        return
    code = getattr(handler, "__code__", None)
    running = (inner.f_code is code for inner, _ in walk_stack(frame)) if frame else ()
    if not any(running):  # SLURM's own USR2 may have called it a moment ago: a save is not entered twice
        signal.raise_signal(signal.SIGUSR2)


def _is_leaving(frame: FrameType | None) -> bool:
    """Whether the script is over: its handler has saved already and has called ``sys.exit``, or its last line has run."""
    if isinstance(sys.exc_info()[1], SystemExit):
        return True
    main = sys.modules["__main__"].__dict__
    return not any(f.f_globals is main and f.f_code.co_name == "<module>" for f, _ in walk_stack(frame))


def _forget() -> None:
    """Restore the signals in a forked child: it is not the script, and receives them as any program does."""
    for number in _SLURMS:
        if signal.getsignal(number) in (_pass_on, _nothing):
            _set(number, signal.SIG_DFL)
