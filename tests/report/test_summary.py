"""The state of a run, from its files and SLURM's answer."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
from run_story import T0, Story

from launcher.report.status import lines
from launcher.report.summary import summarise, summarise_history


@dataclass
class Job:
    """SLURM's view."""

    state: str
    reason: str = ""


def training(tmp_path: Path, **spec: object) -> Story:
    """A run that trains on two hosts."""
    story = Story(tmp_path, **spec).submitted().wait(10).begins().wait(5).round_starts().wait(5)
    story.event("first_step", step=1, seconds=5.0)
    ranks = [
        {"rank": r, "host": f"node{1 + r // 2}", "pid": 100 + r, "step_time_s": 0.5 + 0.1 * (r == 3)} for r in range(4)
    ]
    story.wait(60).state(
        step=120, total_steps=600, rate=2.0, world_size=4, nodes=["node1", "node2"], ranks=ranks, allocation_t=T0 + 10,
        spent_s=65.0, metrics={"loss": 0.25},
    )  # fmt: skip
    return story


def test_a_submitted_run_is_pending(tmp_path: Path) -> None:
    """Before its first attempt a run is pending, with SLURM's reason where SLURM answers."""
    h = Story(tmp_path).submitted().history()

    assert summarise_history(h, None, T0 + 5).state == "pending"
    s = summarise_history(h, {"482913": Job("PENDING", "Priority")}, T0 + 5)
    assert (s.state, s.reason, s.job_id, s.attempt, s.submitted) == ("pending", "Priority", "482913", None, T0)


def test_a_training_run_tells_step_speed_and_ranks(tmp_path: Path) -> None:
    """A fresh picture is enough: no question to SLURM is needed."""
    story = training(tmp_path)
    s = summarise(story.paths, None, story.t + 1)

    assert (s.state, s.step, s.total_steps, s.rate, s.eta_s) == ("running", 120, 600, 2.0, 240.0)
    assert (s.attempt, s.round, s.world_size, s.nodes) == (0, 0, 4, ["node1", "node2"])
    assert s.slowest == (3, pytest.approx(0.2))
    assert s.left_here_s == pytest.approx(3600 - 71)
    assert not s.silent


def test_lockstep_blames_nobody_but_the_slow(tmp_path: Path) -> None:
    """Equal step times with jitter name no rank; a rank's own time, without waiting for others, names the one that lags."""

    def slowest(*times: tuple[float, float | None]) -> object:
        story = training(tmp_path / str(len(list(tmp_path.iterdir()))))
        ranks = [{"rank": r, "host": "n", "pid": 1, "step_time_s": t, "own_s": own} for r, (t, own) in enumerate(times)]
        story.state(step=120, world_size=len(times), nodes=["n"], ranks=ranks)
        found = summarise(story.paths, None, story.t)
        assert ("slowest" in "".join(lines(found, story.t))) == (found.slowest is not None)
        return found.slowest

    assert slowest((0.50, None), (0.51, None), (0.49, None), (0.515, None)) is None
    assert slowest((0.50, 0.30), (0.51, 0.31), (0.52, 0.29)) is None
    assert slowest((0.50, 0.30), (0.51, 0.30), (0.49, 0.48)) == (2, pytest.approx(0.6))
    assert slowest((0.0010, 0.0004), (0.0010, 0.0006)) == (1, pytest.approx(0.5))


@pytest.mark.parametrize(
    ("word", "state"),
    [("FAILED", "failed"), ("CANCELLED by 0", "cancelled"), ("NODE_FAIL", "failed"), ("TIMEOUT", "failed"),
     ("OUT_OF_MEMORY", "failed"), ("COMPLETED", "failed"), ("PREEMPTED", "failed"),
     ("PENDING", "pending"), ("REQUEUED", "pending"), ("RUNNING", "running"), ("COMPLETING", "running")],
)  # fmt: skip
def test_a_leader_that_died_silently_is_found_out(tmp_path: Path, word: str, state: str) -> None:
    """With a stale picture SLURM's word decides."""
    story = training(tmp_path)

    assert summarise(story.paths, {"482913": Job(word)}, story.t + 300).state == state


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

    assert summarise(story.paths, {"482913": Job("COMPLETED")}, story.t + 3).state == "running"


