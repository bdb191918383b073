"""Notifications through apprise: who is told when a run starts, is preempted, fails or ends.

The URLs are secrets: they come from variables passed by name (0600 in the run), go to the helper process over its
standard input, and never appear in arguments, logs or events. apprise takes a quarter of a second to import and speaks
to the network: it lives in a process of its own, so that the leader never waits for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping

from launcher.run.spec import RunSpec

__all__ = ["KINDS", "Notifier", "main"]

KINDS = ("started", "preempted", "failed", "completed", "cancelled")

SEND_S = 60.0
"""A message not delivered by then is given up."""


class Notifier:
    """Tells the job's `notify.urls` what happened; a failure is a warning, never an error."""

    def __init__(self, spec: RunSpec, passed: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._title = spec.id
        self._python = spec.python or sys.executable
        self._on = set(spec.notify.get("on", ()))
        names = spec.notify.get("urls", ())
        self._urls = [passed[n] for n in names if passed.get(n)]
        self._missing = [n for n in names if not passed.get(n)]
        self._warn = warn
        self._pending: set[asyncio.Task[None]] = set()

    def tell(self, kind: str, text: str) -> None:
        """Send ``text`` if the job asked for this ``kind`` of news; returns at once."""
        if kind not in self._on:
            return
        for name in self._missing:
            self._warn(f"nobody is told by {name}: the variable was not set at submission")
        self._missing = []
        if not self._urls:
            return
        task = asyncio.get_running_loop().create_task(self._send(text))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def drain(self, limit_s: float) -> None:
        """Wait for what is on its way, at most ``limit_s``."""
        if self._pending:
            await asyncio.wait(set(self._pending), timeout=limit_s)

    async def _send(self, text: str) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                self._python,
                "-m",
                "launcher.runtime.notify",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            self._warn(f"a notification could not be sent: {error.strerror}")
            return
        letter = json.dumps({"urls": self._urls, "title": self._title, "body": text}).encode()
        try:
            _, err = await asyncio.wait_for(process.communicate(letter), SEND_S)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()
            self._warn(f"a notification could not be sent within {SEND_S:.0f} s")
            return
        if process.returncode:
            self._warn(
                err.decode(errors="replace").strip().splitlines()[-1] if err.strip() else "a notification failed"
            )


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
    sent = sender.notify(title=letter["title"], body=letter["body"])
    if refused or not sent:
        # The URL itself is a secret: only how many failed is said.
        print(
            f"a notification was not delivered ({refused} of {len(letter['urls'])} addresses unknown)", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
