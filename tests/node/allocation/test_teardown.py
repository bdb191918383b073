"""The batch script's last word: a leader that died without one."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from dataclasses import replace

import pytest
from an_event import an_event

from launcher.errors import SiteError
from launcher.node.allocation import host_end, slurm_allocation, teardown
from launcher.node.allocation.allocation import HandedBack, NotAnsweredError, SignalMeaning
from launcher.node.checkpoints import claims
from launcher.node.policy.budgets import Budgets
from launcher.run import asking, event_lines
from launcher.run.batch import COMPLETED, JUDGED
from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.spec import RestartSpec, RunSpec, Work
from launcher.run.state import read_outcome


class Slurm:
    """An allocation that notes what it is asked."""

    job_id, restart_count, requeues, is_taken, withdrawn, no_early = "5", 0, True, False, 0, 0

    def __init__(self, meaning="unknown", answers=True, cancelled=False, refuses=False):
        self._meaning, self._answers, self._cancelled, self._refuses = meaning, answers, cancelled, refuses
        self.said = []

    def meaning(self, signal):
        return SignalMeaning(self._meaning)

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
        self.is_taken = True
        return HandedBack("requeue", "5")

    def pull_forward(self):
        self.said.append("pull_forward")

    def cancel(self, job_id):
        self.said.append(("cancel", job_id))

    def withdraw_nodes(self):
        self.withdrawn += 1

    def withdraw_early(self):
        self.no_early += 1

    def forbid_requeue(self):
        self.said.append("forbid_requeue")


@pytest.fixture
def run(tmp_path):
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), batch="slurm", nodes=1,
        tasks_per_node=1, timeout_min=5, backend="gloo", port_range=[20000, 20031],
    )  # fmt: skip
    paths = RunPaths(tmp_path)
    claims.claim_attempt(paths, job_id="5")
    event_lines.append(paths.events, an_event("attempt_started", attempt=0, job_id="5"))
    return spec, paths


@pytest.mark.parametrize(("told", "action"), [(True, "cancel"), (False, "requeue")])
def test_a_batch_script_that_was_sent_term_by_hand_was_cancelled(run, told, action):
    """SLURM wants nothing of the job: a TERM of the batch script's came from somebody, a leader gone without one just died."""
    spec, paths = run
    slurm = Slurm(meaning="terminated")

    assert teardown.act(spec, paths, slurm, told=told) is not told

    assert [e["action"] for e in read_lines(paths.events) if e["type"] == "decision"] == [action]
    assert (read_outcome(paths.outcome) or {}).get("state") == ("cancelled" if told else None)


@pytest.mark.parametrize(
    ("notice", "shuts"),
    [
        ("System is going down. Unprivileged users are not permitted to log in anymore.", True),
        ("System is booting up. Unprivileged users are not permitted to log in yet.", False),
        ("Maintenance until Friday\n", False),
    ],
)
def test_a_host_that_is_shut_down_has_cancelled_nothing(run, tmp_path, monkeypatch, notice, shuts):
    """init sends TERM to every process, and srun then ends its step; systemd has said why. The run comes back on another host."""
    spec, paths = run
    (tmp_path / "nologin").write_text(notice)
    monkeypatch.setattr(host_end, "_NOTICE", tmp_path / "nologin")
    monkeypatch.setattr(teardown, "step_cancelled", lambda paths: True)
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    slurm = Slurm(meaning="terminated")

    assert teardown.act(spec, paths, slurm, told=True) is shuts

    (decision,) = (e for e in read_lines(paths.events) if e["type"] == "decision")
    assert decision["action"] == ("requeue" if shuts else "cancel")
    excluded = [e["hosts"] for e in read_lines(paths.events) if e["type"] == "excluded"]
    assert excluded == ([["n0"]] if shuts else [])
    if shuts:
        assert decision["reason"] == "n0 is being shut down; the run is requeued."


