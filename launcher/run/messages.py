"""What a worker and its agent say to each other: one JSON object per line over a socket pair.

The worker finds its end's file descriptor in ``LAUNCHER_WORKER_FD``. ``runtime`` and ``training`` meet here only.

Worker → agent (the agent forwards each to the leader with ``round`` and ``rank``):

hello      pid
phase      name: "starting"|"init"|"setup"|"load"|"train"|"between"|"evaluate"|"save"|"teardown"|"script"
ready      the process group is up (collectives work)
attached   a script called ``launcher.attach``: it is told to stop by ``pause`` and ``stop`` from now on, and hears no signal
handles_usr2               a script has set a handler of its own for SIGUSR2: what ends it after that signal was a stop
over       code            a script has ended, its threads and exit functions too; what is left is Python's own shutdown
progress   step (optimizer steps done), epoch, epochs, samples, total_steps, step_time_s, wait_s (of it, waiting for other
           ranks; null when unknown), t; at most ~10 per second, and always the first and last step of a round
metrics    step, epoch, metrics {name: number}
evaluated  step, metrics
epoch      step, epoch, loss
entered    step            answer to pause: the highest unit this worker has entered (see DESIGN, agreed stop)
at         step            answer to where: the highest unit this worker has entered, exactly; nothing is held
save_ack   id, ok          answer to save_at: ok is false when the unit was entered already
save_begun step, tmp
shard      step, tmp, files [{name, size, hash}], seconds, blocked_s, hash_name ("xxh3_64"|"sha256"), meta {}, last
           (this rank's part is durable; last: saved at the end of all work, or at a script's end, whatever ended it)
save_failed step, tmp, error, errno (number or null), permanent (it would fail again: the state, not the disk), last (tried again at once)
stopped    step            the worker stopped at the agreed step, its last shard is durable (or save was false)
finished   step            all work is done; the last shard is durable
failed     exception, message, frames [{file, line, function, code}], step, kind   (see CAUSE in launcher.run.events)
warning    text
digest     step, parts {name: hex}    rehearsals: digest of each part of the state

With ``checkpoint.interval_steps`` the workers of tasks and functions save by themselves at its multiples, and always after
the last step (``save_begun`` names the folder, made as ``RunPaths.checkpoint_tmp``): the leader need not ask. A worker told
to stop at the step it was started from (nothing done since) sends ``stopped`` without saving. Evaluation ends by entering
the next unit, so that its reductions have an agreed place; after the last one, ``entered`` may be N + 1.
``failed`` has one more key: ``victim``, true when the exception says that another rank's connection was lost.
``stopped`` has one more: ``saved``, false when nothing was written (or writing failed).

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
``{"port": n}`` and a newline to, and whose end of file ends it).

A fork server should preload the module ``launcher.training.start.preload`` (torch and everything torch and workers would import later:
saves 1 to 3 s per worker and start); it starts no thread.

Agent → worker:

pause      hold at the next boundary and answer ``entered``
stop       step (S), save (bool), tmp (directory to save into)       run through S, save, stop
release    forget a pause (the stop was withdrawn)
where      answer ``at``: asked of everybody when nobody progresses, since ``progress`` may lie up to 0.1 s behind
save_at    id, step, tmp                        save at the boundary after unit ``step`` if not entered yet
committed  step, path, tmp                      the leader committed this checkpoint
save_lost  step, tmp                            the leader will not commit it: clean up, go on
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

__all__ = [
    "FD_VARIABLE",
    "NOT_REGISTERED",
    "UNORDERED",
    "UNRESTORED",
    "UNSAFE_LOAD",
    "UNSAFE_LOAD_CODE",
    "Channel",
    "decode_lines",
    "encode",
]

FD_VARIABLE = "LAUNCHER_WORKER_FD"
UNSAFE_LOAD = "--unsafe-load"
"""The option of ``resubmit`` by which checkpoints of older versions may be unpickled in full."""
UNSAFE_LOAD_CODE = f"--code {UNSAFE_LOAD}"
"""The same with code that was corrected for it."""
NOT_REGISTERED = "not registered, so not resumed: "
"""How a rehearsal's warning begins that names what user code forgot."""
UNORDERED = (
    "a resume will differ in the last bits: DistributedDataParallel adds up the gradients of its first step in another "
    "order than those of later steps"
)
"""How the warning of a model begins whose buckets could not be brought into their final order."""
UNRESTORED = (
    "random numbers do not go on where the checkpoint left them: loop over run.steps(), "
    "or call run.restore_rng() right before the first step"
)
"""The warning of a resumed loop that restored nothing."""


def encode(message: dict[str, Any]) -> bytes:
    """One message as one line. Non-finite numbers go as Python's json writes them (both ends are Python)."""
    return (json.dumps(message, separators=(",", ":"), default=str) + "\n").encode()


def decode_lines(buffer: bytearray) -> Iterator[dict[str, Any]]:
    """Take every whole line out of ``buffer``; lines that are no JSON object are dropped."""
    while (end := buffer.find(b"\n")) >= 0:
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            yield value


class Channel:
    """The worker's end: blocking, safe to send on from any thread. A child that the worker forks has nothing to say on it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def send(self, type_: str, **values: Any) -> None:
        """Send one message; a dead agent is not this function's business (the reader sees the end)."""
        if os.getpid() != self._pid:
            return
        data = encode({"type": type_, **values})
        with self._lock:
            try:
                self._sock.sendall(data)
            except OSError:
                pass

    def receive(self) -> Iterator[dict[str, Any]]:
        """Messages until the agent is gone."""
        while True:
            yield from decode_lines(self._buffer)
            try:
                data = self._sock.recv(65536)
            except OSError:
                return
            if not data:
                return
            self._buffer += data
