"""Processes of the launcher die on the real cluster: the allocation is kept, and the end is the undisturbed one, bit for bit."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import Run, digest, seldom, start, struck_by, submit, tells

Undisturbed = Callable[[int], str]


LONG = {"step_s": 0.1, "epochs": 12}
ONE_NODE = {"nodes": 1, "tasks_per_node": 3, "cpus_per_task": 1}


def _both(run: Run) -> None:
    inflict.kill_agent(run, 2, 0)


def _all(run: Run) -> None:
    inflict.kill_agent(run, 2, 1, 0)


STRIKES: dict[str, tuple[Callable[[Run], object], str]] = {
    "agent killed": (lambda run: inflict.kill_agent(run, 1), "node_lost"),
    "leader killed": (lambda run: inflict.kill_agent(run, 0), "leader_gone"),
    "revived agent killed": (lambda run: inflict.kill_agent(run, 1), "node_lost"),
    "revived leader killed": (lambda run: inflict.kill_agent(run, 0), "leader_gone"),
    "agent frozen": (lambda run: inflict.agents(run)[2].send_signal(signal.SIGSTOP), "node_lost"),
    "leader frozen": (lambda run: inflict.agents(run)[0].send_signal(signal.SIGSTOP), "leader_gone"),
    "agent and leader killed": (_both, "leader_gone"),
    "all agents killed": (_all, "leader_gone"),
    "sruns killed": (inflict.kill_srun, ""),  # each takes its step along, sooner or later
}


@pytest.fixture(scope="module")
def struck(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has suffered all of these."""
    strikes = [strike for strike, _ in STRIKES.values()]
    return struck_by(cluster, tmp_path_factory.mktemp("struck"), strikes, params=LONG)


@pytest.mark.parametrize("fault", STRIKES)
def test_what_dies_is_started_again_in_place(struck: Run, fault: str) -> None:
    """One job, one attempt; the decision names what died, and the next round has every host again."""
    number = list(STRIKES).index(fault)
    evidence = {"evidence": STRIKES[fault][1]} if STRIKES[fault][1] else {}

    tells(
        struck,
        ("saved", {"round": number}),
        ("decision", {**evidence, "action": "new_round"}),
        ("round_started", {"attempt": 0, "round": number + 1}),
        ("first_step", {"round": number + 1}),
        ("ended", {"state": "completed"}),
    )
    rounds = struck.told("round_started")
    assert [r["host"] for r in rounds[number + 1]["ranks"]] == [r["host"] for r in rounds[0]["ranks"]]
    assert len(rounds) >= 1 + len(STRIKES)
    assert len(struck.told("attempt_started")) == 1


def test_a_killed_leader_costs_its_own_agent_alone(clean: Cluster, tmp_path: Path) -> None:
    """The batch script's srun and the other agents live on; 26.05 shows that srun as if it were in a step, where agents are."""
    run = start(clean, tmp_path, params=LONG)
    agents = [agent for node, agent in inflict.agents(run).items() if node]
    others = [*agents, *inflict.sruns(run)]

    inflict.kill_agent(run, 0)

    run.wait_round(1)
    run.wait("the round's first step", lambda: run.told("first_step", round=1))
    assert len(agents) == 2 < len(others)
    assert [process for process in others if not process.is_running()] == []


def test_a_killed_keeper_is_started_again(clean: Cluster, tmp_path: Path) -> None:
    """kill -9 of the keeper, and then of an agent: that one is started again in place, in the same attempt."""
    run = start(clean, tmp_path, params={**LONG, "epochs": 60})
    before = inflict.keeper(run)
    before.kill()
    run.wait("another keeper, which has found the leader", lambda: not before.is_running() and inflict.is_kept(run), 60)

    inflict.kill_agent(run, 1)

    run.wait("a new round's first step", lambda: run.told("first_step", attempt=0, round=1), 60)
    assert len(run.told("agent_revived")) == len(run.told("attempt_started")) == 1
    assert [e for e in run.told("warning") if "keeper" in e["text"]] == []


def test_an_agent_of_a_run_that_was_preempted_before_is_started_again(clean: Cluster, tmp_path: Path) -> None:
    """The job's record may still tell of the preemption in its next life: that is no reason to give the job back."""
    run = start(clean, tmp_path)
    inflict.preempt(clean, run.state()["nodes"], seconds=5)
    run.wait("the next attempt's first step", lambda: run.told("first_step", attempt=1), 240)

    inflict.kill_agent(run, 1)

    run.wait("a new round in that attempt", lambda: run.told("first_step", attempt=1, round=1), 60)
    assert len(run.told("attempt_started")) == 2