@pytest.mark.parametrize("meaning", ["terminated", "preempted"])
def test_a_leader_that_died_while_it_stopped_the_run_for_good(run, meaning):
    """The wish to end the run is obeyed although the leader that heard it is dead: the run does not come back."""
    spec, paths = run
    paths.request.write_text("{}")

    assert teardown.act(spec, paths, Slurm(meaning=meaning)) is False
    assert read_outcome(paths.outcome)["state"] == "cancelled"


def test_a_leader_that_died_is_requeued(run):
    """No outcome, nothing handed back, the job is running: requeue, to start soon, told in the history."""
    slurm = Slurm()

    assert teardown.act(*run, slurm) is True

    assert slurm.said == [("hand_back", 0.0)]
    assert slurm.no_early == 0  # it waits for this job, which comes back
    types = [e["type"] for e in read_lines(run[1].events)]
    assert types == ["attempt_started", "decision", "attempt_ended", "requeued"]
    assert read_outcome(run[1].outcome) is None


def test_a_slurm_that_takes_no_requeue_for_a_while_is_asked_again(run, monkeypatch):
    """slurmctld is starting again: the leader is dead, and nobody else asks."""
    naps = []
    monkeypatch.setattr(teardown.time, "sleep", naps.append)
    slurm = Slurm()
    hand_back, refusals = slurm.hand_back, [NotAnsweredError("busy")] * 3

    def busy(**how):
        if refusals:
            raise refusals.pop()
        return hand_back(**how)

    slurm.hand_back = busy

    assert teardown.act(*run, slurm) is True
    assert len(naps) == 3


def test_a_host_that_cannot_be_done_without_is_told(run, monkeypatch):
    """An agent that hands the job back for a dead leader excludes its host; what SLURM needs is given up, and said."""
    slurm = Slurm()
    monkeypatch.setattr(slurm, "hand_back", lambda exclude, delay_s: HandedBack("requeue", "5", exclude))

    assert teardown.act(*run, slurm, exclude=("n0",)) is True

    told = [(e["type"], e.get("hosts")) for e in read_lines(run[1].events) if "hosts" in e]
    assert told == [("excluded", ["n0"]), ("readmitted", ["n0"])]


def test_an_outcome_needs_nothing(run):
    """A run that ended is left alone."""
    run[1].outcome.write_text(json.dumps({"state": "completed"}))
    slurm = Slurm()

    assert teardown.act(*run, slurm) is False
    assert slurm.said == []
    assert (slurm.withdrawn, slurm.no_early) == (1, 1)  # its leader may have died before it could


@pytest.mark.parametrize(
    ("how", "delay_s", "soon"), [("requeue", 0.0, True), ("slurm", 0.0, True), ("requeue", 60.0, False)]
)
def test_what_slurm_has_forgotten_is_asked_for_again(run, how, delay_s, soon):
    """A slurmctld killed within seconds of the requeue believes the job to run still: its end would be the run's."""
    event_lines.append(run[1].events, an_event("requeued", attempt=0, how=how, job_id="5", delay_s=delay_s))
    slurm = Slurm("terminated")

    assert teardown.act(*run, slurm, told=True) is soon  # the requeue has sent TERM to the batch script, too

    assert slurm.said == [("hand_back", delay_s)]
    assert Budgets().feed_all(event_lines.read(run[1].events)).restarts["leader_gone"] == 0
    assert read_outcome(run[1].outcome) is None


def test_a_job_that_slurm_has_taken_starts_soon(run):
    """The script is its last process, and says when it may start; an earlier life's delay counts for nothing."""
    slurm = Slurm()
    slurm.is_taken = True
    requeued = an_event("requeued", attempt=0, how="requeue", job_id="5", delay_s=60.0)

    assert teardown.act(*run, slurm) is True
    event_lines.append(run[1].events, requeued)
    assert teardown.act(*run, slurm) is False
    event_lines.append(run[1].events, an_event("attempt_started", attempt=1, job_id="5"))
    assert teardown.act(*run, slurm) is True


