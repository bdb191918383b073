"""Notifications against a real HTTP server on this machine."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from launcher.run.spec import RunSpec, Work
from launcher.runtime.notify import Notifier


def spec(**notify: Any) -> RunSpec:
    return RunSpec(
        id="demo-1",
        name="demo",
        run_dir="/nowhere",
        work=Work(kind="script", target="x.py"),
        batch="local",
        nodes=1,
        tasks_per_node=1,
        timeout_min=1,
        backend="gloo",
        control_ports=[],
        python=sys.executable,
        notify=notify,
    )


@pytest.fixture
def server():
    """A web hook that keeps what it was sent."""
    letters: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            letters.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield http.server_port, letters
    http.shutdown()
    http.server_close()
    thread.join()


def test_a_wanted_kind_is_delivered(server):
    """A kind that the job asked for reaches the address held in a passed variable; another kind does not."""
    pytest.importorskip("apprise")
    port, letters = server
    warnings: list[str] = []

    async def go() -> None:
        notifier = Notifier(spec(urls=["HOOK"], on=["failed"]), {"HOOK": f"json://127.0.0.1:{port}/x"}, warnings.append)
        notifier.tell("started", "no")
        notifier.tell("failed", "Rank 5 ran out of memory.")
        await notifier.drain(120)

    asyncio.run(go())

    assert [] == warnings
    assert [("demo-1", "Rank 5 ran out of memory.")] == [(x["title"], x["message"]) for x in letters]


def test_a_dead_address_is_a_warning_without_the_secret():
    """What cannot be delivered is said once, and the URL (a secret) is not in the sentence."""
    pytest.importorskip("apprise")
    warnings: list[str] = []

    async def go() -> None:
        notifier = Notifier(spec(urls=["HOOK"], on=["failed"]), {"HOOK": "json://127.0.0.1:9/s3cr3t"}, warnings.append)
        notifier.tell("failed", "x")
        await notifier.drain(120)

    asyncio.run(go())

    assert 1 == len(warnings)
    assert "s3cr3t" not in warnings[0]


def test_an_unset_variable_is_named_once():
    """A variable that was not set at submission is named, once."""
    warnings: list[str] = []

    async def go() -> None:
        notifier = Notifier(spec(urls=["HOOK"], on=["failed"]), {}, warnings.append)
        notifier.tell("failed", "x")
        notifier.tell("failed", "y")

    asyncio.run(go())

    assert ["nobody is told by HOOK: the variable was not set at submission"] == warnings
