"""What a worker and its agent say to each other: one JSON object per line over a socket pair, one class for each kind.

The worker finds its end's file descriptor in ``LAUNCHER_WORKER_FD`` (`launcher.run.message_lines`). The node side and
``training`` meet here only. Steps are optimizer steps done, durations are seconds, ``t`` are seconds since the epoch.

Saving: with ``checkpoint.interval_steps`` the workers of tasks and functions save by themselves at its multiples, and always
after the last step: the leader need not ask. No message names a folder: it is ``RunPaths.checkpoint_tmp`` of the step. A worker
told to stop at the step it was started from (nothing done since) sends ``stopped`` without saving. Evaluation ends by
entering the next unit, so that its reductions have an agreed place; after the last one, ``entered`` may be N + 1.

Environment of a worker, beside what torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE,
ROLE_*, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS,
TORCHELASTIC_USE_AGENT_STORE=True):

LAUNCHER_WORKER_FD                 the worker's end of the socket pair (taken out of the environment before user code runs)
LAUNCHER_RUN_DIR                   the run's directory; the spec is read from it
LAUNCHER_ATTEMPT, LAUNCHER_ROUND   numbers
LAUNCHER_STOP_NOTE                 of scripts: the file that comes with TERM, {"cause", "deadline_t" and "left_s" (or null)}
LAUNCHER_RESUME_PATH, LAUNCHER_RESUME_STEP   the checkpoint to resume from, chosen by the leader; both unset: from scratch

The entry points, as strings: ``launcher.training.start.main:main`` (no arguments; ends the process itself, exit code 0 when it
finished or stopped as told) and ``launcher.training.process.serve_store:main`` (one argument: the file descriptor it writes
``{"port": n}`` and a newline to, and whose end of file ends it). A fork server should preload the module
``launcher.training.start.preload`` (torch and everything torch and workers would import later: saves 1 to 3 s per worker and
start); it starts no thread.
"""

from __future__ import annotations

from typing import Any

from launcher.run.event_parts import Frame
from launcher.run.records import Record


class FromWorker(Record, family=True):
    """A worker's message to its agent, which forwards it to the leader with ``round`` and ``rank``."""


class WorkerHello(FromWorker, type="hello"):
    """The worker's process has started."""

    pid: int


class WorkerPhase(FromWorker, type="phase"):
    """The worker begins another kind of work."""

    name: str
    """"starting", "init", "setup", "load", "train", "between", "evaluate", "save", "teardown" or "script"."""


class WorkerReady(FromWorker, type="ready"):
    """The process group is up: collectives work."""


class WorkerAttached(FromWorker, type="attached"):
    """A script called ``launcher.attach``: ``pause`` and ``stop`` tell it to stop from now on, and it receives no signal."""


class WorkerHandlesUsr2(FromWorker, type="handles_usr2"):
    """A script has set its own handler for SIGUSR2: if it ends after that signal, it was stopped."""


class WorkerOver(FromWorker, type="over"):
    """A script has ended, with its threads and exit functions: only Python's own shutdown is left."""

    code: int
    """Its exit code."""


class WorkerProgress(FromWorker, type="progress"):
    """The worker has done steps: at most ten messages a second, and always the first and last step of a round."""

    step: int
    epoch: int | None = None
    epochs: int | None = None
    total_steps: int | None = None
    step_time_s: float | None = None
    wait_s: float | None = None
    """Of the step time: how long it waited for other ranks; None when unknown."""
    data_s: float | None = None
    """Of the step time: how long it waited for data."""


class WorkerMetrics(FromWorker, type="metrics"):
    """Numbers that user code has logged at a step."""

    step: int
    epoch: int | None = None
    metrics: dict[str, float]


class WorkerNotFinite(FromWorker, type="not_finite"):
    """A metric of this rank's own became NaN or infinite at a step; told by every rank, once, and again when it is finite again."""

    step: int
    metric: str
    value: str
    """"nan", "inf" or "-inf"."""
    until: int | None = None
    """The first step at which it was finite again."""


