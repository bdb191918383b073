"""Runs the command of `launcher shell` on a node, and ends it when the allocation ends, so that nothing waits for it.

srun's options and the folder it starts in are those of `launcher.cli.shell`.

The variables passed by name are read here, from the run's folder: in srun's environment SLURM would see them.
An interactive shell ignores TERM: SLURM would kill it only KillWait later, and a requeued job whose last process ends after
its StartTime waits two minutes more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

_PATIENCE_S = 1.0
_OF_SLURM = (signal.SIGTERM, signal.SIGUSR2)
"""They come when the allocation ends."""
_OF_OTHERS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGXCPU)
"""They would end this process alone: a terminal that closes, somebody's kill, a limit of CPU time."""


def main(words: Sequence[str]) -> int:
    """Run the command to its end, on this terminal, and return its exit code; 128 + N when signal N ended it."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        # These are for the command. A handler, since exec passes ignored signals on.
        signal.signal(number, lambda *_: None)
    try:
        passed = _passed()
    except OSError as error:
        print(f"launcher shell: {error.filename} cannot be read: {error.strerror}", file=sys.stderr)
        return 126
    child: subprocess.Popen[bytes] | None = None
    ending = False

    def end(number: int, _: Any) -> None:
        nonlocal ending
        ending = True
        name = signal.Signals(number).name
        why = f"the allocation is ending ({name})" if number in _OF_SLURM else f"{name} came"
        with contextlib.suppress(OSError):  # the terminal may be closed
            os.write(2, f"\nlauncher shell: {why}: the command is stopped\n".encode())
        if child is not None:
            _end(child.pid)

    # Before the command starts: without them a signal in its first moments would end this process and leave the command.
    for number in (*_OF_SLURM, *_OF_OTHERS):
        if number in _OF_SLURM or signal.getsignal(number) is not signal.SIG_IGN:  # nohup: the command goes on
            signal.signal(number, end)
    try:
        child = subprocess.Popen(list(words), env={**os.environ, **passed})
    except OSError as error:
        print(f"launcher shell: {words[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    if ending:
        _end(child.pid)
    code = child.wait()
    return 128 - code if code < 0 else code


def _passed() -> dict[str, str]:
    """Return the variables passed by name. Raises OSError."""
    from launcher.run.asking import load_object
    from launcher.run.paths import RunPaths

    paths = RunPaths(Path(os.environ["LAUNCHER_RUN_DIR"]))
    return {name: str(value) for name, value in (load_object(paths.passed, paths.root) or {}).items()}


def _end(pid: int) -> None:
    """Send HUP to the command's processes, as a closing terminal does, then KILL to those that are left."""
    try:
        command = psutil.Process(pid)
        found = [command, *command.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in found:
        _send(process, signal.SIGHUP)
    end = time.monotonic() + _PATIENCE_S
    while (left := [process for process in found if _runs(process)]) and time.monotonic() < end:
        time.sleep(0.02)
    for process in left:
        _send(process, signal.SIGKILL)


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended. It is not waited for: the exit code of the command is `main`'s to take."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


if __name__ == "__main__":
    # The run's lib, whatever PYTHONPATH is after the setup lines.
    sys.path[0] = str(Path(__file__).absolute().parents[3])
    sys.exit(main(sys.argv[1:]))