def test_when_the_end_of_the_job_began(run):
    """The request or SLURM's own word, of this life: slurmd looks at the job's processes at intervals counted from then."""
    t = 1000.0
    old = [an_event("requeued", t=t, seconds=1.0), an_event("attempt_started", t=t + 100)]
    assert teardown._end_began(old) is None
    assert teardown._end_began([*old, an_event("requeued", t=t + 200, seconds=2.0)]) == t + 198
    told = an_event("signal", t=t + 150, meaning="preempted_now")
    assert teardown._end_began([*old, told, an_event("requeued", t=t + 200, seconds=2.0)]) == t + 150


def test_a_life_whose_leader_never_came_up_is_not_mistaken_for_handed_back(run):
    """The last word is an earlier life's, which handed the run to this one: it is requeued, once more."""
    spec, paths = run
    event_lines.append(paths.events, an_event("requeued", attempt=0, how="requeue", job_id="5"))
    slurm = Slurm()
    slurm.restart_count = 1

    teardown.act(spec, paths, slurm)
    assert slurm.said == [("hand_back", 30.0)]  # two lives without progress: the next one waits


def test_a_continuation_whose_leader_never_came_up_goes_on(run):
    """Job 5 handed the run to job 6, whose leader died at once: job 6's teardown starts it again; job 5's does not."""
    spec, paths = run
    event_lines.append(paths.events, an_event("requeued", attempt=0, how="continuation", job_id="6"))
    five, six = Slurm(), Slurm()
    six.job_id = "6"

    teardown.act(spec, paths, five)
    assert five.said == []
    teardown.act(spec, paths, six)
    assert six.said == [("hand_back", 30.0)]


@pytest.mark.parametrize("slurm", [Slurm(cancelled=True), Slurm(meaning="cancelled")], ids=["heard", "asked again"])
def test_a_cancel_that_comes_after_the_continuation_was_submitted_takes_it_along(run, slurm):
    """scancel names the job that the user knows; the continuation in the queue is the same run. One question may go unanswered."""
    spec, paths = run
    event_lines.append(paths.events, an_event("requeued", attempt=0, how="continuation", job_id="6"))

    assert teardown.act(spec, paths, slurm) is False

    assert slurm.said == [("cancel", "6"), "forbid_requeue"]
    assert read_outcome(paths.outcome)["state"] == "cancelled"


def test_a_job_whose_run_another_job_leads_ends_quietly(run):
    """Two jobs of one run: the one that was fenced off requeues nothing, or both would go on for ever."""
    spec, paths = run
    claims.claim_attempt(paths, job_id="6")
    event_lines.append(paths.events, an_event("attempt_started", attempt=1, job_id="6", restart_count=0))
    slurm = Slurm()

    assert teardown.act(spec, paths, slurm) is False
    assert slurm.said == []
    assert read_outcome(paths.outcome) is None


def test_a_resubmitted_run_is_the_newest_submissions(run):
    """After a resubmission the old job's word counts for nothing: the new job's leader died before its first word."""
    spec, paths = run
    event_lines.append(paths.events, an_event("submitted", attempt=None, job_id=None, by="resubmit"))
    slurm = Slurm()
    slurm.job_id = "9"

    assert teardown.act(spec, paths, slurm) is True


def test_a_cancelled_job_is_never_requeued(run):
    """scancel killed the leader: the run ends cancelled."""
    slurm = Slurm(cancelled=True)

    teardown.act(*run, slurm)

    assert slurm.said == ["forbid_requeue"]
    assert read_outcome(run[1].outcome)["state"] == "cancelled"


def test_without_an_answer_of_slurm_nothing_is_done(run, monkeypatch):
    """This host may be cut off and the run may go on elsewhere: no outcome is written."""
    monkeypatch.setattr(teardown, "_UNANSWERED_S", 0.0)
    slurm = Slurm(answers=False)

    assert teardown.act(*run, slurm) is False

    assert slurm.said == []
    assert read_outcome(run[1].outcome) is None


