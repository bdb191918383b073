"""Which state a run is in: by its outcome, SLURM's word, or its process."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from run_story import Story, summarise, training

from launcher.report.model import verdict
from launcher.slurm.jobs import ENDED, JobView


def job(state: str) -> JobView:
    """SLURM's view."""
    return JobView(job_id="482913", state=state)


def local(root: Path, host: str, pid: object) -> Story:
    """A run without SLURM whose process is ``pid`` of ``host``."""
    story = Story(root).submitted(backend="local", job_id=str(pid)).begins(host=host)
    story.paths.submission.write_text(json.dumps({"backend": "local", "host": host, "pid": pid}))
    return story


@pytest.mark.parametrize(
    ("word", "state"),
    [("FAILED", "failed"), ("CANCELLED", "cancelled"), ("NODE_FAIL", "failed"), ("TIMEOUT", "failed"),
     ("OUT_OF_MEMORY", "failed"), ("COMPLETED", "failed"), ("PREEMPTED", "failed"),
     ("PENDING", "pending"), ("REQUEUED", "pending"), ("RUNNING", "running"), ("COMPLETING", "running")],
)  # fmt: skip
def test_a_leader_that_died_silently_is_found_out(tmp_path: Path, word: str, state: str) -> None:
    """With a stale picture SLURM's word decides."""
    story = training(tmp_path)

    assert summarise(story.paths, {"482913": job(word)}, story.t + 300).state == state


def test_a_silent_leader_that_slurm_forgot_has_failed(tmp_path: Path) -> None:
    """SLURM answers and does not know the job: nothing runs any more; without an answer it stays open, marked."""
    story = training(tmp_path)
    gone, unknown = summarise(story.paths, {}, story.t + 300), summarise(story.paths, None, story.t + 300)

    assert (gone.state, gone.ended) == ("failed", story.t)
    assert "died" in gone.reason
    assert (unknown.state, unknown.silent) == ("running", True)


def test_a_fresh_picture_outranks_slurms_delay(tmp_path: Path) -> None:
    """A job that just ended may be COMPLETED in SLURM before the outcome is visible here."""
    story = training(tmp_path)

    assert summarise(story.paths, {"482913": job("COMPLETED")}, story.t + 3).state == "running"


def test_the_outcome_decides(tmp_path: Path) -> None:
    """A written outcome is the end, whatever else is stale."""
    story = training(tmp_path).wait(5).outcome("completed", step=600, metrics={"loss": 0.1}, exit_code=0)
    s = summarise(story.paths, {}, story.t + 9999)

    assert (s.state, s.step, s.ended, s.metrics, s.rate) == ("completed", 600, story.t, {"loss": 0.1}, None)


def test_a_resubmitted_run_is_pending_again(tmp_path: Path) -> None:
    """Who submits a run again takes its outcome away; the ``ended`` of before is history."""
    story = training(tmp_path).outcome("failed", reason="x")
    story.paths.outcome.unlink()
    story.wait(100).submitted(job_id="5", by="resubmit")
    s = summarise(story.paths, None, story.t + 1)

    assert (s.state, s.job_id, s.ended, s.nodes) == ("pending", "5", None, [])


def test_a_requeued_run_is_pending_again(tmp_path: Path) -> None:
    """Between two attempts a run is pending."""
    story = training(tmp_path).event("requeued", how="requeue", job_id="482913", seconds=1.0).event("attempt_ended")

    assert summarise(story.paths, None, story.t + 30).state == "pending"


def test_a_local_run_whose_process_is_gone_has_failed(tmp_path: Path) -> None:
    """On this host the leader's process is looked at; nobody starts it again but the user, who is told how."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    story = local(tmp_path, socket.gethostname(), pid)

    summary = summarise(story.paths, None, story.t + 6)
    assert summary.state == "failed"
    assert f"launcher resubmit {story.paths.id}" in summary.reason


def test_a_local_run_whose_process_lives_is_running(tmp_path: Path) -> None:
    """However long it is silent."""
    story = local(tmp_path, socket.gethostname(), os.getpid())

    assert summarise(story.paths, None, story.t + 6000).state == "running"


@pytest.mark.parametrize("pid", [None, "x", 0, -1, 10**30])
def test_a_local_run_of_a_damaged_submission_is_judged_by_its_silence(tmp_path: Path, pid: object) -> None:
    """No process has such an id: what the files say of the run stays true, and nothing is raised."""
    story = local(tmp_path, socket.gethostname(), pid)

    assert summarise(story.paths, None, story.t + 300).state == "running"
    assert summarise(story.paths, None, story.t + 700).state == "failed"


def test_a_local_run_elsewhere_is_judged_by_its_silence(tmp_path: Path) -> None:
    """A process of another host cannot be looked at: ten minutes of silence are taken for its end."""
    story = local(tmp_path, "elsewhere", 1)

    assert summarise(story.paths, None, story.t + 500).state == "running"
    assert summarise(story.paths, None, story.t + 700).state == "failed"


def test_every_terminal_state_of_slurm_has_a_sentence() -> None:
    """What SLURM's room counts as terminal is what a run without an outcome is explained by: no state is in one table alone."""
    assert set(verdict._DEAD) == ENDED
