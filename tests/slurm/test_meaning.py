"""Why a signal came: the measured table, from recorded answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from launcher.slurm.jobs import JobFacts, parse_facts
from launcher.slurm.meaning import Meaning, meaning_of

RECORDED = Path(__file__).parent / "jobs"
VERSIONS = sorted(path.name for path in RECORDED.iterdir())


def recorded(name: str, version: str = VERSIONS[0]) -> tuple[str, float, JobFacts]:
    """Signal, time and facts of a recorded situation; times are moved to the clock of the recording's zone."""
    head, _, text = (RECORDED / version / f"{name}.txt").read_text().partition("\n")
    signal, t = head.split()
    facts = parse_facts(text, text.partition("JobId=")[2].split()[0])
    assert facts is not None
    assert facts.start_t is not None
    # The recording has local times without a zone (UTC) beside the handler's clock.
    shift = round((float(t) - facts.start_t) / 1800) * 1800
    moved = {k: v + shift for k in ("start_t", "end_t", "preempt_t") if (v := getattr(facts, k)) is not None}
    return signal, float(t), dataclasses.replace(facts, **moved)


TABLE = [
    ("grace", "preempted", False),
    ("cancel_grace", "preempted", False),
    ("usersignal", "preempted", False),
    ("grace0", "preempted_now", True),
    ("requeue", "preempted_now", True),
    ("requeuehold", "preempted_now", True),
    ("grace0_norequeue", "preempted_now", False),
    ("cancel_grace0", "preempted_now", False),
    ("scancel", "cancelled", False),
    ("scancel_in_grace_cancelmode", "cancelled", False),
    ("limit", "time_limit", False),
    ("limit_term", "time_limit", False),
    ("term", "terminated", False),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "kind", "requeues"), TABLE)
def test_the_recorded_table(version: str, name: str, kind: str, requeues: bool) -> None:
    """What each version said in each situation is understood."""
    signal, now, facts = recorded(name, version)
    meaning = meaning_of(facts, signal, restart_count=0, now=now, lead_s=10)

    assert (meaning.kind, meaning.slurm_requeues) == (kind, requeues)


def test_a_killed_batch_script_is_no_cancel() -> None:
    """Its end is the job's, and SLURM says so in Reason before anybody is told; a scancel leaves none there."""
    signal, now, facts = recorded("scancel")

    for reason in ("NonZeroExitCode", "JobLaunchFailure", "RaisedSignal:9(Killed)", "OutOfMemory"):
        killed = dataclasses.replace(facts, reason=reason, exit_code=0, signal=9)
        assert meaning_of(killed, signal, restart_count=0, now=now, lead_s=10).kind == "script_gone"


@pytest.mark.parametrize("reason", ["NodeDown", "BootFailure", "SystemFailure"])
def test_a_lost_node_is_no_cancel(reason: str) -> None:
    """slurmctld shows COMPLETING, not NODE_FAIL, until the processes have ended; the reason is there at once (job_mgr.c)."""
    signal, now, facts = recorded("scancel")
    lost = dataclasses.replace(facts, reason=reason)

    assert meaning_of(lost, signal, restart_count=0, now=now, lead_s=10).kind == "unknown"


def test_the_grace_times_end_is_known() -> None:
    """EndTime becomes the end of the grace time when it begins: 3 s at the recording's site."""
    signal, now, facts = recorded("grace")
    left = meaning_of(facts, signal, restart_count=0, now=now, lead_s=10).left_s

    assert left is not None
    assert 1 <= left <= 3


def test_the_batch_scripts_exit_code_changes_nothing() -> None:
    """A cancel is one before and after the batch script has died of the same TERM."""
    signal, now, facts = recorded("scancel")
    early = dataclasses.replace(facts, signal=0)

    assert meaning_of(early, signal, restart_count=0, now=now, lead_s=10).kind == "cancelled"


def test_a_later_life_counts_its_own_restarts() -> None:
    """A job in its third life that is cancelled is not taken for one that SLURM requeues."""
    _, now, facts = recorded("scancel")
    third = dataclasses.replace(facts, restarts=2)

    assert meaning_of(third, "TERM", restart_count=2, now=now, lead_s=10).kind == "cancelled"
    assert meaning_of(third, "TERM", restart_count=1, now=now, lead_s=10).kind == "preempted_now"


def test_silence_is_not_guessed_at() -> None:
    """SLURM does not answer: unknown; a user's request that was announced by USR2 is one."""
    assert meaning_of(None, "TERM", restart_count=0, now=0, lead_s=10) == Meaning("unknown")
    assert meaning_of(None, "USR2", restart_count=0, now=0, lead_s=10) == Meaning("unknown")
    assert meaning_of(None, "USR2", restart_count=0, now=0, lead_s=10, requested=True) == Meaning("user")


def test_a_users_request_is_told_from_the_time_limit() -> None:
    """USR2 with a request is the user's also shortly before the time limit; without one and far from it, it means nothing."""
    signal, now, facts = recorded("limit")
    far = dataclasses.replace(facts, end_t=now + 9000)

    assert meaning_of(facts, signal, restart_count=0, now=now, lead_s=10, requested=True).kind == "user"
    assert meaning_of(far, "USR2", restart_count=0, now=now, lead_s=10).kind == "nothing"


def test_a_request_outranks_preemption() -> None:
    """Who cancels a job that is being preempted does not want it back; the grace remains the time there is."""
    signal, now, facts = recorded("usersignal")
    said = meaning_of(facts, signal, restart_count=0, now=now, lead_s=10, requested=True)

    assert said.kind == "user"
    assert said.left_s == meaning_of(facts, signal, restart_count=0, now=now, lead_s=10).left_s
