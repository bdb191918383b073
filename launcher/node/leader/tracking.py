"""Runs the trackers' process beside an attempt: it is told when the attempt ends, and waited for only then."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.slurm.commands import spared


class Tracking:
    """Runs ``launcher.node.sidecars.trackers`` beside an attempt. Nothing here raises; what goes wrong is a warning."""

    def __init__(self, spec: RunSpec, paths: RunPaths, attempt: int, warn: Callable[[str], None]) -> None:
        self._spec, self._paths, self._attempt, self._warn = spec, paths, attempt, warn
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._known = asyncio.Event()
        self.variables: dict[str, str] = {}
        """What a script's workers need to continue the same tracker run."""

    async def start(self) -> None:
        """Start it, where the job wants any tracker."""
        if not self._spec.trackers:
            return
        try:
            self._paths.trackers.mkdir(mode=0o750, exist_ok=True)
            log = os.open(self._paths.trackers / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                with spared():
                    self._process = await asyncio.create_subprocess_exec(
                        self._spec.python or sys.executable,
                        "-m",
                        "launcher.node.sidecars.trackers",
                        str(self._paths.root),
                        str(self._attempt),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        stderr=log,
                        start_new_session=True,
                    )
            finally:
                os.close(log)
        except OSError as error:
            self._warn(f"the trackers could not be started, the run continues without them: {error.strerror or error}")
            return
        self._listening = asyncio.get_running_loop().create_task(self._listen(self._process))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101 (it is a pipe: see start)
        while line := await process.stdout.readline():
            try:
                said: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            if "warning" in said:
                self._warn(str(said["warning"]))
                if str(said["warning"]).startswith("tracker mlflow"):
                    self._known.set()  # it fails: nobody waits for it
            if "variables" in said:
                self.variables.update(said["variables"])
                self._known.set()
        self._known.set()

    async def known(self, limit_s: float) -> None:
        """Until `variables` are known, which takes a server's answer, or ``limit_s`` have passed."""
        if self._process is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._known.wait(), limit_s)

    def end(self, state: str, reason: str) -> None:
        """The attempt's metrics are all written; it ends like this ("requeued": for now)."""
        self._order(order="end", state=state, reason=reason)

    async def drain(self, limit_s: float) -> None:
        """Give it ``limit_s`` to deliver the rest; then it is ended, with everything it has started."""
        process, listening = self._process, self._listening
        if process is None or listening is None:
            return
        await asyncio.wait({listening}, timeout=limit_s)
        if not listening.done():
            self._order(order="late")
            await asyncio.wait({listening}, timeout=1.0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait({listening, asyncio.ensure_future(process.wait())}, timeout=1.0)

    def _order(self, **values: str) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write((json.dumps(values) + "\n").encode())
