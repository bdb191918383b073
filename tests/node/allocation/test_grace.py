"""A job that ends in its grace time: who has done it?"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from launcher.errors import SiteError
from launcher.node.allocation import slurm_allocation as slurm
from launcher.node.allocation.allocation import NotAnsweredError
from launcher.node.allocation.slurm_allocation import SlurmAllocation
from launcher.run.paths import RunPaths
from launcher.run.spec import RestartSpec, RunSpec, Work
from launcher.slurm import handback, later_jobs
from launcher.slurm.commands import Answer
from launcher.slurm.jobs import JobFacts


@pytest.fixture
def allocation(tmp_path, monkeypatch):
    """Job 5's."""
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=1,
        tasks_per_node=1, timeout_min=5, backend="gloo", port_range=[20000, 20031],
    )  # fmt: skip
    monkeypatch.setattr(slurm, "controller_time", lambda **_: None)
    return SlurmAllocation(spec, RunPaths(tmp_path), {"SLURM_JOB_ID": "5", "SLURM_JOB_NAME": "mine"})


def ended_at_once():
    """What SLURM says of a job that was cancelled in the second in which it began to be preempted: as of a grace's end."""
    now = float(int(time.time()))
    return JobFacts(job_id="5", state="COMPLETING", restarts=0, preempt_t=now, end_t=now)


def test_a_cancel_as_a_grace_time_begins_is_a_cancel(allocation, monkeypatch):
    """The leader was told of 20 s of grace: nothing but a cancel ends the job before that."""
    now = time.time()
    facts = [JobFacts(job_id="5", state="RUNNING", restarts=0, preempt_t=now, end_t=now + 20)]
    monkeypatch.setattr(slurm, "job_facts", lambda *a, **k: facts[0])
    assert allocation.meaning("TERM").kind == "preempted"
    assert not allocation.cancelled()

    facts[0] = ended_at_once()

    assert allocation.meaning("TERM").kind == "cancelled"
    assert allocation.cancelled()


def test_the_end_of_a_grace_time_is_none(allocation, monkeypatch):
    """Nobody was told of a grace time, or it is over: PreemptMode=CANCEL has ended the job."""
    monkeypatch.setattr(slurm, "job_facts", lambda *a, **k: ended_at_once())
    assert allocation.meaning("TERM").kind == "preempted_now"

    allocation.in_grace_until(time.time() + 1)

    assert allocation.meaning("TERM").kind == "preempted_now"
    assert not allocation.cancelled()


def test_a_record_of_an_earlier_life_is_no_answer(allocation, monkeypatch):
    """A slurmctld that was killed as it started the job again shows it being ended, as of before this life: nobody cancelled it."""
    old = time.time() - 60
    facts = [JobFacts(job_id="5", state="COMPLETING", restarts=0, start_t=old - 60, end_t=old)]
    monkeypatch.setattr(slurm, "job_facts", lambda *a, **k: facts[0])
    monkeypatch.setattr(slurm, "_ASK_S", 0.1)

    assert not allocation.answers()
    assert not allocation.cancelled()
    assert allocation.meaning("TERM").kind == "unknown"

    facts[0] = JobFacts(job_id="5", state="COMPLETING", restarts=0, end_t=time.time())

    assert allocation.cancelled()


def test_a_life_that_is_to_begin_is_no_answer_in_that_life(allocation, monkeypatch):
    """Such a slurmctld may show the life before being ended for the requeue: its times lie ahead. Of a later life it is a requeue."""
    now = float(int(time.time()))
    ending = JobFacts(job_id="5", state="COMPLETING", restarts=1, run_time_s=0, start_t=now, end_t=now + 1800)
    monkeypatch.setattr(slurm, "job_facts", lambda *a, **k: ending)
    monkeypatch.setattr(slurm, "_ASK_S", 0.1)

    assert allocation.taken()
    assert allocation.meaning("TERM").kind == "preempted_now"

    allocation.restart_count = 1

    assert not allocation.answers()
    assert not allocation.cancelled()
    assert allocation.meaning("TERM").kind == "unknown"


@pytest.fixture(params=[-3600.0, 3600.0], ids=["host behind", "host ahead"])
def slurm_now(request, monkeypatch):
    """slurmctld's clock, from which that of this host differs by an hour."""
    monkeypatch.setattr(slurm, "controller_time", lambda **_: time.time() + request.param)
    return lambda: time.time() + request.param


def test_a_time_limit_is_seen_by_slurms_own_clock(allocation, monkeypatch, slurm_now):
    """USR2 comes a minute before the job's end as slurmctld counts: this host's clock does not make it a signal without a reason."""
    end = slurm_now() + 60
    facts = JobFacts(job_id="5", state="RUNNING", restarts=0, start_t=end - 600, end_t=end)
    monkeypatch.setattr(slurm, "job_facts", lambda *a, **k: facts)

    said = allocation.meaning("USR2")

    assert said.kind == "time_limit"
    assert said.left_s == pytest.approx(60 + allocation._spec.site.kill_wait_s, abs=5)
    assert allocation.meaning("TERM").kind == "terminated"


def test_a_grace_time_is_counted_by_slurms_own_clock(allocation, monkeypatch, slurm_now):
    """20 s of grace are 20 s, and a cancel within them is one."""
    now = slurm_now()
    facts = [JobFacts(job_id="5", state="RUNNING", restarts=0, preempt_t=now, end_t=now + 20)]
    monkeypatch.setattr(slurm, "job_facts", lambda *a, **k: facts[0])
    assert allocation.meaning("TERM").left_s == pytest.approx(20 + allocation._spec.site.kill_wait_s, abs=5)

    facts[0] = JobFacts(job_id="5", state="COMPLETING", restarts=0, preempt_t=now, end_t=now)

    assert allocation.cancelled()


