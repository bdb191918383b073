"""Run SLURM's commands for agents in a container that has none of them.

The batch script runs outside the container, on the host where the leader is: ``python -m launcher.slurm.courier FOLDER SRUN...``,
started by it beside srun, carries questions out and answers back, as files in a folder of the run that both sides see.
A host whose agent is next in line to lead makes a folder there: a courier is started on it, in a step of its own, which lives on
when the batch script's host is lost. ``SRUN...`` are the words of a one-node srun. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.frozen import field_values
from launcher.run.asking import load_object, patiently
from launcher.run.files import write_atomic
from launcher.run.processes import is_alive
from launcher.slurm.ask_courier import COMMANDS, POLL_S, VARIABLE, own_folder
from launcher.slurm.commands import ask
from launcher.slurm.environ import without_slurm


def main() -> int:
    """Serve until the batch shell, this process's parent, has gone.

    In a step of its own it serves until TERM comes and no process lives that has asked: SLURM would wait for it at the job's end.
    """
    folder, srun, parent = Path(sys.argv[1]), sys.argv[2:], os.getppid()
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # a requeue's TERM reaches the batch step too
    told: list[int] = []
    if not srun:
        signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    own, asked = own_folder(str(folder)), set[int]()
    patiently(lambda: own.mkdir(mode=0o700, parents=True, exist_ok=True), folder.parent)
    os.environ.pop(VARIABLE, None)  # a command that is missing here is missing
    started = {own.name}
    while os.getppid() == parent and (not told or any(is_alive(pid, None) for pid in asked)):
        answer_all(own, asked)
        if srun:
            _start_others(folder, srun, started)
        time.sleep(POLL_S)
    return 0


def _start_others(folder: Path, srun: Sequence[str], started: set[str]) -> None:
    """Start a courier on each host that has made a folder. Never raises."""
    with contextlib.suppress(OSError):
        for host in {*os.listdir(folder)} - started:
            started.add(host)
            subprocess.Popen(
                [srun[0], f"--nodelist={host}", *srun[1:], sys.executable, "-m", "launcher.slurm.courier", str(folder)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip


def answer_all(folder: Path, asked: set[int]) -> None:
    """Answer the questions in ``folder``, and note in ``asked`` who asks. Never raises: what cannot be read now is read the next time."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith("ask."):
                _answer(folder / name, asked)


def _answer(path: Path, asked: set[int]) -> None:
    """Run the command that the file ``path`` asks for. Never raises: the next question must be answered, too."""
    try:
        request = load_object(path, path.parent)
        path.unlink(missing_ok=True)
        if request is None or request["words"][0] not in COMMANDS:
            return
        asked.add(int(request["pid"]))
        environ = without_slurm(os.environ) if request["hidden"] else None
        answer = ask(*request["words"], timeout_s=float(request["timeout_s"]), environ=environ)
        reply = path.with_name(path.name.replace("ask.", "answer.", 1))
        write_atomic(reply, json.dumps(field_values(answer)), durable=False)
    except (OSError, LookupError, TypeError, ValueError) as error:
        print(f"{path}: {error!r}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
