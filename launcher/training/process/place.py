"""What this process is: its rank, its run, its agent. Training reads these variables here and nowhere else."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

from launcher.frozen import frozen
from launcher.run.message_lines import FD_VARIABLE, Channel
from launcher.run.messages import WorkerFailure
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, RunSpec, Work

_NO_RUN = RunSpec(
    id="", name="", run_dir="", work=Work(kind="script", target=""), batch="local", nodes=1, tasks_per_node=1,
    timeout_min=0, backend="gloo", checkpoint=CheckpointSpec(enabled=False),
)  # fmt: skip
"""What holds under plain python or torchrun: nothing is saved."""


@frozen(kw_only=True)
class WorkerPlace:
    """One worker's place in its run; without the launcher, rank and sizes alone."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    attempt: int = 0
    round_: int = 0
    resume_path: Path | None = None
    """The checkpoint the leader chose; None: from scratch."""
    resume_step: int = 0
    spec: RunSpec = _NO_RUN
    paths: RunPaths | None = None
    """None outside a run (plain python or torchrun)."""
    channel: Channel = Channel(None)

    def tmp(self, step: int) -> Path:
        """Return the folder in which this round writes the checkpoint of ``step``. Raises RuntimeError outside a run."""
        if self.paths is None:
            raise RuntimeError("there is no run to save into")
        return self.paths.checkpoint_tmp(self.attempt, self.round_, step)


def here() -> WorkerPlace:
    """Return this process's place. It is read from the environment once.

    The socket's variable is removed, so that no child inherits it: one that user code forks is outside the run, as one that it starts.
    Raises OSError or ValueError when the run's spec cannot be read.
    """
    return _place(os.getpid())


@cache
def _place(pid: int) -> WorkerPlace:
    environ = os.environ
    fd, root = environ.pop(FD_VARIABLE, None), environ.get("LAUNCHER_RUN_DIR")
    resume_path = environ.pop("LAUNCHER_RESUME_PATH", None)
    paths = RunPaths(Path(root)) if fd is not None and root is not None else None
    if fd is not None:  # programs started by user code must not hold the socket open, or its end would go unseen
        os.set_inheritable(int(fd), False)
    channel = Channel(socket.socket(fileno=int(fd)) if fd else None)
    try:
        spec = RunSpec.read(paths.spec) if paths else _NO_RUN
    except (OSError, ValueError) as error:  # told here: nobody else has the socket
        channel.send(
            WorkerFailure(
                kind="exception", exception=type(error).__name__, message=f"the run's spec cannot be read: {error}"
            )
        )
        raise
    channel.secrets = [value for name in spec.pass_names if (value := environ.get(name))]
    return WorkerPlace(
        rank=int(environ.get("RANK", 0)),
        local_rank=int(environ.get("LOCAL_RANK", 0)),
        world_size=int(environ.get("WORLD_SIZE", 1)),
        attempt=int(environ.get("LAUNCHER_ATTEMPT", 0)),
        round_=int(environ.get("LAUNCHER_ROUND", 0)),
        resume_path=Path(resume_path) if resume_path else None,
        resume_step=int(environ.pop("LAUNCHER_RESUME_STEP", None) or 0),
        spec=spec,
        paths=paths,
        channel=channel,
    )
