"""Notifications through apprise: who is told when a run starts, is preempted, fails or ends.

The URLs are secrets: they come from variables passed by name (0600 in the run), go to the helper process over its
standard input, and never appear in arguments, logs or events. apprise takes a quarter of a second to import and speaks
to the network: it lives in a process of its own, so that the leader never waits for it.

A run that is requeued has no time for that (`drain`): what was delivered is an event, ``notified``, and the next attempt tells
what was not (`owed`).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.run.spec import RunSpec
from launcher.slurm.commands import spared

__all__ = ["KINDS", "Notifier", "main", "owed"]

KINDS = ("started", "preempted", "failed", "completed", "cancelled")

_PREEMPTIONS = ("preempted", "preempted_now")
SEND_S = 60.0
"""A message not delivered by then is given up."""
_WHY_S = 4.0
"""`launcher why` reads a few files; the end of a run waits for news of it only so long."""


class Notifier:
    """Tells the job's `notify.urls` what happened, in that order; a failure is a warning, never an error.

    ``told`` is called with the kind of each letter that everybody took; ``past``: the history of earlier attempts.
    """

    def __init__(
        self,
        spec: RunSpec,
        passed: Mapping[str, str],
        warn: Callable[[str], None],
        told: Callable[[str], object] = lambda kind: None,
        past: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._title, self._run_dir = spec.id, spec.run_dir
        self._python = spec.python or sys.executable
        self._on = set(spec.notify.get("on", ()))
        names = spec.notify.get("urls", ())
        self._urls = [passed[n] for n in names if passed.get(n)]
        self._missing = [n for n in names if not passed.get(n)]
        self._warn, self._told = warn, told
        self._delivered = {e.get("kind") for e in past if e["type"] == "notified"}
        self._turn = asyncio.Lock()
        self._over = False
        self._pending: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.subprocess.Process] = set()

    def tell(self, kind: str, text: str, *, once: bool = False) -> None:
        """Send ``text`` if the job asked for this ``kind`` of news; returns at once.

        ``once``: not if this or an earlier attempt has delivered this kind.
        """
        if kind not in self._on or (once and kind in self._delivered):
            return
        for name in self._missing:
            self._warn(f"nobody is told by {name}: the variable was not set at submission")
        self._missing = []
        if not self._urls:
            return
        task = asyncio.get_running_loop().create_task(self._send(kind, text))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def drain(self, limit_s: float) -> None:
        """Wait for what is on its way, at most ``limit_s``; then it is given up, and said."""
        if not self._pending:
            return
        _, late = await asyncio.wait(set(self._pending), timeout=limit_s)
        self._over = True
        for process in self._running:
            _kill(process)
        if late:
            await asyncio.wait(late, timeout=1.0)
            self._warn(f"a notification could not be sent within {limit_s:.0f} s of the end")

    async def _send(self, kind: str, text: str) -> None:
        async with self._turn:
            if not self._over and await self._deliver(kind, text):
                self._delivered.add(kind)
                self._told(kind)

    async def _deliver(self, kind: str, text: str) -> bool:
        """Whether everybody took it; what went wrong is warned of here, unless it was given up by `drain`."""
        try:
            with spared():  # the TERM of a preemption, or of the job's own requeue, is not for the messenger
                process = await asyncio.create_subprocess_exec(
                    self._python,
                    "-m",
                    "launcher.node.sidecars.notify",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                )
        except OSError as error:
            self._warn(f"a notification could not be sent: {error.strerror}")
            return False
        asks = {"run_dir": self._run_dir} if kind == "failed" else {}
        letter = json.dumps({"urls": self._urls, "title": self._title, "body": text, **asks}).encode()
        self._running.add(process)
        try:
            _, err = await asyncio.wait_for(process.communicate(letter), SEND_S)
        except asyncio.TimeoutError:
            _kill(process)
            await process.wait()
            self._warn(f"a notification could not be sent within {SEND_S:.0f} s")
            return False
        finally:
            self._running.discard(process)
        if process.returncode and process.returncode > 0:
            self._warn(
                err.decode(errors="replace").strip().splitlines()[-1] if err.strip() else "a notification failed"
            )
        return process.returncode == 0


def owed(past: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the attempt before was preempted, if it could not deliver that any more; None when nothing is owed."""
    for e in reversed(past):
        if e["type"] == "decision" and e.get("action") == "requeue" and e.get("evidence") in _PREEMPTIONS:
            return str(e.get("reason"))
        if e["type"] == "notified" and e.get("kind") == "preempted":
            return None
        if e["type"] == "attempt_started" or (e["type"] == "submitted" and e.get("by") != "continuation"):
            return None
    return None


def _kill(process: asyncio.subprocess.Process) -> None:
    try:
        process.kill()
    except ProcessLookupError:
        pass


def _sentence(letter: Mapping[str, str]) -> str:
    """What ``launcher why`` says of a failure, where the command line's packages are installed; else the leader's reason."""
    if "run_dir" not in letter:
        return letter["body"]
    words = [sys.executable, "-m", "launcher", "why", letter["run_dir"], "--json"]
    try:
        said = subprocess.run(words, capture_output=True, timeout=_WHY_S, check=True)
        return str(json.loads(said.stdout)["sentence"])
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return letter["body"]


def main() -> int:
    """Send one letter read from standard input; the exit code says whether every address took it."""
    letter = json.load(sys.stdin)
    try:
        import apprise  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        print("notifications need apprise: pip install 'ddp-launcher[notify]'", file=sys.stderr)
        return 1
    sender = apprise.Apprise()
    refused = sum(not sender.add(url) for url in letter["urls"])
    sent = sender.notify(title=letter["title"], body=_sentence(letter))
    if refused or not sent:
        # The URL itself is a secret: only how many failed is said.
        print(
            f"a notification was not delivered ({refused} of {len(letter['urls'])} addresses unknown)", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    done = main()
    sys.stderr.flush()
    os._exit(done)  # what is delivered must be known at once: before a requeue, the next attempt would tell it again