class WorkerEvaluated(FromWorker, type="evaluated"):
    """Results of an evaluation after a step."""

    step: int
    metrics: dict[str, float]


class WorkerEpoch(FromWorker, type="epoch"):
    """An epoch is done; ``loss`` is its average over all ranks."""

    step: int
    epoch: int
    loss: float


class WorkerEntered(FromWorker, type="entered"):
    """The answer to ``pause``: the highest unit that this worker has entered (`launcher.training.step.stopping` has the invariant)."""

    step: int


class WorkerAt(FromWorker, type="at"):
    """The answer to ``where``: the highest unit that this worker has entered; it goes on."""

    step: int
    waits: bool | None = None
    """Its main thread is in a collective, or in a backward pass that may wait for one."""
    collectives: int | None = None
    """How many collectives of all ranks it has started; None: torch does not tell."""


class WorkerSaveAck(FromWorker, type="save_ack"):
    """The answer to ``save_at``."""

    id: int
    ok: bool
    """False: the unit was entered already."""


class WorkerSaveBegun(FromWorker, type="save_begun"):
    """The worker begins to write its part of a checkpoint."""

    step: int


class WorkerShard(FromWorker, type="shard"):
    """This rank's part of a checkpoint is durable."""

    step: int
    files: list[dict[str, Any]]
    """{name, size, hash} each."""
    seconds: float
    blocked_s: float
    """How long training waited for it."""
    hash_name: str
    """"xxh3_64" or "sha256"."""
    meta: dict[str, Any] = {}  # noqa: RUF012  (copied for each record)
    last: bool = False
    """Saved at the end of all work, or at a script's end, whatever ended it."""


class WorkerSaveFailed(FromWorker, type="save_failed"):
    """This rank could not write its part of a checkpoint."""

    step: int
    error: str
    errno: int | None
    permanent: bool = False
    """Another try would fail again: the state is the reason, not the disk."""
    last: bool = False
    """The worker tries again, at the end of all work at the latest: the others' parts are kept."""


class WorkerStopped(FromWorker, type="stopped"):
    """The worker stopped at the agreed step; its last shard is durable."""

    step: int
    saved: bool
    """False: nothing was written, or writing failed."""


class WorkerFinished(FromWorker, type="finished"):
    """All work is done; the last shard is durable."""

    step: int
    saved: bool


class WorkerFailure(FromWorker, type="failed"):
    """The worker's code raised an exception, or a script exited with a code other than 0 (``kind`` "exit")."""

    step: int | None = None
    kind: str | None = None
    exception: str | None = None
    message: str = ""
    frames: list[Frame] = []  # noqa: RUF012  (copied for each record)
    """Innermost first."""
    caused_by: list[str] = []  # noqa: RUF012  (copied for each record)
    """What it was raised from or while handling, and the members of a group: one line each."""
    exit_code: int | None = None
    victim: bool = False
    """The exception says that another rank is gone, or did not come."""


class WorkerWarning(FromWorker, type="warning"):
    """A sentence for the user."""

    text: str


class ToWorker(Record, family=True):
    """An agent's message to a worker; the leader writes it."""


class Pause(ToWorker, type="pause"):
    """Hold at the next boundary and answer ``entered``."""


class StopAt(ToWorker, type="stop"):
    """Run through ``step``, save, stop."""

    step: int
    save: bool


class Release(ToWorker, type="release"):
    """Forget a pause: the stop was withdrawn."""


class AskUnit(ToWorker, type="where"):
    """Answer ``at``. The leader asks when nobody progresses, since ``progress`` may be 0.1 s old."""


class SaveAt(ToWorker, type="save_at"):
    """Save at the boundary after unit ``step``, if that is not entered yet."""

    id: int
    step: int


class SaveAgreed(ToWorker, type="save_agreed"):
    """Every rank will save at the boundary after unit ``step``: those that have come to it go on."""

    step: int


class SaveLost(ToWorker, type="save_lost"):
    """The leader will not commit this save: remove its files and go on."""

    step: int
