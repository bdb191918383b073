"""The courier of jobs in containers, as the process that the batch script starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from away import Away

from launcher.slurm import courier
from launcher.slurm.ask_courier import VARIABLE, ask_courier


def test_a_question_that_cannot_be_read_ends_no_courier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's way back depends on it: after nonsense, and after words that are no command of SLURM, it answers still."""
    folder = tmp_path / "courier"
    folder.mkdir()
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
        courier.answer_all(tmp_path)
        with os.scandir(tmp_path) as entries:
            left.append([entry.name for entry in entries])
    assert left == [["ask.1"], ["ask.1"], []]
