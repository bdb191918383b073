"""Runs the trackers' process beside an attempt: it is told when the attempt ends, and waited for only then."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from launcher.node.sidecars.trackers import send_rest
from launcher.opening import open_to_append
from launcher.run.open_files import as_before
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.units import signal_name
from launcher.slurm.commands import spared

_PAUSES_S = (2.0, 30.0, 300.0)
"""Before a process that has died is started again; one that dies a fourth time is left alone."""
_LONG_S = 3600.0
"""One that has lived so long is not said to die again and again: an attempt may take weeks."""
_LATE_S = 1.0
"""A process that is told that time is up says within so long what it has not delivered."""


@dataclass
class Tracking:
    """Runs ``launcher.node.sidecars.trackers`` beside an attempt. Nothing here raises; what goes wrong is a warning."""

    spec: RunSpec
    paths: RunPaths
    attempt: int
    warn: Callable[[str], None]
    mlflow_run_id: str | None = None
    """The tracker run that a script's workers are to continue."""
    _process: asyncio.subprocess.Process | None = None
    _watching: asyncio.Task[None] | None = None
    _known: asyncio.Event = field(default_factory=asyncio.Event)
    _end: dict[str, str] | None = None
    """The order with which the attempt ends."""
    _ending: asyncio.Event = field(default_factory=asyncio.Event)
    _killed: bool = False
    _answered: bool = False
    """It has said something since it was told that time is up."""

    async def start(self) -> None:
        """Start it, where the job wants any tracker."""
        if self.spec.trackers and (process := await self._begin()) is not None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(process))

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Hear it, and start it again where it dies: it may be killed for the memory that training takes."""
        deaths, time = 0, asyncio.get_running_loop().time
        while True:
            began = time()
            await self._listen(process)
            code = await process.wait()
            if code == 0 or self._killed:
                return
            died = f"the trackers' process ended with {signal_name(-code) if code < 0 else f'exit code {code}'}"
            deaths = 0 if time() - began > _LONG_S else deaths
            if deaths == len(_PAUSES_S):
                return self.warn(f"{died}, again and again: `{send_rest(self.paths)}` sends the rest")
            self.warn(f"{died} and is started again; nothing is lost")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _PAUSES_S[deaths])
            deaths += 1
            if self._killed or (again := await self._begin()) is None:
                return
            process = again
            if self._end is not None:
                self._order(self._end)

    async def _begin(self) -> asyncio.subprocess.Process | None:
        """Start the process; None, with a warning, where it cannot be started."""
        try:
            self.paths.trackers.mkdir(mode=0o750, exist_ok=True)
            log = open_to_append(self.paths.trackers / "log", 0o600)
            python = self.spec.python or sys.executable
            words = [python, "-m", "launcher.node.sidecars.trackers", str(self.paths.root), str(self.attempt)]
            try:
                with spared():
                    self._process = await asyncio.create_subprocess_exec(
                        *as_before(words),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        stderr=log,
                        start_new_session=True,
                    )
            finally:
                os.close(log)
        except OSError as error:
            self.warn(f"the trackers could not be started; the run continues without them: {error.strerror or error}")
            return None
        if self._killed:
            self.kill()
        return self._process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101 (it is a pipe: see start)
        while line := await process.stdout.readline():
            try:
                said: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            if "warning" in said:
                self._answered = True
                self.warn(str(said["warning"]))
                if str(said["warning"]).startswith("tracker mlflow"):
                    self._known.set()  # it fails: nobody waits for it
            if "mlflow_run_id" in said:
                self.mlflow_run_id = str(said["mlflow_run_id"])
                self._known.set()
        self._known.set()

    async def known(self, limit_s: float) -> None:
        """Wait until `mlflow_run_id` is known, which takes a server's answer, at most ``limit_s``."""
        if self._process is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._known.wait(), limit_s)

    def end(self, state: str, reason: str) -> None:
        """Tell the trackers how the attempt ends, now that all its metrics are written."""
        self._end = {"order": "end", "state": state, "reason": reason}
        self._ending.set()
        self._order(self._end)

    def kill(self) -> None:
        """Kill it, with everything it has started."""
        self._killed = True
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def drain(self, limit_s: float) -> None:
        """Give it ``limit_s`` to deliver the rest; then kill it, with everything it has started."""
        if (watching := self._watching) is None:
            return
        await asyncio.wait({watching}, timeout=limit_s)
        if not watching.done():
            self._answered = False
            self._order({"order": "late"})
            await asyncio.wait({watching}, timeout=_LATE_S)
            if not (watching.done() or self._answered):  # it still starts, or a busy node does not let it run
                self.warn(f"the trackers may not have received all metrics: `{send_rest(self.paths)}` sends the rest")
        self.kill()
        await asyncio.wait({watching}, timeout=1.0)

    def _order(self, values: dict[str, str]) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write((json.dumps(values) + "\n").encode())
