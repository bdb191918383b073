"""The agreed stop, worker's side: which unit was entered, whether it must wait, where all stop, what must be saved when.

Invariant: once a worker has reported that it entered unit e, it begins no unit beyond e until it knows S, and S is the
highest e of all workers. The main thread publishes ``entered``, *then* reads ``hold``; the control thread sets ``hold``,
*then* reads ``entered``. Either the main thread sees the hold, or the report contains the unit it went into: no worker can
be past S, whatever the delays. The control thread answers, also while the main thread is inside a collective.
"""

from __future__ import annotations

import os
import sys
import threading

from launcher.run.message_lines import MessageReader
from launcher.run.messages import (
    AskUnit,
    Pause,
    Release,
    SaveAgreed,
    SaveAt,
    SaveLost,
    StopAt,
    ToWorker,
    WorkerAt,
    WorkerEntered,
    WorkerSaveAck,
)
from launcher.training.checkpoint import write
from launcher.training.process.collectives import collectives_started
from launcher.training.process.place import WorkerPlace
from launcher.training.process.waits import waits_for_ranks


class StopTraining(BaseException):
    """Unwinds user code at the agreed stop; a BaseException so that ``except Exception`` lets it pass."""


class Gate:
    """Shared by the main thread (`publish`, `due`, `passes`, `ends_at`) and the control thread (all others)."""

    def __init__(self, entered: int = 0) -> None:
        self.entered = entered
        self.hold = False
        self.stop: StopAt | None = None
        self.saves: set[int] = set()
        self.lost: set[int] = set()
        """Steps whose saves were given up, and removed."""
        self._agreed: set[int] = set()
        self._changed = threading.Condition()

    def publish(self, unit: int) -> None:
        """Note that ``unit`` is entered; `due` and `passes` come after it, in this order."""
        self.entered = unit

    def due(self, step: int) -> bool:
        """Return whether to save at the boundary after unit ``step``: every rank was asked for that and will.

        Waits until that is known: what user code saves by, and the gathering of distributed state, are collectives.
        """
        if step not in self.saves:
            return False
        with self._changed:
            while step in self.saves and step not in self._agreed:
                self._changed.wait()
            self._agreed.discard(step)
            return self._forget(step)

    def passes(self, unit: int) -> bool:
        """Whether ``unit`` may begin; waits for the agreed step when held. False: stop now, before it."""
        if not self.hold:
            return True
        with self._changed:
            while self.hold and self.stop is None:
                self._changed.wait()
            return self.stop is None or unit <= self.stop.step

    def ends_at(self, done: int) -> bool:
        """Whether all stop after unit ``done``: code after it (evaluation) may end at once, on every rank."""
        stop = self.stop
        return stop is not None and stop.step <= done

    def pause(self) -> int:
        """Hold the main thread at its next boundary; returns the highest unit it has entered."""
        self.hold = True
        return self.entered

    def agree(self, stop: StopAt) -> None:
        """Take the leader's decision: all stop after the same unit."""
        with self._changed:
            self.stop = stop
            self.hold = True
            self._changed.notify_all()

    def release(self) -> None:
        """Forget a pause: the stop was withdrawn."""
        with self._changed:
            self.hold = False
            self.stop = None
            self._changed.notify_all()

    def ask_save(self, step: int) -> bool:
        """Have the main thread save at the boundary after unit ``step``; False when that boundary has passed."""
        self.saves.add(step)
        if self.entered <= step:
            return True
        # The boundary lies behind, unless the main thread took the request on its way through.
        return not self.lose_save(step)

    def agree_save(self, step: int) -> None:
        """Take the leader's word: every rank saves at ``step``."""
        with self._changed:
            if step in self.saves:
                self._agreed.add(step)
            self._changed.notify_all()

    def lose_save(self, step: int) -> bool:
        """Forget a request to save; false when the main thread has taken it."""
        with self._changed:
            was_there = self._forget(step)
            self._agreed.discard(step)
            self._changed.notify_all()
        return was_there

    def _forget(self, step: int) -> bool:
        """Take a request to save away; False when there is none."""
        was_there = step in self.saves
        self.saves.discard(step)
        return was_there


def listen(place: WorkerPlace, gate: Gate) -> None:
    """Start the control thread: it answers the agent until the agent has ended, then ends the process."""
    args = (place, gate)
    threading.Thread(target=_serve, args=args, name="launcher-control", daemon=True).start()


def _serve(place: WorkerPlace, gate: Gate) -> None:
    reader = MessageReader(ToWorker, lambda text: print(text, file=sys.stderr, flush=True))
    for values in place.channel.receive():
        if (message := reader.read(values)) is not None:
            _handle(place, gate, message)
    # A worker without an agent is an orphan: nobody would end it, nobody would commit what it writes.
    os._exit(1)


def _handle(place: WorkerPlace, gate: Gate, message: ToWorker) -> None:
    channel = place.channel
    match message:
        case Pause():
            channel.send(WorkerEntered(step=gate.pause()))
        case AskUnit():
            channel.send(WorkerAt(step=gate.entered, waits=waits_for_ranks(), collectives=collectives_started()))
        case StopAt():
            gate.agree(message)
        case Release():
            gate.release()
        case SaveAt():
            channel.send(WorkerSaveAck(id=message.id, ok=gate.ask_save(message.step)))
        case SaveAgreed():
            gate.agree_save(message.step)
        case SaveLost():
            gate.lose_save(message.step)
            shared = [write.SHARED] if place.rank == 0 else []
            write.remove_files(place.tmp(message.step), [write.rank_file(place.rank), *shared])
            gate.lost.add(message.step)  # only now: who finds it there writes these files anew
