"""Notifications against a real HTTP server on this machine."""

from __future__ import annotations

import asyncio
import email
import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from harness import submit

from launcher.node.sidecars import notify
from launcher.node.sidecars.notify import Notifier, send_end
from launcher.run.spec import RunSpec, Work


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


def test_an_end_without_a_leader_is_delivered(server, monkeypatch):
    """It is there when this returns: the batch script's last process ends then."""
    pytest.importorskip("apprise")
    monkeypatch.setattr(notify, "_END_S", 120.0)
    port, letters = server
    wants = spec(urls=["HOOK", "UNSET"], on=["cancelled"])

    send_end(wants, {"HOOK": f"json://127.0.0.1:{port}/x"}, "cancelled", "The job was cancelled.")

    assert [("demo-1", "The job was cancelled.")] == [(x["title"], x["message"]) for x in letters]


def test_a_sentence_is_text_in_a_mail():
    """An error's text is not taken for HTML: no picture is loaded from elsewhere, and <class 'int'> is not lost."""
    pytest.importorskip("apprise")
    mail: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as smtp:

        def take() -> None:
            link, _ = smtp.accept()
            with link, link.makefile("rw", newline="\r\n") as file:
                print("220 here", file=file, flush=True)
                while line := file.readline():
                    if line == "data\r\n":
                        print("354 go on", file=file, flush=True)
                        mail.extend(iter(file.readline, ".\r\n"))
                    print("250 yes", file=file, flush=True)

        thread = threading.Thread(target=take)
        thread.start()
        to = f"mailto://127.0.0.1:{smtp.getsockname()[1]}?from=a@example.org&to=b@example.org&mode=insecure"
        message = {
            "urls": [to],
            "title": "x",
            "body": "no <img src=http://evil/x> for <class 'int'>",
            "kind": "failed",
            "run_dir": "/nowhere",
        }
        words = [sys.executable, "-m", "launcher.node.sidecars.notify"]
        subprocess.run(words, input=json.dumps(message), text=True, check=True, timeout=120)
        thread.join()
    letter = email.message_from_string("".join(mail).replace("\r", ""))
    bodies = {
        part.get_content_type(): part.get_payload(decode=True).decode()
        for part in letter.walk()
        if not part.is_multipart()
    }

    assert "<img src" in bodies["text/plain"]
    assert "<class 'int'>" in bodies["text/plain"]
    assert "<img" not in bodies.get("text/html", "")


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


def test_a_message_whose_process_was_killed_is_told(monkeypatch):
    """Where the host has no memory left "failed" is what a user waits for: that it did not go out was told nowhere."""
    warnings: list[str] = []
    begin = asyncio.create_subprocess_exec

    async def killed(*words: str, **how: object) -> asyncio.subprocess.Process:
        process = await begin(*words, **how)
        process.kill()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", killed)

    async def go() -> None:
        notifier = Notifier(spec(urls=["HOOK"], on=["failed"]), {"HOOK": "json://127.0.0.1:9/s3cr3t"}, warnings.append)
        notifier.tell("failed", "x")
        await notifier.drain(120)

    asyncio.run(go())

    assert warnings == ["a notification could not be sent: SIGKILL ended its process"]


def test_an_unset_variable_is_named_once():
    """A variable that was not set at submission is named, once."""
    warnings: list[str] = []

    async def go() -> None:
        notifier = Notifier(spec(urls=["HOOK"], on=["failed"]), {}, warnings.append)
        notifier.tell("failed", "x")
        notifier.tell("failed", "y")

    asyncio.run(go())

    assert ["no notification is sent to HOOK: the variable was not set at submission"] == warnings


FAILS = """
import os, time
while not os.path.exists(os.environ["LAUNCHER_RUN_DIR"] + "/fail"):
    time.sleep(0.05)
raise ValueError('the data are not there')
"""


def test_a_real_run_tells_that_it_started_and_why_it_failed(server, tmp_path, monkeypatch):
    """A script that fails: "started" and "failed" arrive, the latter in the words of ``launcher why``, if that takes no longer than 4 s."""
    pytest.importorskip("apprise")
    port, letters = server
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(FAILS)
    monkeypatch.setenv("HOOK", f"json://127.0.0.1:{port}/t0ken")
    job = {"task": None, "script": "train.py", "code": {"dir": str(tmp_path / "code")}}
    restart = {"max_restarts": 0, "hang_floor_s": 60.0}
    run = submit(tmp_path, {}, 1, backend="local", notify={"urls": ["HOOK"]}, restart=restart, **job)
    run.wait("the first letter", lambda: letters)  # at the end there are 8 s for all that are to be sent
    (run.paths.root / "fail").touch()
    outcome = run.wait_end()
    run.wait_no_process()
    words = [sys.executable, "-m", "launcher", "why", str(run.paths.root), "--json"]
    why = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["sentence"]

    assert "failed" == outcome["state"]
    assert [run.paths.id] * 2 == [letter["title"] for letter in letters]
    assert f"{run.paths.id.rsplit('-', 3)[0]} trains on" in letters[0]["message"]
    assert letters[1]["message"] in (why, outcome["reason"])
    monkeypatch.setattr(notify, "_WHY_S", 120.0)
    assert why == notify._sentence({"run_dir": str(run.paths.root), "body": outcome["reason"]})
    assert "the data are not there" in why


def test_a_hanging_address_holds_the_end_no_longer_than_its_limit(tmp_path, monkeypatch):
    """The hook accepts and never answers: the outcome is written at once, the run's processes leave within the limit."""
    pytest.importorskip("apprise")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as hook:
        monkeypatch.setenv("HOOK", f"json://127.0.0.1:{hook.getsockname()[1]}/t0ken")
        job = {"task": None, "script": "train.py", "code": {"dir": str(tmp_path / "code")}}
        run = submit(tmp_path, {}, 1, backend="local", notify={"urls": ["HOOK"]}, **job)
        outcome = run.wait_end()
        run.wait_no_process()

    assert "completed" == outcome["state"]
    warnings = {e["text"] for e in run.told("warning")}
    assert warnings
    assert all(text.startswith("a notification ") for text in warnings), warnings
