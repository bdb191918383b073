"""A run that its user has cancelled never comes back, whatever slurmctld leaves unanswered while the job is handed back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.node.allocation import slurm_allocation as slurm
from launcher.node.allocation.allocation import CancelledError, NotAnsweredError
from launcher.node.allocation.slurm_allocation import SlurmAllocation
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, SiteSpec, Work
from launcher.slurm import handback, later_jobs
from launcher.slurm.commands import Answer
from launcher.slurm.jobs import JobFacts

DONE = JobFacts(job_id="5", state="COMPLETING", restarts=0, reason="TimeLimit")


class Slurmctld:
    """Job 5 runs until somebody cancels it. It requeues as slurmctld does: Incomplete passes a job over that is being ended."""

    def __init__(self) -> None:
        now = time.time()
        self.facts = JobFacts(job_id="5", state="RUNNING", restarts=0, start_t=now - 60, end_t=now + 600)
        self.asked: list[tuple[str, ...]] = []
        self.silent: set[int] = set()
        """The questions that get no answer, by number."""
        self.cancelled_at: int | None = None
        """The number of the question before which scancel comes."""
        self.was_taken = False
        """The run had been taken back when scancel came."""
        self.continuations: list[str] = []

    def answers(self, *words: str) -> bool:
        if len(self.asked) == self.cancelled_at:
            self.cancel()
        self.asked.append(words)
        return len(self.asked) - 1 not in self.silent

    def cancel(self) -> None:
        self.was_taken = bool(self.facts.restarts or self.continuations)
        self.facts = replace(self.facts, state="COMPLETING", end_t=time.time())

    def job_facts(self, job_id: str, *, timeout_s: float = 0.0) -> JobFacts | None:
        return self.facts if self.answers("show") else None

    def ask(self, *words: str, **_: object) -> Answer:
        if not self.answers(*words):
            return Answer(words, None, err="timed out")
        if words[:2] == ("scontrol", "requeue") and (words[2] != "Incomplete" or self.facts.state == "RUNNING"):
            self.facts = replace(self.facts, state="COMPLETING", restarts=1)
        if words[0] == "sbatch":
            self.continuations.append("6")
        if words[:2] == ("scancel", "6"):
            self.continuations.clear()
        held = "6|afterany:5(unfulfilled)|mine" if self.continuations and "--array" in words else ""
        return Answer(words, 0, "6" if words[0] == "sbatch" else held)


@pytest.fixture
def ctld(monkeypatch: pytest.MonkeyPatch) -> Slurmctld:
    """Every question of the allocation goes to this one; a request lasts for one question."""
    one, requeue = Slurmctld(), handback.requeue
    for module in (handback, later_jobs):
        monkeypatch.setattr(module, "ask", one.ask)
    monkeypatch.setattr(handback, "job_facts", one.job_facts)
    monkeypatch.setattr(handback, "requeue", lambda *words, **how: requeue(*words, **how, limit_s=0.0))
    monkeypatch.setattr(slurm, "job_facts", one.job_facts)
    monkeypatch.setattr(slurm, "controller_time", lambda **_: None)
    monkeypatch.setattr(handback.time, "sleep", lambda _: None)
    return one


def allocation(tmp_path: Path, *, requeue_allowed: bool = True) -> SlurmAllocation:
    """Job 5's, as its leader has it."""
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=1,
        tasks_per_node=1, timeout_min=5, backend="gloo", port_range=[20000, 20031],
        site=SiteSpec(requeue_allowed=requeue_allowed),
    )  # fmt: skip
    paths = RunPaths(tmp_path)
    paths.submitit.mkdir()
    (paths.submitit / "5_submitted.pkl").touch()
    return SlurmAllocation(spec, paths, {"SLURM_JOB_ID": "5", "SLURM_JOB_NAME": "mine"})


def hands_back(one: SlurmAllocation) -> str:
    """How the hand-back ends that is tried again while it is not answered, as the leader and the teardown do."""
    for _ in range(20):
        try:
            return one.hand_back(exclude=(), delay_s=0.0).how
        except NotAnsweredError:
            continue
        except CancelledError:
            return "cancelled"
    return "silent"


@pytest.mark.parametrize("silent", [*({n} for n in range(6)), {0, 1, 2, 3}, {1, 2, 3}, {2, 3, 4}], ids=str)
@pytest.mark.parametrize("cancelled_at", range(6))
@pytest.mark.parametrize("requeue_allowed", [True, False])
def test_a_cancel_stands_whichever_question_goes_unanswered(
    tmp_path: Path, ctld: Slurmctld, cancelled_at: int, silent: set[int], requeue_allowed: bool
) -> None:
    """scancel comes before any question while the job still runs: the run ends cancelled, or had been taken back before."""
    ctld.cancelled_at, ctld.silent = cancelled_at, silent
    how = hands_back(allocation(tmp_path, requeue_allowed=requeue_allowed))

    if how == "cancelled":
        assert (ctld.facts.restarts, ctld.continuations) == (0, [])
    else:
        assert ctld.was_taken or len(ctld.asked) <= cancelled_at


@pytest.mark.parametrize("silent", [set(), {0}, {1}, {2}, {3}], ids=str)
def test_a_job_that_slurm_ended_itself_is_requeued(tmp_path: Path, ctld: Slurmctld, silent: set[int]) -> None:
    """Its time was over: nobody has cancelled it, and the plain requeue brings it back."""
    ctld.facts, ctld.silent = DONE, silent

    assert hands_back(allocation(tmp_path)) == "requeue"
    assert ctld.facts.restarts == 1
    assert [words for words in ctld.asked if words[:2] == ("scontrol", "requeue")][-1] == ("scontrol", "requeue", "5")