def test_a_cancelled_step_cancels_the_run(clean: Cluster, tmp_path: Path) -> None:
    """`scancel JOB.0` kills every agent at once: nothing of it is started again, and nothing comes back."""
    run = start(clean, tmp_path)

    clean.run(["scancel", f"{run.job_id}.0"])

    assert run.wait_end()["state"] == "cancelled"
    run.wait_no_process()
    assert len(run.told("attempt_started")) == 1
    assert run.told("leader_revived") == []


def _own_srun(run: Run) -> None:
    """The srun of a step of its own dies: the keeper's, which takes its step along."""
    next(srun for srun in inflict.sruns(run) if "--overlap" in srun.cmdline()).kill()


def _leader(run: Run) -> None:
    inflict.kill_agent(run, 0)


CANCELS: dict[str, tuple[tuple[Callable[[Run], None], ...], int]] = {
    "first step": ((_leader,), 0),
    "first step, an srun killed before": ((_leader, _own_srun), 0),
    "own step of an agent": ((lambda run: inflict.kill_agent(run, 1),), 1),
}
"""What is killed before, a round each, and the step that is cancelled then."""


@pytest.mark.parametrize("step", seldom(CANCELS, "first step, an srun killed before", "own step of an agent"))
def test_a_cancelled_step_cancels_the_run_though_the_leader_is_in_another(
    clean: Cluster, tmp_path: Path, step: str
) -> None:
    """It kills the agents in that step alone: none is started again, no host is excluded, and nothing comes back."""
    run = start(clean, tmp_path, params=LONG)
    strikes, number = CANCELS[step]
    for round_, strike in enumerate(strikes, 1):
        strike(run)
        run.wait("progress of the next round", lambda round_=round_: run.told("saved", round=round_))

    clean.run(["scancel", f"{run.job_id}.{number}"])

    assert run.wait_end()["state"] == "cancelled"
    run.wait_no_process()
    assert len(run.told("attempt_started")) == 1
    assert len(run.told("round_started")) == 1 + len(strikes)
    assert run.told("excluded") == []


def _led_anew(cluster: Cluster, folder: Path) -> Run:
    run = start(cluster, folder, params=LONG)
    inflict.kill_agent(run, 0)
    run.wait("progress of the next round", lambda: run.told("saved", round=1))
    return run


def test_a_term_by_hand_after_the_leader_was_started_again(clean: Cluster, tmp_path: Path) -> None:
    """`scancel --signal=TERM JOB` reaches the agents of both steps: saved, cancelled, nothing lost."""
    run = _led_anew(clean, tmp_path)

    clean.run(["scancel", "--signal=TERM", run.job_id])

    assert run.wait_end()["state"] == "cancelled"
    run.wait_no_process()
    assert [e["lost_steps"] for e in run.told("stopped")] == [0]
    assert len(run.told("attempt_started")) == 1
    assert len(run.told("round_started")) == 2


@pytest.mark.long
@pytest.mark.parametrize(("step", "hosts"), [(0, 2), (1, 1)])
def test_a_term_to_one_of_two_steps_is_taken_for_hosts_that_shut_down(
    clean: Cluster, tmp_path: Path, step: int, hosts: int
) -> None:
    """SLURM tells nobody of it, and the other step's agents hear nothing: saved, nothing lost, and the run goes on elsewhere."""
    run = _led_anew(clean, tmp_path)

    # scancel says an error where one of the step's tasks is gone, and has sent it to the others.
    clean.run(["scancel", "--signal=TERM", f"{run.job_id}.{step}"], check=False)

    assert run.wait_end()["state"] == "completed"
    assert len(run.told("signal", meaning="host_leaves")) == hosts
    assert [e["lost_steps"] for e in run.told("stopped")] == [0]
    assert len(run.told("attempt_started")) == 2


def test_the_end_is_the_undisturbed_one(struck: Run, tmp_path: Path) -> None:
    """Bit for bit, with nothing left behind."""
    reference = submit(tmp_path, {}, 3, backend="local", params={**LONG, "step_s": 0.0}, resources=ONE_NODE)
    assert reference.wait_end()["state"] == "completed"
    assert digest(struck) == digest(reference)
    struck.wait_no_process()
