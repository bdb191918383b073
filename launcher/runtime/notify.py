"""Notifications through apprise: who is told when a run starts, is preempted, fails or ends.

The URLs are secrets: they come from variables passed by name (0600 in the run), go to the helper process over its
standard input, and never appear in arguments, logs or events. apprise takes a quarter of a second to import and speaks
to the network: it lives in a process of its own, so that the leader never waits for it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Mapping

from launcher.run.spec import RunSpec
from launcher.slurm.commands import spared

__all__ = ["KINDS", "Notifier", "main"]

KINDS = ("started", "preempted", "failed", "completed", "cancelled")

SEND_S = 60.0
"""A message not delivered by then is given up."""
_WHY_S = 4.0
"""`launcher why` reads a few files; the end of a run waits for news of it only so long."""


class Notifier:
    """Tells the job's `notify.urls` what happened; a failure is a warning, never an error."""

    def __init__(self, spec: RunSpec, passed: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._title, self._run_dir = spec.id, spec.run_dir
        self._python = spec.python or sys.executable
        self._on = set(spec.notify.get("on", ()))
        names = spec.notify.get("urls", ())
        self._urls = [passed[n] for n in names if passed.get(n)]
        self._missing = [n for n in names if not passed.get(n)]
        self._warn = warn
        self._pending: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.subprocess.Process] = set()

    def tell(self, kind: str, text: str) -> None:
        """Send ``text`` if the job asked for this ``kind`` of news; returns at once."""
        if kind not in self._on:
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
        if self._pending:
            await asyncio.wait(set(self._pending), timeout=limit_s)
        for process in self._running:
            _kill(process)
            self._warn(f"a notification could not be sent within {limit_s:.0f} s of the end")

    async def _send(self, kind: str, text: str) -> None:
        try:
            with spared():  # the TERM of a preemption, or of the job's own requeue, is not for the messenger
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
        asks = {"run_dir": self._run_dir} if kind == "failed" else {}
        letter = json.dumps({"urls": self._urls, "title": self._title, "body": text, **asks}).encode()
        self._running.add(process)
        try:
            _, err = await asyncio.wait_for(process.communicate(letter), SEND_S)
        except asyncio.TimeoutError:
            _kill(process)
            await process.wait()
            self._warn(f"a notification could not be sent within {SEND_S:.0f} s")
            return
        finally:
            self._running.discard(process)
        if process.returncode and process.returncode > 0:
            self._warn(
                err.decode(errors="replace").strip().splitlines()[-1] if err.strip() else "a notification failed"
            )


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
    sys.exit(main())
