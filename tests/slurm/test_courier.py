"""The courier of jobs in containers, as the process that the batch script starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from away import Away

from launcher.run.processes import is_alive
from launcher.slurm import courier
from launcher.slurm.ask_courier import VARIABLE, ask_courier, call_courier

SRUN = """#!/bin/bash
export SLURMD_NODENAME=${1#--nodelist=}
shift 2
"$@" &
echo $! >%s.new && mv %s.new %s
wait
"""
"""Starts its command with that host's name, and notes its process."""
ASKER = """
import sys
from launcher.slurm.ask_courier import ask_courier
for line in sys.stdin:
    print(ask_courier(["scontrol", "--version"], timeout_s=30, environ=None), flush=True)
"""


def until(true: Callable[[], bool]) -> None:
    """Wait until something holds, at most half a minute."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_question_that_cannot_be_read_ends_no_courier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's way back depends on it: after nonsense, and after words that are no command of SLURM, it answers still."""
    folder = tmp_path / "courier"
    folder.mkdir()
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    for name, text in (
        ("a", '{"words": []}'),
        ("b", "[]"),
        ("c", '{"words": ["rm"], "timeout_s": 1, "hidden": false}'),
    ):
        (folder / f"ask.{name}").write_text(text)
    monkeypatch.setenv(VARIABLE, str(folder))
    words = [sys.executable, "-m", "launcher.slurm.courier", str(folder)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as courier:
        try:
            # Folders list their files in any order: the second question is looked for when all that lay beside the first was answered.
            answers = [ask_courier(["scontrol", "--version"], timeout_s=30, environ=None) for _ in range(2)]
        finally:
            courier.kill()
        assert courier.stderr is not None
        said = courier.stderr.read()

    assert None not in answers  # whatever scontrol says here
    assert "ask.a" in said
    assert not list(folder.iterdir())


def test_a_folder_that_does_not_answer_ends_no_courier_and_loses_no_question(tmp_path: Path, away: Away) -> None:
    """Its listing fails once, then the question itself: both are looked at again."""
    question = tmp_path / "ask.1"
    question.write_text("{}")
    away.refuse(tmp_path, times=1)
    away.refuse(question, times=1)

    left = []
    for _ in range(3):
        courier.answer_all(tmp_path, set())
        with os.scandir(tmp_path) as entries:
            left.append([entry.name for entry in entries])
    assert left == [["ask.1"], ["ask.1"], []]


def test_a_host_that_may_come_to_lead_has_a_courier_that_outlives_the_first_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch script's courier dies with its host; that one answers on. A TERM of SLURM's ends it when the agent that asks has ended."""
    folder, noted = tmp_path / "courier", tmp_path / "noted"
    (tmp_path / "srun").write_text(SRUN.replace("%s", str(noted)))
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    words = [sys.executable, "-m", "launcher.slurm.courier", str(folder), str(tmp_path / "srun"), "--overlap"]
    with subprocess.Popen(words) as first:
        until((folder / "n0").is_dir)
        monkeypatch.setenv("SLURMD_NODENAME", "n1")
        monkeypatch.setenv(VARIABLE, str(folder))
        call_courier()
        until(noted.is_file)
        first.kill()
    pid = int(noted.read_text())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", ASKER], text=True, **pipes) as asker:  # type: ignore[call-overload]
        answers = []
        for _ in range(2):
            print("ask", file=asker.stdin, flush=True)
            answers.append(asker.stdout.readline())
            os.kill(pid, signal.SIGTERM)

    assert "None\n" not in answers
    assert list((folder / "n1").iterdir()) == []
    until(lambda: not is_alive(pid, None))


def test_a_courier_that_nobody_has_asked_ends_with_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM ends the job: that courier would hold its host for KillWait."""
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    with subprocess.Popen([sys.executable, "-m", "launcher.slurm.courier", str(tmp_path)]) as one:
        try:
            until((tmp_path / "n1").is_dir)
            one.terminate()
            assert one.wait(timeout=30) == 0
        finally:
            one.kill()
