"""A script that trains until it is told to stop; the next attempt finds the work done. ``--bare``: it has no handler.
``--usr2``: it handles SIGUSR2 alone, as scripts for sbatch do, and leaves with 0 when it has saved.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

run, rank = Path(os.environ["LAUNCHER_RUN_DIR"]), os.environ["RANK"]


def save(number: int, frame: object) -> None:
    """Write down that TERM came and what the note beside it says, and leave."""
    note = Path(os.environ["LAUNCHER_STOP_NOTE"])
    end = time.monotonic() + 5.0
    while not note.exists() and time.monotonic() < end:
        time.sleep(0.01)
    found = json.loads(note.read_text())
    left_s = found["deadline_t"] and found["deadline_t"] - time.time()
    (run / f"note-{rank}").write_text(json.dumps([found["cause"], left_s]))
    with open(run / f"told-{rank}", "a") as f:
        f.write(f"{signal.Signals(number).name}\n")
    time.sleep(1.0)  # a save takes a while
    sys.exit(0)


def save_on_usr2(number: int, frame: object) -> None:
    """Write down that it came, save, and leave."""
    with open(run / f"told-{rank}", "a") as f:
        f.write(f"{signal.Signals(number).name}\n")
    time.sleep(1.0)
    sys.exit(0)


if "--usr2" in sys.argv:
    signal.signal(signal.SIGUSR2, save_on_usr2)
elif "--bare" not in sys.argv:
    signal.signal(signal.SIGTERM, save)
(run / f"up-{rank}").touch()
while os.environ["LAUNCHER_ATTEMPT"] == "0" and not (run / "enough").exists():
    time.sleep(0.05)
