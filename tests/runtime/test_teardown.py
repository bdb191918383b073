"""The batch script's last word: a leader that died without one."""

from __future__ import annotations

import json

import pytest

from launcher.errors import SiteError
from launcher.run import events
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work
from launcher.run.state import read_outcome
from launcher.runtime import fence, teardown
from launcher.runtime.handover import HandedBack, Meaning


class Slurm:
    """An allocation that notes what it is asked."""

    job_id, restart_count, requeues, is_taken = "5", 0, True, False

    def __init__(self, meaning="unknown", answers=True, cancelled=False, refuses=False):
        self._meaning, self._answers, self._cancelled, self._refuses = meaning, answers, cancelled, refuses
        self.said = []

    def meaning(self, signal):
        return Meaning(self._meaning)

    def answers(self):
        return self._answers

    def taken(self):
        return self.is_taken

    def cancelled(self):
        return self._cancelled

    def hand_back(self, *, exclude, delay_s):
        if self._refuses:
            raise SiteError("no")
        self.said.append(("hand_back", delay_s))
        return HandedBack("requeue", "5")

    def pull_forward(self):
        self.said.append("pull_forward")

    def forbid_requeue(self):
        self.said.append("forbid_requeue")


@pytest.fixture
def run(tmp_path):
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=1,
        tasks_per_node=1, timeout_min=5, backend="gloo", control_ports=[20000],
    )  # fmt: skip
    paths = RunPaths(tmp_path)
    fence.claim(paths, job_id="5")
    events.append(paths.events, events.event("attempt_started", attempt=0, job_id="5"))
    return spec, paths


def test_a_leader_that_died_is_requeued(run):
    """No outcome, nothing handed back, the job is running: requeue, StartTime pulled forward, told in the history."""
    slurm = Slurm()

    assert teardown.act(*run, slurm) == 0

    assert slurm.said == [("hand_back", 0.0), "pull_forward"]
    types = [e["type"] for e in events.read(run[1].events)]
    assert types == ["attempt_started", "decision", "attempt_ended", "requeued"]
    assert read_outcome(run[1].outcome) is None


def test_an_outcome_needs_nothing(run):
    """A run that ended is left alone."""
    run[1].outcome.write_text(json.dumps({"state": "completed"}))
    slurm = Slurm()

    assert teardown.act(*run, slurm) == 0
    assert slurm.said == []


@pytest.mark.parametrize(
    ("how", "delay_s", "said"),
    [
        ("requeue", 0.0, ["pull_forward"]),
        ("slurm", 0.0, ["pull_forward"]),
        ("requeue", 60.0, []),
        ("continuation", 0.0, []),
    ],
)
def test_a_run_that_was_handed_back_is_only_hastened(run, how, delay_s, said):
    """The leader's requeue is not repeated; the last process of the job pulls its start forward once more."""
    events.append(run[1].events, events.event("requeued", attempt=0, how=how, job_id="5", delay_s=delay_s))
    slurm = Slurm()

    assert teardown.act(*run, slurm) == 0
    assert slurm.said == said


def test_the_batch_script_pulls_a_requeued_job_forward_last(run):
    """SLURM has taken the job: the script is its last process, and says again when it may start."""
    slurm = Slurm()
    slurm.is_taken = True

    assert teardown.act(*run, slurm) == 0
    assert slurm.said == ["pull_forward"]

    events.append(run[1].events, events.event("requeued", attempt=0, how="requeue", job_id="5", delay_s=60.0))
    teardown.act(*run, slurm)
    assert slurm.said == ["pull_forward"]


def test_a_cancelled_job_is_never_requeued(run):
    """scancel killed the leader: the run ends cancelled."""
    slurm = Slurm(cancelled=True)

    teardown.act(*run, slurm)

    assert slurm.said == ["forbid_requeue"]
    assert read_outcome(run[1].outcome)["state"] == "cancelled"


def test_without_an_answer_of_slurm_nothing_is_done(run, monkeypatch):
    """This host may be cut off and the run may go on elsewhere: no outcome is written."""
    monkeypatch.setattr(teardown, "_UNHEARD_S", 0.0)
    slurm = Slurm(answers=False)

    assert teardown.act(*run, slurm) == 0

    assert slurm.said == []
    assert read_outcome(run[1].outcome) is None


def test_it_is_bounded(run):
    """After as many attempts without progress as restart.max_restarts allows, the run ends failed."""
    spec, paths = run
    for n in range(1, 4):
        events.append(paths.events, events.event("attempt_started", attempt=n, job_id="5"))
        fence.claim(paths, job_id="5")
    slurm = Slurm()
    slurm.restart_count = 3

    teardown.act(spec, paths, slurm)

    assert slurm.said == ["forbid_requeue"]
    assert read_outcome(paths.outcome)["state"] == "failed"


def test_lives_in_which_no_leader_came_up_count_too(tmp_path, run):
    """An interpreter that breaks at import claims no attempt: four such starts end the run."""
    spec, paths = run
    slurm = Slurm()
    slurm.restart_count = 4

    teardown.act(spec, paths, slurm)

    assert slurm.said == ["forbid_requeue"]


def test_a_refusal_is_told(run):
    """SLURM does not take it: failed, with SLURM's words."""
    slurm = Slurm(refuses=True)

    teardown.act(*run, slurm)

    assert "did not take it: no" in read_outcome(run[1].outcome)["reason"]
