"""A leader may open many files; the programs that it and its agent start may not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.run import open_files

SOFT = 300
"""No process here has it by chance."""
STARTS = """
import asyncio, json, os, resource, sys
from pathlib import Path
from launcher.node.agent.reruns import _after_setup
from launcher.node.forkserver.client import ForkServer
from launcher.node.leader.tracking import Tracking
from launcher.node.sidecars.notify import Notifier, send_end
from launcher.run.open_files import raise_limit
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work
from launcher.slurm.later_jobs import submit_continuation

folder = Path.cwd()
told = {"urls": ["HOOK"], "on": ["failed"]}
spec = RunSpec(id="r", name="r", run_dir=str(folder), work=Work(kind="script", target="x.py"), batch="local", nodes=1,
               tasks_per_node=1, timeout_min=1, backend="gloo", python=str(folder / "program"), notify=told, trackers={"mlflow": {}})
raise_limit()

async def main():
    assert submit_continuation("job.sbatch", "5", name="r", environ=os.environ).job_id == "6"
    notifier = Notifier(spec, {"HOOK": "json://x"}, print)
    notifier.tell("failed", "x")
    await notifier.drain(60)
    send_end(spec, {"HOOK": "json://x"}, "failed", "x")
    tracking = Tracking(spec, RunPaths(folder), 0, print)
    await tracking.start()
    await tracking.drain(60)
    await _after_setup([f"{folder}/program setup"], os.environ, [])
    server, ended = ForkServer(preload=["json"], environ=dict(os.environ)), asyncio.Event()
    server.start()
    await server.fork("w", 0, "work:report", [os.open("log", os.O_WRONLY | os.O_CREAT)], lambda _: ended.set(), cwd=str(folder), env={})
    await ended.wait()
    await server.stop()

asyncio.run(main())
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
PROGRAM = """#!/bin/sh
case "$0 $*" in
    *squeue*) exit ;;
    *sbatch*) name=sbatch; echo 6 ;;
    *notify*) name=notify ;;
    *trackers*) name=trackers ;;
    *setup*) name=setup ;;
esac
echo "$name $(ulimit -S -n)" >>seen
"""
WORK = """
import resource
def report():
    print("worker", resource.getrlimit(resource.RLIMIT_NOFILE)[0], file=open("seen", "a"))
"""


def said_by(*words: str, **how: Any) -> str:
    """What a command prints that is started with the limit `SOFT`."""
    done = subprocess.run(["prlimit", f"--nofile={SOFT}:", *words], capture_output=True, text=True, timeout=120, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_leader_starts_has_the_limit_as_it_was(tmp_path: Path) -> None:
    """sbatch, the notifier (of a run without a leader, too), the trackers, a rerun's setup and the workers; the leader's own is higher."""
    (tmp_path / "program").write_text(PROGRAM)
    (tmp_path / "program").chmod(0o755)
    for name in ("sbatch", "squeue"):
        (tmp_path / name).symlink_to("program")
    (tmp_path / "work.py").write_text(WORK)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path)}

    own = int(said_by(sys.executable, "-c", STARTS, cwd=tmp_path, env=env))

    programs = ["sbatch", "notify", "notify", "trackers", "setup", "worker"]
    assert (tmp_path / "seen").read_text().splitlines() == [f"{name} {SOFT}" for name in programs]
    assert own > SOFT


def test_a_program_finds_all_else_as_it_would(tmp_path: Path) -> None:
    """Blocked signals, and variables that a shell between would drop: those of exported functions (``module``)."""
    text = (
        "import json, os, signal, subprocess, sys; from launcher.run import open_files; open_files.raise_limit()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "code = 'import json, os, signal; print(json.dumps([dict(os.environ), sorted(signal.pthread_sigmask(0, []))]))'\n"
        "words = [sys.executable, '-c', code]\n"
        "print(*(subprocess.check_output(w, text=True) for w in (words, open_files.as_before(words))), sep='', end='')"
    )
    env = {**os.environ, "BASH_FUNC_module%%": "() { :; }", "LC_ALL": "C"}

    plain, wrapped = map(json.loads, said_by(sys.executable, "-c", text, env=env).splitlines())

    assert wrapped == plain
    assert "BASH_FUNC_module%%" in wrapped[0]
    assert wrapped[1] == [signal.SIGTERM]


@pytest.mark.parametrize("raised", [True, False])
def test_a_program_that_is_missing_is_missing(monkeypatch: pytest.MonkeyPatch, raised: bool) -> None:
    """In a container SLURM's commands are missing, which has the batch script's courier asked for them: prlimit's own words would not."""
    limit = open_files.BEFORE + raised
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda which: (limit, limit))

    with pytest.raises(FileNotFoundError):
        subprocess.run(open_files.as_before(["no-such-program"]), check=True)


def test_without_prlimit_programs_are_started_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container of another system may lack it: no notification is lost for a limit."""
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda which: (open_files.BEFORE + 1,) * 2)
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)

    assert open_files.as_before(["program", "word"]) == ["program", "word"]