@pytest.fixture
def silent_for(monkeypatch):
    """SLURM answers after so many seconds, in no time; ``meanwhile`` happens before that."""

    def leave(slurm, seconds, meanwhile=lambda: None):
        clock = [0.0]

        def answers():
            if clock[0] >= seconds:
                meanwhile()
            return clock[0] >= seconds

        monkeypatch.setattr(teardown.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(teardown.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
        slurm.answers = answers
        slurm.meaning = lambda signal: SignalMeaning("terminated" if clock[0] >= seconds else "unknown")
        return slurm

    return leave


@pytest.mark.parametrize(("seconds", "again"), [(90, True), (590, True), (610, False)])
def test_a_slurmctld_that_is_away_for_minutes_is_waited_for(run, silent_for, seconds, again):
    """Nobody else would have it start the run again: the job would end FAILED."""
    slurm = silent_for(Slurm(), seconds)

    assert teardown.act(*run, slurm) is again
    assert slurm.said == ([("hand_back", 0.0)] if again else [])


def test_a_leader_that_has_begun_while_slurm_was_waited_for_keeps_the_run(run, silent_for):
    """This host alone was cut off from SLURM, which had removed it meanwhile: another one leads, and is not deposed."""
    spec, paths = run
    slurm = silent_for(Slurm(), 400, lambda: claims.claim_takeover(paths, life="5.0"))
    paths.attempts.joinpath("0", "claim.json").write_text(json.dumps({"life": "5.0"}))

    assert teardown.act(spec, paths, slurm) is False

    assert slurm.said == []
    assert claims.is_current(paths, claims.Claim(0, 1))


def test_it_is_bounded(run):
    """After as many attempts without progress as restart.max_restarts allows, the run ends failed."""
    spec, paths = run
    for n in range(1, 4):
        event_lines.append(paths.events, an_event("attempt_started", attempt=n, job_id="5"))
        claims.claim_attempt(paths, job_id="5")
    slurm = Slurm()
    slurm.restart_count = 3

    teardown.act(spec, paths, slurm)

    assert slurm.said == ["forbid_requeue"]
    assert read_outcome(paths.outcome)["state"] == "failed"


@pytest.mark.parametrize(
    ("attempts", "hours", "action"), [(16, 160, "requeue"), (17, 170, "fail"), (200, 2000, "fail")]
)
def test_the_cap_over_all_attempts_holds_when_leaders_die(attempts, hours, action):
    """Each attempt of 10 h saved something new and lost its leader: requeued until restart.max_total_hours, 168, is used up."""
    history, now = [], 1e9
    for n in range(attempts):
        t = now - 36000.0 * (attempts - n)
        history += [
            an_event("attempt_started", t=t, attempt=n, job_id="5", restart_count=n),
            an_event("saved", t=t + 60, attempt=n, step=n + 1),
            an_event("attempt_ended", t=t + 36000.0, attempt=n),
        ]

    verdict = teardown.decide_end(RestartSpec(), history[:-1], life=("5", attempts - 1), meaning="running", now=now)

    assert hours == attempts * 10
    assert verdict.action == action
    assert ("max_total_hours" in verdict.reason) is (action == "fail")


def test_the_queue_before_a_life_without_a_leader_is_no_allocation_time():
    """The last attempt's host died 200 h ago, SLURM started the job again just now, and no leader came up: requeued."""
    history = [
        an_event("attempt_started", t=0.0, attempt=0, job_id="5", restart_count=0),
        an_event("saved", t=60.0, attempt=0, step=1),
    ]

    verdict = teardown.decide_end(RestartSpec(), history, life=("5", 1), meaning="running", now=200 * 3600.0)

    assert verdict.action == "requeue"


def test_a_leader_lost_beyond_the_cap_ends_the_run(run):
    """The batch script's end looks at restart.max_total_hours of the job: failed, never to come back."""
    spec, paths = run
    spec = replace(spec, restart=replace(spec.restart, max_total_hours=1e-9))
    slurm = Slurm()

    assert teardown.act(spec, paths, slurm) is False

    assert slurm.said == ["forbid_requeue"]
    assert "max_total_hours" in read_outcome(paths.outcome)["reason"]


def test_lives_in_which_no_leader_came_up_count_too(tmp_path, run):
    """An interpreter that breaks at import claims no attempt: four such starts end the run."""
    spec, paths = run
    paths.events.unlink()
    slurm = Slurm()
    slurm.restart_count = 3

    teardown.act(spec, paths, slurm)

    assert slurm.said == ["forbid_requeue"]
    assert read_outcome(paths.outcome)["reason"] == "No agent could begin, 4 times in a row."


@pytest.mark.parametrize("meaning", ["preempted", "preempted_now"])
def test_a_preemption_before_an_agent_began_counts_against_nothing(run, meaning):
    """A container that is being made ends at TERM: five such starts in a row, and the sixth may still fail and be requeued."""
    spec, paths = run
    for life in range(1, 6):
        slurm = Slurm(meaning=meaning)
        slurm.restart_count = life
        assert teardown.act(spec, paths, slurm) is True
        assert slurm.said == [("hand_back", 0.0)]
        *_, last = (e for e in read_lines(paths.events) if e["type"] == "decision")
        assert last["reason"] == "The job was preempted before an agent could begin; the run is requeued."
    slurm = Slurm()
    slurm.restart_count = 6
    teardown.act(spec, paths, slurm)
    assert [what for what, *_ in slurm.said] == ["hand_back"]
    *_, last = (e for e in read_lines(paths.events) if e["type"] == "decision")
    assert last["reason"] == "The leader died and left no message; the run is requeued."


def test_a_preempted_run_that_may_not_be_requeued_ends(run):
    """The user said so: the same before an agent began."""
    spec, paths = run
    slurm = Slurm(meaning="preempted")
    slurm.restart_count = 1
    teardown.act(replace(spec, restart=RestartSpec(requeue=False)), paths, slurm)
    assert read_outcome(paths.outcome)["state"] == "failed"


def test_starts_without_a_leader_count_in_a_row(run):
    """Months ago three starts had no leader; an attempt that saved has been since: today's first is requeued."""
    spec, paths = run
    event_lines.append(paths.events, an_event("attempt_started", attempt=1, job_id="5", restart_count=4))
    event_lines.append(paths.events, an_event("saved", attempt=1, step=500))
    slurm = Slurm()
    slurm.restart_count = 5

    teardown.act(spec, paths, slurm)

    assert [what for what, *_ in slurm.said] == ["hand_back"]


def test_a_refusal_is_told(run):
    """SLURM does not take it: failed, with SLURM's words."""
    slurm = Slurm(refuses=True)

    teardown.act(*run, slurm)

    assert "SLURM refused: no" in read_outcome(run[1].outcome)["reason"]


def test_a_run_that_was_submitted_again_is_left_to_its_new_job(run):
    """The outcome was set aside for a resubmission while the old job's batch script was still ending: nothing is said."""
    spec, paths = run
    event_lines.append(paths.events, an_event("submitted", attempt=None, by="resubmit"))
    old = Slurm()

    assert teardown.act(spec, paths, old) == 0
    assert (old.said, read_outcome(paths.outcome)) == ([], None)
    assert (old.withdrawn, old.no_early) == (0, 0)  # they are the new job's

    new = Slurm()
    new.job_id = "6"
    teardown.act(spec, paths, new)
    assert new.said


@pytest.fixture
def execs(monkeypatch):
    """What becomes of the process at its last act is run beside it; the exit codes."""
    codes = []

    def execvpe(file, words, env):
        codes.append(subprocess.run(words, env=env, check=False).returncode)
        raise OSError(errno.ENOENT, "in a test nothing is replaced")

    monkeypatch.setattr(os, "execvpe", execvpe)
    return codes


@pytest.fixture
def called(run, monkeypatch, execs):
    """`teardown.main` as the batch script calls it; returns its exit status. The folder is asked again at once."""
    spec, paths = run
    spec.write(paths.spec)
    slurm = Slurm()
    slurm.in_grace_until = slurm.said.append
    if not hasattr(slurm, "last_act"):
        slurm.last_act = lambda *args, **more: ("false",)
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setattr(slurm_allocation, "SlurmAllocation", lambda spec, paths: slurm)
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    monkeypatch.setattr(asking, "AGAIN_S", 0.001)
    return lambda: (teardown.main([str(paths.root)]), slurm.said)


@pytest.mark.parametrize("what", ["outcome.json", "events.jsonl", "attempts", "spec.json"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_outcome_is_read_with_patience(run, called, away, what, number):
    """The run has completed, and its folder does not answer at first: nothing is requeued, and the word is completed."""
    run[1].outcome.write_text(json.dumps({"state": "completed"}))
    away.refuse(run[1].root / what, number, times=3)

    assert called() == (COMPLETED, [])
    assert len(away.refused) == 3


@pytest.mark.parametrize("what", ["outcome.json", "events.jsonl", "attempts"])
def test_a_folder_that_stays_away_says_nothing_of_the_run(run, called, away, monkeypatch, what):
    """Not known whether it has completed: nothing is asked of SLURM, nothing is written, and the status is neither word."""
    monkeypatch.setattr(asking, "PATIENCE_S", 0.02)
    before = run[1].events.read_text()
    away.refuse(run[1].root / what)

    assert called() == (1, [])
    away.come_back()
    assert run[1].events.read_text() == before
    assert read_outcome(run[1].outcome) is None


def test_a_run_folder_that_is_away_is_neither_completed_nor_dead(run, called, monkeypatch):
    """The mount itself: the leader's death is not concluded from an outcome that cannot be there."""
    monkeypatch.setattr(asking, "PATIENCE_S", 0.02)
    moved = run[1].root.with_name("moved")
    run[1].root.rename(moved)
    try:
        assert called() == (1, [])
    finally:
        moved.rename(run[1].root)
    assert called()[1] == [("hand_back", 0.0)]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_run_that_ended_otherwise_is_judged(run, called, state):
    """The batch script need not ask again, and does not end with 0."""
    run[1].outcome.write_text(json.dumps({"state": state}))

    assert called() == (JUDGED, [])


def test_the_last_act_is_not_repeated_when_slurm_refuses_it(called, execs):
    """scontrol's status is not the teardown's: called again, it would keep the job from its end."""
    assert called() == (JUDGED, [("hand_back", 0.0)])
    assert execs == [JUDGED]


@pytest.fixture
def forgetful(monkeypatch):
    """A slurmctld that is killed during the first last act, and comes back without what it had taken; how often that was done."""
    acts = []

    def last_act(slurm, *args, **more):
        acts.append(args)
        slurm.is_taken = slurm.is_taken and len(acts) > 1
        return ("true",)

    monkeypatch.setattr(Slurm, "last_act", last_act, raising=False)
    return acts


def test_what_slurm_forgets_behind_the_last_look_is_asked_for_again(forgetful, run, called, execs):
    """The job's last process has stayed, sees it, and hands the run back once more."""
    assert called() == (JUDGED, [("hand_back", 0.0), ("hand_back", 0.0)])
    assert (len(forgetful), len(execs)) == (2, 1)
    assert [e["evidence"] for e in read_lines(run[1].events) if e["type"] == "decision"] == [
        "leader_gone",
        "forgotten",
    ]


@pytest.mark.parametrize("there", [True, False])
def test_passed_values_go_when_the_leader_could_not_remove_them(run, there):
    """A leader that died before or after the outcome: the batch script's last act removes them; a requeue keeps them."""
    spec, paths = run
    paths.passed.write_text('{"TOKEN": "hunter2"}')
    teardown.act(spec, paths, Slurm(meaning="running"))
    assert paths.passed.exists()
    if there:
        paths.outcome.write_text(json.dumps({"state": "completed"}))

    teardown.act(spec, paths, Slurm(meaning="cancelled"))

    assert read_outcome(paths.outcome)["state"] == ("completed" if there else "cancelled")
    assert not paths.passed.exists()