def test_records_of_this_life_and_of_an_earlier_one_are_told_by_slurms_own_clock(allocation, monkeypatch, slurm_now):
    """This life is seconds old: an end of just now is its own, one of five minutes ago is not."""
    began = slurm_now() - 30
    monkeypatch.setattr(allocation, "_began_up_s", slurm.clock.up_s() - 30)
    facts = [JobFacts(job_id="5", state="COMPLETING", restarts=0, end_t=began + 29)]
    monkeypatch.setattr(slurm, "job_facts", lambda *a, **k: facts[0])
    assert allocation.answers()

    facts[0] = JobFacts(job_id="5", state="COMPLETING", restarts=0, end_t=began - 300)

    assert not allocation.answers()


@pytest.mark.parametrize(
    ("restarts", "in_grace", "pending", "forbids"),
    [
        (0, False, "", False),
        (1, False, "", True),
        (0, True, "", True),
        (1, False, "afterok:15(unfulfilled)|a\n(null)|b\nafterany:52|c\nafterany:5(unfulfilled)|mine", True),
        (1, False, "(null)|a\nafterok:5(unfulfilled),afterany:7(unfulfilled)|b|c", False),
        (1, False, None, False),
    ],
    ids=[
        "never preempted",
        "was requeued",
        "in its grace time",
        "others are waited for",
        "somebody waits",
        "SLURM is silent",
    ],
)
def test_a_completed_run_does_not_come_back_unless_somebody_waits(
    allocation, monkeypatch, restarts, in_grace, pending, forbids
):
    """Since 24.05 SLURM would queue the job of a run that was preempted once more; jobs behind it need its COMPLETED."""
    asked = []

    def ask(*words, **_):
        asked.append(words)
        silent = words[0] == "squeue" and pending is None
        return Answer(words, None if silent else 0, pending or "")

    for module in (handback, later_jobs):
        monkeypatch.setattr(module, "ask", ask)
    allocation.restart_count = restarts
    if in_grace:
        allocation.in_grace_until(time.time() + 60)

    allocation.run_completed()

    assert (("scontrol", "update", "JobId=5", "Requeue=0") in asked) == forbids


HELD = "9|afterany:5(unfulfilled)|mine"


@pytest.mark.parametrize(
    ("queued", "waiting", "how"),
    [
        (HELD, f"{HELD.split('|')[1]}|mine", "continuation"),
        ("", "", "requeue"),
        (HELD, "afterok:5(unfulfilled)|other", "requeue"),
        (None, "", "requeue"),
    ],
    ids=["one is held", "none could be queued", "others wait for this one", "squeue does not answer"],
)
def test_the_job_that_was_queued_early_is_taken_where_there_is_one(
    allocation, monkeypatch, tmp_path, queued, waiting, how
):
    """Otherwise the job is requeued as without it: sbatch, which refused it before, is not asked again at the time limit."""
    asked = []

    def ask(*words, **_):
        asked.append(words)
        if words[0] == "squeue":
            said = "9|JobHeldUser|mine" if "%r" in words[-1] else queued if "--array" in words else waiting
            return Answer(words, None if said is None else 0, said or "")
        return Answer(words, 0, "")

    paths = RunPaths(tmp_path)
    paths.submitit.mkdir()
    (paths.submitit / "5_submitted.pkl").write_text("")
    for module in (handback, later_jobs):
        monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(handback, "requeue", lambda *words, **_: handback.Done(True))
    monkeypatch.setattr(slurm, "job_facts", lambda *words, **_: JobFacts(job_id="5", state="RUNNING", restarts=0))
    allocation._spec = replace(allocation._spec, restart=RestartSpec(queue_early=True))

    handed = allocation.hand_back(exclude=(), delay_s=0.0, early=True)

    assert handed.how == how
    assert (("scontrol", "release", "9") in asked) is (how == "continuation")
    assert "sbatch" not in [words[0] for words in asked]
    assert (("scancel", "9") in asked) is (how == "requeue" and queued == HELD)


def test_a_continuation_that_somebody_holds_is_told_at_once(allocation, monkeypatch):
    """scontrol release is refused: that is no silence. The job that would never start is cancelled, and the sentence has SLURM's words."""
    asked = []

    def ask(*words, **_):
        asked.append(words)
        if words[:2] == ("scontrol", "release"):
            return Answer(words, 1, "", "Access/permission denied for job 9")
        return Answer(
            words, 0, HELD if "--array" in words else f"{HELD.split('|')[1]}|mine" if words[0] == "squeue" else ""
        )

    for module in (handback, later_jobs):
        monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(later_jobs, "submit_continuation", lambda *words, **_: handback.Done(True, job_id="9"))
    monkeypatch.setattr(slurm, "job_facts", lambda *words, **_: JobFacts(job_id="5", state="RUNNING", restarts=0))
    monkeypatch.setattr(slurm, "_copy_pickle", lambda *_: None)
    allocation._spec = replace(allocation._spec, restart=RestartSpec(queue_early=True))

    with pytest.raises(SiteError, match=r"release of the continuation job: .*permission denied") as caught:
        allocation._continue((), 0.0, None)
    assert not isinstance(caught.value, NotAnsweredError)
    assert ("scancel", "9") in asked
