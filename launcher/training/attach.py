"""`launcher.attach`: one line that gives a script resumes, agreed stops and checkpoints."""

from __future__ import annotations

import torch

from launcher.run.messages import WorkerAttached, WorkerWarning
from launcher.training.process import signals
from launcher.training.process.place import here
from launcher.training.step.session import Session
from launcher.training.step.stopping import Gate, listen
from launcher.training.worker import Worker

_worker: Worker | None = None


def attach() -> Worker:
    """Return the `Worker` of this process; under plain python or torchrun one that does nothing and never stops.

    Call it on the main thread, after the process group is up and the device is set. From then on the leader says when to stop
    (`Worker.should_stop`), and SLURM's signals end neither the script nor the processes that it starts (`launcher.training.process.signals`).
    Raises CheckpointError when the checkpoint cannot be read.
    """
    global _worker
    if _worker is None:
        place = here()
        gate = Gate()
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        session = Session(place, gate, device)
        if place.paths is not None:
            listen(place, gate)  # before the signals are blocked here: one thread takes them
            place.channel.send(WorkerAttached())
            if (left := signals.take_over()) is not None:
                place.channel.send(WorkerWarning(text=left))
        _worker = Worker(session)
    return _worker


def attached() -> Worker | None:
    """Return the worker that the script asked for, if it did."""
    return _worker
