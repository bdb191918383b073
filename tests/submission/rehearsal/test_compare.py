"""The comparison of a rehearsal's two final states: by the job's Python, in the environment that agents have."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import LauncherError
from launcher.submission.rehearsal import rehearse

ENVIRON = {"LD_LIBRARY_PATH": "/opt/cuda/lib64", "PYTHONPATH": "/home/ann/lib", "SLURM_JOB_ID": "7", "RANK": "0"}


@pytest.fixture
def run(tmp_path: Path) -> rehearse.RehearsedRun:
    """A run with a checkpoint."""
    (tmp_path / "checkpoints" / "step-00000008").mkdir(parents=True)
    return rehearse.RehearsedRun(str(tmp_path), 8, None, None, None, None, None, None, (), True)


def test_it_has_the_environment_of_the_agents(run: rehearse.RehearsedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python of a module needs LD_LIBRARY_PATH; the run's own launcher comes first; no outer job's variables."""
    told: dict[str, Any] = {}

    def answer(words: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        told.update(kwargs)
        return subprocess.CompletedProcess(words, 0, '[{"model": "1"}]', "")

    monkeypatch.setattr(rehearse.subprocess, "run", answer)
    monkeypatch.setattr(os, "environ", ENVIRON)
    (done,) = rehearse._digested([run], "python")

    assert done.digests == {"model": "1"}
    assert told["env"] == {"LD_LIBRARY_PATH": "/opt/cuda/lib64", "PYTHONPATH": f"{run.run_dir}/lib:/home/ann/lib"}


FAILURES = {
    "FileNotFoundError: gone": FileNotFoundError("FileNotFoundError: gone"),
    "timed out after 600.0 seconds": subprocess.TimeoutExpired("python", 600.0),
    "last words": subprocess.CompletedProcess("python", 1, "", "first\nlast words\n"),
}


@pytest.mark.parametrize("why", FAILURES)
def test_a_comparison_that_fails_is_one_sentence(
    run: rehearse.RehearsedRun, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Whether the Python cannot be started, hangs, or ends with an error."""

    def fail(*_: Any, **__: Any) -> Any:
        result = FAILURES[why]
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(rehearse.subprocess, "run", fail)
    with pytest.raises(LauncherError, match=f"^the two states could not be compared: .*{why}"):
        rehearse._digested([run], "python")
