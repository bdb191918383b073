"""Agents whose leader is gone: one of them hands the job back, once, and only when SLURM answers."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from launcher.node.allocation import leaderless, reach
from launcher.node.checkpoints import claims
from launcher.run import event_lines, events
from launcher.run.paths import RunPaths
from launcher.run.state import write_outcome, write_state
from launcher.slurm.jobs import JobFacts


class Slurm:
    """SLURM's answers, one after the other; the last one stays."""

    restart_count = 0

    def __init__(self, *answers):
        self.answers, self.pulled = list(answers), 0
        self.slow = 0
        self.requeued, self.ended = True, []

    def ends_slowly(self, seconds):
        self.slow = seconds

    def facts(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def pull_forward(self):
        self.pulled += 1

    def taken(self):
        return self.requeued

    def remark(self, text):
        assert "EIO" in text

    def end_job(self, *, completed):
        self.ended.append(completed)
        return False


SPEC = SimpleNamespace(hold=False)


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def running(nodes="n[0-2]", restarts=0, state="RUNNING"):
    return JobFacts(job_id="5", state=state, restarts=restarts, nodes=nodes)


@pytest.fixture
def adopt(monkeypatch, tmp_path):
    acted = []

    def act(spec, paths, allocation, exclude=(), told=False, said=""):
        acted.append(exclude)
        call.said = said
        return True

    monkeypatch.setattr(leaderless, "act", act)

    def call(slurm, *, place=0, silent=True, leads=lambda: False, alive=lambda: False):
        clock = Clock()
        monkeypatch.setattr(leaderless, "time", clock)
        monkeypatch.setattr(leaderless, "host_answers", lambda host, ports: alive())
        monkeypatch.setattr(leaderless, "SlurmAllocation", lambda spec, paths, environ, least_lead_s: slurm)
        leaderless.adopt(
            SPEC,
            RunPaths(tmp_path),
            {},
            place=place,
            leader_host="n0",
            batch_host="n0",
            ports=[20000],
            silent=silent,
            leads=leads,
        )
        assert slurm.pulled == 2 * len(acted)
        return acted, clock.now

    return call


def test_a_silent_host_is_waited_for_until_slurm_drops_it(adopt):
    """Requeued earlier, the job would wait for it anyway, and for the full delay after that."""
    acted, took = adopt(Slurm(*[running()] * 10, running("n[1-2]")))

    assert acted == [("n0",)]
    assert took == pytest.approx(22)
    assert adopt.said == "n0, the leader's host, stopped answering and SLURM has removed it from the job"


def test_a_leader_that_stands_still_on_a_live_host_is_not_waited_for(adopt):
    """SLURM will never drop that host: the job is handed back, to start after the KILL that ends the leader."""
    slurm = Slurm(running())
    acted, took = adopt(slurm, alive=lambda: True)

    assert acted == [("n0",)]
    assert took == pytest.approx(22)
    assert slurm.slow > 0
    assert adopt.said == "The leader on n0 did not respond for 28 s"  # 8 s of silence before


def test_a_leader_that_comes_back_keeps_the_word(adopt):
    """It requeues the job itself, since its agents have left: the others leave that alone."""
    assert adopt(Slurm(*[running()] * 5, running(restarts=1)), alive=lambda: True)[0] == []


def test_a_leader_that_lives_keeps_its_run(adopt):
    """This host was cut off for a while, and the others train on, a spare in its place: they are left alone."""
    cut = iter([False, False, True])

    assert adopt(Slurm(running()), leads=lambda: next(cut), alive=lambda: True)[0] == []
    assert adopt(Slurm(running()), silent=False, leads=lambda: True)[0] == []


class Writing(Slurm):
    """SLURM, which keeps the leader's host in the job, and a leader that writes its picture once a question, so many times."""

    def __init__(self, path, times):
        super().__init__(running())
        self.path, self.times = path, times

    def facts(self):
        self.times -= 1
        if self.times >= 0:
            write_state(self.path, {"t": float(self.times)})
        return super().facts()


@pytest.mark.parametrize("alive", [False, True])
def test_a_leader_that_writes_leads_though_this_host_cannot_reach_it(adopt, tmp_path, alive):
    """This node alone is cut off from the leader's host, which SLURM reaches: the run trains on with a spare and is not handed back."""
    acted, took = adopt(Writing(RunPaths(tmp_path).state, 1000), alive=lambda: alive)

    assert acted == []
    assert took == pytest.approx(leaderless.DROP_S, abs=3)


@pytest.mark.parametrize(("alive", "took_s"), [(False, leaderless.DROP_S), (True, 110)])
def test_a_leader_that_has_written_for_a_while_and_writes_no_more_is_gone(adopt, tmp_path, alive, took_s):
    """It was cut off first, and stood still or died later: the job is handed back 20 s after its last word, or in the end."""
    acted, took = adopt(Writing(RunPaths(tmp_path).state, 45), alive=lambda: alive)

    assert acted == [("n0",)]
    assert took == pytest.approx(took_s, abs=5)


def test_a_host_answers_by_accepting_or_refusing():
    """An open and a closed port of this machine say the same; an address that nobody has says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reach.host_answers("127.0.0.1", [port])
    assert reach.host_answers("127.0.0.1", [port])
    assert not reach.host_answers("no-such-host.invalid", [port])


def test_a_leader_that_died_alone_is_replaced_at_once(adopt):
    """Its connection closed: its host lives, nothing is waited for."""
    assert adopt(Slurm(running()), silent=False) == ([("n0",)], 2.0)
    assert adopt.said == ""  # its own last words are in its log


def test_the_second_agent_stands_in_for_the_first(adopt):
    """It waits for its turn, and does nothing when the job has been taken back by then."""
    acted, _ = adopt(Slurm(running("n[1-2]"), running("n[1-2]", restarts=1)), place=1)

    assert acted == []
    assert adopt(Slurm(running("n2")), place=1)[0] == [("n0",)]


def test_a_job_that_lost_its_batch_script_and_its_leader_is_handed_back(adopt):
    """Both killed in one moment: SLURM would call the job failed, and no teardown runs."""
    facts = JobFacts(job_id="5", state="COMPLETING", restarts=0, nodes="n[0-2]", reason="JobLaunchFailure")

    assert adopt(Slurm(facts), silent=False)[0] == [("n0",)]


@pytest.mark.parametrize("facts", [running(restarts=1), running(state="COMPLETING"), running(state="CANCELLED")])
def test_a_job_that_ends_or_lives_again_is_left_alone(adopt, facts):
    """Cancelled, ending, or requeued already: not this agent's business."""
    assert adopt(Slurm(facts))[0] == []
    assert adopt(Slurm(facts), silent=False)[0] == []


def test_a_host_that_is_cut_off_does_nothing(adopt):
    """SLURM does not answer here: the others have the word."""
    acted, took = adopt(Slurm(None))

    assert acted == []
    assert took == pytest.approx(600, abs=5)


def test_a_rerun_ends_with_its_hold(adopt, monkeypatch):
    """Its leader was on the lost host, too, and there is no batch script whose teardown would write how it ended."""
    ended = []
    monkeypatch.setattr(leaderless, "act", lambda *words, **how: False)
    monkeypatch.setattr(leaderless, "conclude_reruns", lambda hold, said: ended.append(said))
    monkeypatch.setattr(SPEC, "hold", True)

    adopt(Slurm(*[running()] * 10, running("n[1-2]")))

    assert ended == ["n0, the leader's host, stopped answering and SLURM has removed it from the job"]


@pytest.fixture
def concluded(monkeypatch, tmp_path):
    """What becomes of a job whose last leader has ended; ``nodes`` are those that SLURM still lists, the batch host was n0."""

    def conclude(
        *, again=False, taken=False, outcome=None, continued=False, nodes="n[1-2]", error=None, unheard=0, acts=()
    ):
        paths, acts = RunPaths(tmp_path), list(acts)
        if outcome is not None:
            write_outcome(paths.outcome, {"state": outcome})
        if continued:
            event_lines.append(
                paths.events,
                events.event("requeued", attempt=0, how="continuation", job_id="6", seconds=0.1, delay_s=0.0),
            )
        slurm = Slurm(*[None] * unheard, running(nodes))
        slurm.requeued = taken

        def act(*words, **how):
            if error is not None:
                raise error
            if acts:
                slurm.requeued = acts.pop(0)(paths)
                return slurm.requeued
            return again

        monkeypatch.setattr(leaderless, "act", act)
        monkeypatch.setattr(leaderless, "time", Clock())
        leaderless.conclude(SPEC, paths, slurm, "n0")
        return slurm.ended, slurm.pulled

    return conclude


def test_a_job_without_a_batch_script_is_ended_when_its_run_is_over(concluded):
    """SLURM would keep its hosts to the time limit; whether the run has completed decides how. One that has its batch script ends by that."""
    assert concluded(outcome="completed") == ([True], 0)
    assert concluded(outcome="failed") == ([False], 0)
    assert concluded(outcome="completed", nodes="n[0-2]") == ([], 0)


@pytest.mark.parametrize(("silent", "place"), [(False, 0), (True, 0), (True, 1)])
def test_a_slurmctld_that_is_away_for_minutes_ends_no_turn(adopt, silent, place):
    """Each of the agents that stay would leave, and the job keep its hosts, empty. Behind it their turns begin one after the other."""
    acted, took = adopt(Slurm(*[None] * 200, running("n[1-2]")), silent=silent, place=place)

    assert acted == [("n0",)]
    assert took == pytest.approx(402 + 5 * place, abs=1)


def test_a_slurmctld_that_is_away_for_minutes_is_asked_again(concluded):
    """Nobody else would end the job: one question without an answer would leave its hosts idle to the time limit."""
    assert concluded(outcome="completed", unheard=200) == ([True], 0)
    assert concluded(outcome="completed", unheard=400) == ([], 0)


def test_a_job_without_a_batch_script_that_goes_on_elsewhere_is_ended(concluded):
    """Its continuation waits for its end."""
    assert concluded(continued=True) == ([False], 0)


def test_a_job_that_slurm_runs_again_is_pulled_forward_and_not_cancelled(concluded):
    """A cancel would end the run."""
    assert concluded(again=True, taken=True) == ([], 2)
    assert concluded(again=True, taken=True, outcome="completed") == ([], 2)


def test_a_job_whose_run_has_no_end_yet_is_left_alone(concluded):
    """SLURM does not answer, or another leader decides."""
    assert concluded() == ([], 0)


def test_a_slurm_that_was_away_for_longer_than_it_is_asked_is_asked_once_more(concluded):
    """The job runs on without a batch script: with no second word its hosts would be kept, empty, to the time limit."""
    assert concluded(acts=[lambda paths: False, lambda paths: True]) == ([], 2)
    assert concluded(acts=[lambda paths: False, lambda paths: write_outcome(paths.outcome, {"state": "failed"})]) == (
        [False],
        0,
    )


def test_a_job_that_another_leader_has_taken_over_meanwhile_is_left_to_it(concluded):
    """The first word said so, and there is no second one, which would end that leader's attempt."""
    assert concluded(acts=[lambda paths: claims.claim_attempt(paths) and False, lambda paths: True]) == ([], 0)


def test_a_job_whose_folder_is_away_is_ended_and_says_why(concluded):
    """Nobody could go on there, and without a batch script nobody else would end it."""
    assert concluded(error=OSError("EIO")) == ([False], 0)


def test_a_leader_that_stood_still_leaves_its_batch_host_a_successor_may_not(adopt, monkeypatch, tmp_path):
    """A leader on another host has died, long after the first host: whoever decides that the run is over ends the job."""
    monkeypatch.setattr(leaderless, "read_outcome", lambda path: {"state": "failed"})
    slurm = Slurm(running("n[1-2]"))
    slurm.requeued = False
    monkeypatch.setattr(leaderless, "SlurmAllocation", lambda spec, paths, environ, least_lead_s: slurm)
    monkeypatch.setattr(leaderless, "act", lambda *words, **how: False)
    monkeypatch.setattr(leaderless, "time", Clock())
    leaderless.adopt(
        SPEC,
        RunPaths(tmp_path),
        {},
        place=0,
        leader_host="n1",
        batch_host="n0",
        ports=[20000],
        silent=False,
        leads=lambda: False,
    )
    assert slurm.ended == [False]