def test_the_outcome_decides(tmp_path: Path) -> None:
    """A written outcome is the end, whatever else is stale."""
    story = training(tmp_path).wait(5).outcome("completed", step=600, metrics={"loss": 0.1}, exit_code=0)
    s = summarise(story.paths, {}, story.t + 9999)

    assert (s.state, s.step, s.ended, s.metrics, s.rate) == ("completed", 600, story.t, {"loss": 0.1}, None)


def test_a_resubmitted_run_is_pending_again(tmp_path: Path) -> None:
    """An outcome older than the newest submission is history."""
    story = training(tmp_path).outcome("failed", reason="x").wait(100).submitted(job_id="5", by="resubmit")
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
    story = Story(tmp_path).submitted(backend="local", job_id=None).begins(host=socket.gethostname(), pid=pid)

    summary = summarise(story.paths, None, story.t + 6)
    assert summary.state == "failed"
    assert f"launcher resubmit {story.paths.id}" in summary.reason


def test_a_local_run_whose_process_lives_is_running(tmp_path: Path) -> None:
    """However long it is silent."""
    story = Story(tmp_path).submitted(backend="local").begins(host=socket.gethostname(), pid=os.getpid())

    assert summarise(story.paths, None, story.t + 6000).state == "running"


def test_a_local_run_elsewhere_is_judged_by_its_silence(tmp_path: Path) -> None:
    """A process of another host cannot be looked at: ten minutes of silence are taken for its end."""
    story = Story(tmp_path).submitted(backend="local").begins(host="elsewhere", pid=1)

    assert summarise(story.paths, None, story.t + 500).state == "running"
    assert summarise(story.paths, None, story.t + 700).state == "failed"


def test_missing_hosts_are_named_while_waiting(tmp_path: Path) -> None:
    """Status says for whom the leader waits."""
    story = Story(tmp_path).submitted().begins().wait(95)
    story.state(phase="waiting", missing=[{"host": "node2", "ranks": [2, 3, 4, 5]}])
    s = summarise(story.paths, None, story.t)

    assert "  waiting  for node2 (ranks 2-5), 95 s so far" in lines(s, story.t)


@pytest.mark.parametrize("junk", ["", "{", "null", "[1]", '{"state": 5, "t": "x"}', '{"t": 1e999}', "\x00\x01"])
def test_torn_and_foreign_files_are_survived(tmp_path: Path, junk: str) -> None:
    """Whatever a file holds, a summary comes out and can be printed."""
    for name in ("outcome.json", "state.json", "spec.json", "submission.json", "events.jsonl"):
        story = training(tmp_path / name)
        (story.paths.root / name).write_text(junk)
        assert lines(summarise(story.paths, {}, story.t), story.t)


def test_an_empty_directory_is_a_pending_run(tmp_path: Path) -> None:
    """A run whose files are not there yet is pending, not an error."""
    (tmp_path / "a-1121-0842-k7f").mkdir()
    from launcher.run.paths import RunPaths

    s = summarise(RunPaths(tmp_path / "a-1121-0842-k7f"), None, T0)
    assert (s.state, s.name) == ("pending", "a")


def test_the_summary_of_a_training_run_reads_as_designed(tmp_path: Path) -> None:
    """The lines of ``status``, word by word."""
    story = training(tmp_path)
    s = summarise(story.paths, None, story.t)

    assert lines(s, story.t) == [
        "resnet50-1121-0842-k7f  running  job 482913  attempt 0, round 0",
        "  step     120 of 600 (20 %), 2/s, done in 4 min",
        "  metrics  loss 0.25",
        "  ranks    4 of 4 on node1, node2; slowest rank 3 (+20 %)",
        "  limit    59 min left here; 7 d left in all",
    ]
