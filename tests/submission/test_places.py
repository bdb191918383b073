"""Where a run is, asked on a host whose clock is not the leader's, or was set since."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from an_event import an_event
from squeue import squeue_line

from launcher.run import event_lines
from launcher.run.paths import RunPaths
from launcher.run.spec import RestartSpec, RunSpec, Work
from launcher.slurm import handback, later_jobs
from launcher.slurm.commands import Answer
from launcher.submission import liveness, submit
from launcher.submission.liveness import ended, locate

HOUR = 3600.0


def told(paths: RunPaths, t: float, type_: str, **values: object) -> None:
    """One event by some clock."""
    event_lines.append(paths.events, an_event(type_, t=t, attempt=0, **values))


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
def test_the_job_is_the_newest_of_the_last_submission(tmp_path: Path, wrong: float) -> None:
    """The leader's clock is an hour wrong: a cancel still reaches the continuation, and no job of a submission before."""
    paths, now = RunPaths(tmp_path), time.time()
    told(paths, now - 100 + wrong, "attempt_started", job_id="41")
    told(paths, now, "submitted", by="resubmit")
    paths.submission.write_text(json.dumps({"backend": "slurm", "job_id": "42", "submitted_t": now}))
    assert locate(paths).job_id == "42"

    told(paths, now + 5 + wrong, "attempt_started", job_id="42")
    told(paths, now + 9 + wrong, "requeued", how="continuation", job_id="43")
    assert locate(paths).job_id == "43"


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
def test_a_local_run_is_not_taken_for_dead_when_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """The kernel says then that it booted an hour earlier or later. The process that was noted at the submission is the same."""
    paths = RunPaths(tmp_path)
    plan = SimpleNamespace(
        backend="local", place=SimpleNamespace(root=str(tmp_path)), interpreter=SimpleNamespace(path="python"), base_dir="",
        submit_dir="",
        code=SimpleNamespace(root=""), link=(),
    )  # fmt: skip
    entry = submit.submission_entry(plan, str(os.getpid()), by="submit")  # type: ignore[arg-type]
    assert entry["host"] == socket.gethostname()
    paths.submission.write_text(json.dumps(entry))
    booted = psutil.boot_time()

    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: booted + wrong)

    assert locate(paths).alive()


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_job_id_that_slurm_gave_away_again_is_one_runs_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    """An old run and a running one were submitted under the same id: the running one has not ended, in whatever order."""
    runs = [RunPaths(tmp_path / name) for name in ("new-1121-0842-k7f", "old-1120-0842-abc")]
    for paths in runs:
        paths.root.mkdir()
        paths.submission.write_text(json.dumps({"backend": "slurm", "job_id": "42", "job_name": paths.id}))
    monkeypatch.setattr(liveness, "_squeue", lambda *_: squeue_line("42", "RUNNING", runs[0].id, o="/x/submit.sbatch"))
    places = [locate(paths) for paths in (runs if newest_first else runs[::-1])]

    assert ended(places) == {runs[1].id}


@pytest.mark.parametrize("early", [True, False])
def test_the_held_job_of_the_next_attempt_is_withdrawn_and_the_runs_own_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """The run's own job may be held, too: it is cancelled by what comes after, which writes the outcome. Other runs have no such job."""
    paths, asked = RunPaths(tmp_path), []

    def ask(*words: str, **_: object) -> Answer:
        asked.append(words)
        return Answer(words, 0, "42|JobHeldUser|r\n43|JobHeldUser|r\n44|Priority|r\n45|JobHeldUser|other\n")

    for module in (handback, later_jobs):
        monkeypatch.setattr(module, "ask", ask)
    paths.submission.write_text(json.dumps({"backend": "slurm", "job_id": "42", "submitted_t": time.time()}))
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=1, tasks_per_node=1,
        timeout_min=5, backend="gloo", restart=RestartSpec(queue_early=early),
    )  # fmt: skip
    spec.write(paths.spec)

    liveness.withdraw_early(paths)

    assert [words for words in asked if words[0] == "scancel"] == ([("scancel", "43")] if early else [])
    assert bool(asked) is early
