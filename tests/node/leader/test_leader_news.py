"""News of a run that is requeued: each once, in order, whatever the hook does, and the requeue does not wait for it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from an_event import an_event

from launcher.node.allocation.allocation import SignalMeaning
from launcher.node.sidecars.notify import owed


class Hook:
    """A web hook that keeps what it took; it leaves letters without an answer while ``holds``."""

    def __init__(self) -> None:
        self.letters: list[str] = []
        self.asked = 0
        self.holds = False
        self.over = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["message"]
                hook.asked += 1
                if hook.holds:
                    hook.over.wait(300)
                    return
                hook.letters.append(text)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    """A hook whose address is in $HOOK; ends of runs wait for slow machines."""
    pytest.importorskip("apprise")
    made = Hook()
    monkeypatch.setenv("HOOK", f"json://127.0.0.1:{made.server.server_port}/t0ken")
    monkeypatch.setattr("launcher.node.leader.finish._NOTIFY_S", 120.0)
    yield made
    made.over.set()
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


def news(world):
    """A run in real time, since the messengers are processes, that tells of everything."""
    kinds = ["started", "preempted", "failed", "completed", "cancelled"]
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 20}, python=sys.executable,
              notify={"urls": ["HOOK"], "on": kinds})  # fmt: skip
    w.allocation.means = SignalMeaning("preempted")
    w.step_s, w.max_delay_s, w.total_steps = 0.002, 0.002, 10**6
    return w


@pytest.mark.parametrize("hangs", [False, True])
def test_a_preempted_run_tells_everything_once_and_in_order(
    world, hook: Hook, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started, preempted, completed. A hook that hangs when the run is preempted is given up, and asked by the next attempt."""
    w = news(world)
    if not hangs:  # a slow machine's delivery counts, too
        monkeypatch.setattr("launcher.node.leader.finish._LEFT_OVER_S", 120.0)

    async def preempt() -> None:
        await w.until(lambda: bool(w.events("notified")))
        hook.holds = hangs
        w.signal("TERM")

    assert asyncio.run(w.attempt_once(preempt)).state == "requeued"
    left = time.time() - w.events("requeued")[0]["t"]
    assert hook.letters[0] == "sim trains on n0, n1."
    assert not hangs or (len(hook.letters), left < 10.0) == (1, True)  # 1 s, and what a busy machine adds

    hook.holds = False
    w.total_steps = w.events("agreed")[0]["step"] + 5
    assert asyncio.run(w.attempt_once()).state == "completed"
    reason = next(e["reason"] for e in w.events("decision") if e["action"] == "requeue")
    assert len(hook.letters) == 3, hook.letters
    assert hook.letters[1].startswith(reason)
    assert hook.letters[1].endswith("The run continues as attempt 1.") or not hangs
    assert hook.letters[2] == f"All {w.total_steps} steps are done."
    assert [e["kind"] for e in w.events("notified")] == ["started", "preempted"]


DECIDED = an_event("decision", evidence="preempted", action="requeue", reason="It was preempted.")
TOLD = an_event("notified", kind="preempted")
BEGUN = an_event("attempt_started")


@pytest.mark.parametrize(("past", "news"), [
    ([], None),
    ([BEGUN, DECIDED, an_event("requeued")], "It was preempted."),
    ([BEGUN, DECIDED, TOLD, an_event("requeued")], None),
    ([BEGUN, DECIDED, TOLD, BEGUN, DECIDED], "It was preempted."),
    ([BEGUN, DECIDED, BEGUN, an_event("warning")], None),
    ([BEGUN, DECIDED, an_event("submitted", by="continuation")], "It was preempted."),
    ([BEGUN, DECIDED, an_event("submitted", by="resubmit")], None),
    ([BEGUN, an_event("decision", evidence="time_limit", action="requeue")], None),
])  # fmt: skip
def test_only_what_the_attempt_before_could_not_say_is_owed(past: list[dict[str, str]], news: str | None) -> None:
    """A preemption of the newest attempt that nobody has heard of; neither older ones nor other reasons to requeue."""
    assert owed(past) == news
