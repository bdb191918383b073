"""What happens in a forked worker between fork and its main: it becomes like a process started by itself."""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

from launcher.run.children import end_by_kill, exit_now
from launcher.run.message_lines import FD_VARIABLE

GUARDED = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Signals that only the agent hears."""
# The working directory, which `python -c` puts before PYTHONPATH (not with PYTHONSAFEPATH), is not searched.
_EXEC = (
    "import sys; getattr(sys.flags, 'safe_path', False) or sys.path.pop(0); sys.path.append(sys.argv[1]); "
    "from launcher.node.forkserver.child import run_exec; run_exec()"
)
ROOT = str(Path(__file__).parents[3])
"""Where this package lies: last on a fresh interpreter's path, so that it is found however the agent found it."""


def become_worker(request: dict[str, Any], fds: list[int]) -> int:
    """Take the descriptors, environment, directory and signals that ``request`` asks for, then run its main."""
    log, *rest = fds
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, number in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, number)
    for fd in {null, log} - {0, 1, 2}:
        os.close(fd)
    # as under PYTHONUNBUFFERED: what a worker printed last must be in its log when it is killed
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    environ = {key: str(value) for key, value in request["env"].items()}
    if rest:
        environ[FD_VARIABLE] = str(rest[0])
    if request.get("cpus"):
        os.sched_setaffinity(0, request["cpus"])
    before = _python_path()
    os.chdir(request["cwd"])
    os.environ.update({"PWD": request["cwd"], **environ})
    _move_path(before, _python_path())
    if request.get(
        "script"
    ):  # gets TERM as it would under torchrun, and survives USR2; others leave signals to the agent
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GUARDED)
    if request.get("exec"):
        for fd in rest:
            os.set_inheritable(fd, True)
        command = [sys.executable, "-u", "-c", _EXEC, ROOT, request["main"], request["cwd"]]
        os.execv(sys.executable, command)  # noqa: S606 (this Python, with words of its own)
    return _run(request["main"], request["cwd"], [rest[0]] if request.get("pass_fd") else [])


def _python_path() -> list[str]:
    """Return the entries of PYTHONPATH as ``sys.path`` has them: Python takes a relative one (`src`) for a folder below the current one."""
    return [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _move_path(old: list[str], new: list[str]) -> None:
    """Do with ``sys.path`` what Python does with PYTHONPATH at its start, where a worker's is another than the fork server's."""
    if old == new:
        return
    place = min((i for i, entry in enumerate(sys.path) if entry in old), default=0)
    sys.path[:] = [entry for entry in sys.path if entry not in old]
    sys.path[place:place] = new


def _run(main: str, cwd: str, args: list[int]) -> int:
    """Call ``module:function`` as the main program of a process of its own."""
    # A C stack after Python's would be all that a failure's last 40 lines hold.
    if sys.version_info >= (3, 14):
        faulthandler.enable(file=2, c_stack=False)
    else:
        faulthandler.enable(file=2)
    faulthandler.register(signal.SIGURG, file=2, all_threads=True)
    # Undo what a fork shares and separate processes do not.
    sys.path.insert(0, cwd)
    sys.argv = [""]
    sys.modules["__main__"] = sys.modules["__mp_main__"] = types.ModuleType("__main__")
    # Forked workers would share one state; separate processes draw theirs from the system.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (tempfile := sys.modules.get("tempfile")) is not None:
        # torch has asked for it; the worker's program may set TMPDIR first
        tempfile.tempdir = None  # type: ignore[attr-defined]
    if "multiprocessing" in sys.modules:
        sys.modules["multiprocessing"].set_start_method(None, force=True)
    if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        end_by_kill()
    module, _, name = main.partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(*args)
    except SystemExit as leaving:
        result = leaving.code
    except BaseException:
        traceback.print_exc()
        return 1
    if result is None or isinstance(result, int):
        return (result or 0) & 0xFF
    print(result, file=sys.stderr)
    return 1


def exit_like_python(code: int) -> NoReturn:
    """End as a Python program does, but never hang in the fork server's code, nor abort with gloo's threads still there."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    exit_now(code)


def run_exec() -> NoReturn:
    """Run ``start_method: spawn``: a fresh interpreter replaces the forked worker; its argv is root, module:function, directory."""
    sys.exit(_run(sys.argv[2], sys.argv[3], []))
