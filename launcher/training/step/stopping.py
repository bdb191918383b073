"""The agreed stop, worker's side: which unit was entered, whether it must wait, where all stop, what must be saved when.

Invariant: once a worker has reported that it entered unit e, it begins no unit beyond e until it knows S, and S is the
highest e of all workers. The main thread publishes ``entered``, *then* reads ``hold``; the control thread sets ``hold``,
*then* reads ``entered``. Either the main thread sees the hold, or the report contains the unit it went into: no worker can
be past S, whatever the delays. The control thread answers, also while the main thread is inside a collective.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from launcher.frozen import frozen
from launcher.run.messages import Channel

__all__ = ["Gate", "Stop", "StopTraining", "listen"]


@frozen
class Stop:
    """Run through ``step``, then save into ``tmp`` (unless ``save`` is false) and leave."""

    step: int
    save: bool
    tmp: str | None


class StopTraining(BaseException):
    """Unwinds user code at the agreed stop; a BaseException so that ``except Exception`` lets it pass."""


class Gate:
    """Shared by the main thread (`publish`, `due`, `passes`, `ends_at`) and the control thread (all others)."""

    def __init__(self, entered: int = 0) -> None:
        self.entered = entered
        self.hold = False
        self.stop: Stop | None = None
        self.saves: dict[int, str] = {}
        self._changed = threading.Condition()

    def publish(self, unit: int) -> None:
        """Note that ``unit`` is entered; `due` and `passes` come after it, in this order."""
        self.entered = unit

    def due(self, step: int) -> str | None:
        """Return the folder to save into at the boundary after unit ``step``, when one was asked for."""
        return self.saves.pop(step, None) if self.saves else None

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

    def agree(self, stop: Stop) -> None:
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

    def ask_save(self, step: int, tmp: str) -> bool:
        """Have the main thread save at the boundary after unit ``step``; False when that boundary has passed."""
        self.saves[step] = tmp
        if self.entered <= step:
            return True
        # The boundary lies behind, unless the main thread took the request on its way through.
        return self.saves.pop(step, None) is None


def listen(channel: Channel, gate: Gate, hear: Callable[[dict[str, Any]], None]) -> threading.Thread:
    """Start the control thread: it answers the agent until the agent is gone, then ends the process.

    ``hear`` gets the messages that are not about stopping (``committed``, ``save_lost``).
    """
    thread = threading.Thread(target=_serve, args=(channel, gate, hear), name="launcher-control", daemon=True)
    thread.start()
    return thread


def _serve(channel: Channel, gate: Gate, hear: Callable[[dict[str, Any]], None]) -> None:
    for message in channel.receive():
        _handle(channel, gate, hear, message)
    # A worker without an agent is an orphan: nobody would end it, nobody would commit what it writes.
    os._exit(1)


def _handle(channel: Channel, gate: Gate, hear: Callable[[dict[str, Any]], None], message: dict[str, Any]) -> None:
    kind = message["type"]
    if kind == "pause":
        channel.send("entered", step=gate.pause())
    elif kind == "where":
        channel.send("at", step=gate.entered)
    elif kind == "stop":
        gate.agree(Stop(int(message["step"]), bool(message.get("save", True)), message.get("tmp")))
    elif kind == "release":
        gate.release()
    elif kind == "save_at":
        ok = gate.ask_save(int(message["step"]), str(message["tmp"]))
        channel.send("save_ack", id=message.get("id"), ok=ok)
    else:
        hear(message)
