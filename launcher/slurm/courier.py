"""Run SLURM's commands for agents in a container that has none of them.

The batch script runs outside the container, on the host where the leader is: ``python -m launcher.slurm.courier FOLDER``,
started by it beside srun, carries questions out and answers back, as files in a folder of the run that both sides see.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from launcher.frozen import field_values
from launcher.run.asking import load_object, patiently
from launcher.run.files import write_atomic
from launcher.slurm.ask_courier import COMMANDS, POLL_S, VARIABLE
from launcher.slurm.commands import ask
from launcher.slurm.environ import without_slurm


def main() -> int:
    """Serve until the batch shell, this process's parent, has gone."""
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # a requeue's TERM reaches the batch step too
    folder, parent = Path(sys.argv[1]), os.getppid()
    patiently(lambda: folder.mkdir(mode=0o700, exist_ok=True), folder.parent)
    os.environ.pop(VARIABLE, None)  # a command that is missing here is missing
    while os.getppid() == parent:
        answer_all(folder)
        time.sleep(POLL_S)
    return 0


def answer_all(folder: Path) -> None:
    """Answer the questions in ``folder``. Never raises: what cannot be read now is read the next time."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith("ask."):
                _answer(folder / name)


def _answer(path: Path) -> None:
    """Run the command that the file ``path`` asks for. Never raises: the next question must be answered, too."""
    try:
        request = load_object(path, path.parent)
        path.unlink(missing_ok=True)
        if request is None or request["words"][0] not in COMMANDS:
            return
        environ = without_slurm(os.environ) if request["hidden"] else None
        answer = ask(*request["words"], timeout_s=float(request["timeout_s"]), environ=environ)
        reply = path.with_name(path.name.replace("ask.", "answer.", 1))
        write_atomic(reply, json.dumps(field_values(answer)), durable=False)
    except (OSError, LookupError, TypeError, ValueError) as error:
        print(f"{path}: {error!r}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
