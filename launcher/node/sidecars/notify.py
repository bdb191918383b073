"""Notifications through apprise, when a run starts, is preempted, fails or ends.

The URLs are secrets: they come from variables passed by name (0600 in the run), go to the sending process over its
standard input, and never appear in arguments, logs or events. apprise takes a quarter of a second to import and uses the
network: it runs in a process of its own, so that the leader never waits for it.

A run that is requeued has no time for that (`drain`): what was delivered is an event, ``notified``, and the next attempt sends
what was not (`owed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from launcher.redact import redact
from launcher.run.children import exit_now
from launcher.run.events import AttemptStarted, Decided, Event, Notified, RunSubmitted
from launcher.run.open_files import as_before
from launcher.run.spec import RunSpec
from launcher.run.units import signal_name
from launcher.slurm.commands import spared

_PREEMPTIONS = ("preempted", "preempted_now")
SEND_S = 60.0
"""A message not delivered by then is dropped."""
_END_S = 8.0
"""A run that ends without a leader waits no longer for its message: its job holds the nodes meanwhile."""
_WHY_S = 4.0
"""`launcher why` reads a few files; the end of a run waits no longer for its sentence."""


class Notifier:
    """Sends what happened to the job's `notify.urls`, in order; a failure is a warning, never an error.

    ``told`` is called with the kind of each notification that every address took; ``past``: the history of earlier attempts.
    """

    def __init__(
        self,
        spec: RunSpec,
        passed: Mapping[str, str],
        warn: Callable[[str], None],
        told: Callable[[str], object] = lambda kind: None,
        past: Sequence[Event] = (),
    ) -> None:
        self._spec = spec
        names = spec.notify.get("urls", ())
        self._urls = [passed[n] for n in names if passed.get(n)]
        self._missing = [n for n in names if not passed.get(n)]
        self._warn, self._told = warn, told
        self._delivered = {e.kind for e in past if isinstance(e, Notified)}
        self._queue: list[tuple[str, str]] = []
        self._sending: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._dropped = False

    def tell(self, kind: str, text: str, *, once: bool = False) -> None:
        """Send ``text`` if the job asked for this ``kind`` of notification; returns at once.

        ``once``: not if this or an earlier attempt has delivered this kind.
        """
        if kind not in self._spec.notify.get("on", ()) or (once and kind in self._delivered):
            return
        for name in self._missing:
            self._warn(f"no notification is sent to {name}: the variable was not set at submission")
        self._missing = []
        if not self._urls:
            return
        self._queue.append((kind, text))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def drain(self, limit_s: float) -> None:
        """Wait for what is being sent, at most ``limit_s``; then drop it, with a warning."""
        if self._sending is None:
            return
        _, late = await asyncio.wait({self._sending}, timeout=limit_s)
        if late:
            self._queue.clear()
            self._dropped = True
            if self._process is not None:
                _kill(self._process)
            await asyncio.wait(late, timeout=1.0)
            self._warn(f"a notification could not be sent within {limit_s:.0f} s of the end")

    async def _send(self) -> None:
        while self._queue:
            kind, text = self._queue.pop(0)
            if await self._deliver(kind, text):
                self._delivered.add(kind)
                self._told(kind)

    async def _deliver(self, kind: str, text: str) -> bool:
        """Return whether every address accepted it; warn of what went wrong, unless `drain` dropped it."""
        try:
            with spared():  # the TERM of a preemption, or of the job's own requeue, must not end this process
                process = self._process = await asyncio.create_subprocess_exec(
                    *_words(self._spec), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
        except OSError as error:
            self._warn(f"a notification could not be sent: {error.strerror}")
            return False
        try:
            _, err = await asyncio.wait_for(process.communicate(_message(self._spec, self._urls, kind, text)), SEND_S)
        except asyncio.TimeoutError:
            _kill(process)
            await process.wait()
            self._warn(f"a notification could not be sent within {SEND_S:.0f} s")
            return False
        if process.returncode and process.returncode > 0:
            said = (err.decode(errors="replace").strip().splitlines() or ["a notification failed"])[-1]
            self._warn(redact(said, self._urls))
        elif process.returncode and not self._dropped:
            self._warn(f"a notification could not be sent: {signal_name(-process.returncode)} ended its process")
        return process.returncode == 0


def send_end(spec: RunSpec, passed: Mapping[str, str], state: str, reason: str) -> None:
    """Send how a run ended that has no leader, if the job asked for that. Never raises; a failure is told nowhere.

    Where this process lacks what the run's own have (outside of their container, say), nothing is sent.
    """
    urls = [passed[n] for n in spec.notify.get("urls", ()) if passed.get(n)]
    if state not in spec.notify.get("on", ()) or not urls:
        return
    try:
        with spared():
            process = subprocess.Popen(
                _words(spec), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**os.environ, **spec.variables, **passed},
            )  # fmt: skip
        with process:
            try:
                process.communicate(_message(spec, urls, state, reason), _END_S)
            except subprocess.TimeoutExpired:
                process.kill()
    except (OSError, ValueError, TypeError):
        return


def _words(spec: RunSpec) -> list[str]:
    return as_before([spec.python or sys.executable, "-m", "launcher.node.sidecars.notify"])


def _message(spec: RunSpec, urls: Sequence[str], kind: str, text: str) -> bytes:
    asks = {"run_dir": spec.run_dir} if kind == "failed" else {}
    return json.dumps({"urls": list(urls), "title": spec.id, "body": text, **asks}).encode()


def owed(past: Sequence[Event]) -> str | None:
    """Return why the previous attempt was preempted, if it could not send that; None when nothing is owed."""
    for e in reversed(past):
        match e:
            case Decided(action="requeue") if e.evidence in _PREEMPTIONS:
                return e.reason
            case Notified(kind="preempted") | AttemptStarted():
                return None
            case RunSubmitted() if e.by != "continuation":
                return None
    return None


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _sentence(message: Mapping[str, str]) -> str:
    """Return what ``launcher why`` says of a failure; the leader's reason where the command line's packages are missing."""
    if "run_dir" in message:
        words = [sys.executable, "-m", "launcher", "why", message["run_dir"], "--json"]
        with contextlib.suppress(OSError, ValueError, KeyError, subprocess.SubprocessError):
            said = subprocess.run(words, capture_output=True, timeout=_WHY_S, check=True)
            return str(json.loads(said.stdout)["sentence"])
    return message["body"]


def main() -> int:
    """Send one message read from standard input; the exit code tells whether every address accepted it."""
    message = json.load(sys.stdin)
    try:
        import apprise  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        print("notifications need apprise: pip install 'ddp-launcher[notify]'", file=sys.stderr)
        return 1
    sender = apprise.Apprise()
    refused = sum(not sender.add(url) for url in message["urls"])
    sent = sender.notify(title=message["title"], body=_sentence(message), body_format=apprise.NotifyFormat.TEXT)
    if refused or not sent:
        # The URL itself is a secret: only the number of invalid ones is printed.
        invalid = f": {refused} of {len(message['urls'])} addresses are invalid" if refused else ""
        print(f"a notification was not delivered{invalid}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    exit_now(main())  # at once: before a requeue, the next attempt would send again what is not known to be delivered
