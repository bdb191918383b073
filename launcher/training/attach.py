"""`launcher.attach`: makes the `Worker` of a script. What that does is in `launcher.training.worker`."""

from __future__ import annotations

import torch

from launcher.run.messages import WorkerAttached, WorkerWarning
from launcher.training.process import signals
from launcher.training.process.group import before_group_ends
from launcher.training.process.place import here
from launcher.training.step.session import Session
from launcher.training.step.stopping import Gate, listen
from launcher.training.worker import Worker

_worker: Worker | None = None


def attach() -> Worker:
    """Return the `Worker` of this process; under plain python or torchrun one that does nothing and never stops.

    Call it on the main thread, after the process group is up and the device is set; its `Worker.device` is the one that was set, else
    that of LOCAL_RANK. From then on the leader says when to stop
    (`Worker.should_stop`), and SLURM's signals end neither the script nor the processes that it starts (`launcher.training.process.signals`).
    Raises CheckpointError when the checkpoint cannot be read.
    """
    global _worker
    if _worker is None:
        place = here()
        gate = Gate()
        session = Session(place, gate, _device(place.local_rank))
        if place.paths is not None:
            before_group_ends(session.group_ends)
            listen(place, gate)  # before the signals are blocked here: one thread takes them
            place.channel.send(WorkerAttached())
            if (left := signals.take_over()) is not None:
                place.channel.send(WorkerWarning(text=left))
        _worker = Worker(session)
    return _worker


def _device(local_rank: int) -> torch.device:
    """Return the script's device. 0 is also what is current where nothing was set: then it is the one of its rank, as torchrun's users mean."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    current = torch.cuda.current_device()
    return torch.device("cuda", local_rank if current == 0 and local_rank < torch.cuda.device_count() else current)


def attached() -> Worker | None:
    """Return the worker that the script asked for, if it did."""
    return _worker
