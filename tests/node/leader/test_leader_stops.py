"""Stopping at an agreed step: preemption, time limit, cancel; and that it never deadlocks and always agrees."""

from __future__ import annotations

import errno
import random

import pytest
from acts import plain_script, stop_at

from launcher.node.allocation.allocation import SignalMeaning
from launcher.node.leader import finish


@pytest.mark.parametrize("kind", ["preempted", "time_limit"])
def test_a_preempted_run_saves_and_is_requeued(world, virtual, kind):
    """Agreed stop, save at that step, requeue, StartTime pulled forward last; the next attempt goes on from there."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 20})
    w.allocation.means = SignalMeaning(kind)

    ending = virtual(w.attempt_once(stop_at(w, 17)))

    assert ending.state == "requeued"
    agreed = w.events("agreed")[0]["step"]
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert w.events("saved")[-1]["step"] == agreed
    assert w.events("saved")[-1]["reason"] == "stop"
    assert w.allocation.said == [("hand_back", (), 0.0), ("pull_forward", [])]
    assert w.events("signal")[0]["meaning"] == kind
    assert len(w.events("signal")) == 1

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert w.events("round_started")[-1]["resume_step"] == agreed


@pytest.mark.parametrize("detail_every_s", [1.0, 16.0])
def test_progress_that_comes_with_the_heartbeat_stops_the_run_no_worse(world, virtual, detail_every_s):
    """The leader knows of the ranks' steps up to a second late, and of each one's up to 16 s: they agree as well, and nothing is lost."""
    w = world(checkpoint={"interval_min": 0.05}, site={"grace_s": 20})
    w.detail_every_s, w.step_s, w.total_steps = detail_every_s, 0.3, 400
    w.allocation.means = SignalMeaning("preempted")
    shown = []

    async def script():
        await w.until(lambda: bool(w.events("first_step")))
        await w.until(lambda: w.leader._board.round.step >= 100)
        shown.extend(rank.step for rank in w.leader._board.round.ranks)
        w.signal("TERM")

    assert virtual(w.attempt_once(script)).state == "requeued"
    assert min(shown) >= 95
    assert len(w.events("saved")) >= 5
    assert w.events("saved")[-1]["step"] == w.events("agreed")[0]["step"]
    assert w.events("stopped")[0]["lost_steps"] == 0


def test_each_excluded_host_is_told_with_its_own_reason(world, virtual):
    """A host that had failed before a preemption is not used again, and the history does not blame the preemption for it."""
    w = world(spare_nodes=1, checkpoint={"interval_steps": 5}, site={"grace_s": 20})
    w.total_steps = 400
    w.allocation.means = SignalMeaning("preempted")
    w.hooks[22] = [lambda worker: w.nodes[1].die() if worker.round == 0 and worker.rank == 2 else None]

    ending = virtual(w.attempt_once(stop_at(w, 60)))

    assert ending.state == "requeued"
    assert [(e["hosts"], e["why"]) for e in w.events("excluded")] == [(["n1"], "its connection closed")]


def test_a_cancelled_run_saves_and_never_comes_back(world, virtual):
    """scancel: saved where time allows, requeueing forbidden, outcome cancelled."""
    w = world(checkpoint={"interval_steps": 1000})
    w.allocation.means = SignalMeaning("cancelled")

    ending = virtual(w.attempt_once(stop_at(w, 17)))

    assert (ending.state, ending.exit_code) == ("cancelled", 9)
    assert w.outcome["state"] == "cancelled"
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert w.allocation.said == [("forbid_requeue",)]


@pytest.mark.parametrize("how", ["scancel", "a request whose signal is lost"])
def test_a_cancel_after_a_preemption_outranks_it(world, virtual, how):
    """A cancel while a preempted run is stopping, heard or found only at its end: cancelled, not requeued."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 60})
    w.save_s = 5.0

    async def script():
        await stop_at(w, 10)()
        await w.until(lambda: bool(w.events("agreed")))
        if how == "scancel":
            w.allocation.is_cancelled = True
        else:
            w.paths.request.write_text("{}")

    ending = virtual(w.attempt_once(script))

    assert ending.state == "cancelled"
    assert w.allocation.said == [("forbid_requeue",)]


def test_slurm_not_answering_saves_and_does_not_requeue(world, virtual):
    """Nobody says why TERM came: saved, failed, and the reason says how to go on."""
    w = world(checkpoint={"interval_steps": 1000})
    w.allocation.means = SignalMeaning("unknown")

    ending = virtual(w.attempt_once(stop_at(w, 17)))

    assert ending.state == "failed"
    assert "resubmit" in ending.reason
    assert w.events("stopped")[0]["lost_steps"] == 0


def test_a_users_request_stays_on_file(world, virtual):
    """`cancel --save`: agreed stop without a deadline, saved, cancelled. `why` and whoever replaces a dead leader read the request."""
    w = world(checkpoint={"interval_steps": 1000})
    w.allocation.means = SignalMeaning("user")
    w.save_s = 100.0

    async def script():
        await w.until(lambda: bool(w.events("first_step")))
        w.paths.request.write_text("{}")
        w.signal("USR2")

    ending = virtual(w.attempt_once(script))

    assert ending.state == "cancelled"
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert w.paths.request.exists()


def test_during_start_up_there_is_nothing_to_save(world, virtual):
    """Preempted before the group is up: requeued at once."""
    w = world()
    w.start_s = 30.0

    async def script():
        await w.until(lambda: bool(w.events("round_started")))
        w.signal()

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert not w.events("saved")


def test_while_waiting_for_nodes_a_preemption_requeues(world, virtual):
    """Preempted while a node is missing: requeued."""
    w = world()

    async def script():
        import asyncio

        await asyncio.sleep(7)
        w.signal()

    ending = virtual(w.attempt_once(script, absent=(1,)))

    assert ending.state == "requeued"


def test_twice_in_a_row(world, virtual):
    """Two preemptions with little between them; no step is lost."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 20})

    assert virtual(w.attempt_once(stop_at(w, 5))).state == "requeued"
    assert virtual(w.attempt_once(stop_at(w, 9))).state == "requeued"
    assert virtual(w.attempt_once()).state == "completed"

    assert [e["lost_steps"] for e in w.events("stopped")] == [0, 0]


def test_attempts_without_progress_back_off_then_stop(world, virtual):
    """Preempted during every start-up: later attempts wait longer, then the run ends failed."""
    w = world(restart={"max_restarts": 3})
    w.start_s = 30.0

    async def script():
        count = len(w.events("round_started"))
        await w.until(lambda: len(w.events("round_started")) > count)
        w.signal()

    states = [virtual(w.attempt_once(script)).state for _ in range(4)]

    assert states == ["requeued", "requeued", "requeued", "failed"]
    delays = [said[2] for said in w.allocation.said if said[0] == "hand_back"]
    assert delays == [0.0, 30.0, 60.0]


def test_a_save_that_does_not_fit_costs_work_not_the_run(world, virtual):
    """The save takes longer than the grace: requeued in time with the older checkpoint."""
    w = world(checkpoint={"interval_steps": 10}, site={"grace_s": 0, "kill_wait_s": 10})
    w.step_s = 1.0
    w.allocation.means = SignalMeaning("preempted_now")
    ended = {}

    async def script():
        import asyncio

        await stop_at(w, 17)()
        ended["signal"] = asyncio.get_running_loop().time()
        w.save_s = 1000.0
        await w.until(lambda: bool(w.events("requeued")))
        ended["requeued"] = asyncio.get_running_loop().time()

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert w.events("stopped")[0]["lost_steps"] > 0
    assert w.leftovers() == []


def test_a_stop_at_the_last_step_is_completion(world, virtual):
    """S = N: completed, never requeued."""
    w = world(checkpoint={"interval_steps": 10}, site={"grace_s": 60})
    w.step_s = 1.0

    ending = virtual(w.attempt_once(stop_at(w, 40)))

    assert ending.state == "completed"
    assert not [s for s in w.allocation.said if s[0] == "hand_back"]


@pytest.mark.parametrize(("code", "state"), [(0, "requeued"), (1, "requeued"), (143, "requeued"), (None, "requeued")])
def test_any_exit_of_a_script_after_term_means_stopped(world, virtual, code, state):
    """A script told by TERM may exit as it likes: the run is requeued, nobody failed."""
    from launcher.run.spec import Work

    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, site={"grace_s": 20})
    w.worker_class = plain_script(w)
    w.term_code = code

    async def script():
        import asyncio

        await w.until(lambda: len([x for n in w.nodes for x in n.workers]) == 4)
        await asyncio.sleep(3)
        w.signal()

    ending = virtual(w.attempt_once(script))

    assert ending.state == state
    assert not w.events("worker_failed")


@pytest.mark.parametrize("watch", [None, "ckpt/*"])
def test_scripts_that_exit_zero_complete_the_run(world, virtual, watch):
    """Exit code 0 of every script worker is completion. Time counts as progress where no files of its own would tell."""
    from launcher.run.spec import Work

    w = world(work=Work(kind="script", target="train.py"), checkpoint={"watch": watch})
    w.worker_class = plain_script(w, seconds=900)

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert bool(w.events("progress_assumed")) is (watch is None)


@pytest.mark.parametrize("seed", range(200))
def test_stops_always_agree_and_never_deadlock(world, virtual, seed):
    """200 stops at random moments, 1-50 ms steps, random delays, 1 to 8 workers: all stop at one step, saved, none lost."""
    rng = random.Random(seed)
    nodes, per = rng.choice([(1, 1), (1, 2), (1, 3), (2, 2), (3, 1), (5, 1), (2, 4), (4, 2)])
    w = world(
        nodes=nodes,
        tasks_per_node=per,
        seed=seed,
        checkpoint={"interval_steps": rng.choice([3, 7, 1000])},
        site={"grace_s": 600},
    )
    w.step_s, w.save_s, w.max_delay_s = rng.uniform(0.001, 0.05), rng.uniform(0.0, 0.1), rng.choice([0.001, 0.05, 0.5])
    w.total_steps = 120

    ending = virtual(w.attempt_once(stop_at(w, rng.randint(1, 100))))

    assert ending.state in ("requeued", "completed")
    if ending.state == "requeued":
        assert w.events("stopped")[0]["lost_steps"] == 0
        assert w.events("agreed")[0]["step"] == w.events("saved")[-1]["step"]
    else:
        assert w.events("saved")[-1]["step"] == 120
    assert not w.events("worker_failed", "hang", "node_lost")
    assert w.leftovers() == []


def test_slurm_is_asked_again_when_the_stop_is_over(world, virtual):
    """No answer at the signal, one at the end: what it says then counts."""
    w = world(checkpoint={"interval_steps": 1000})
    w.allocation.means = SignalMeaning("unknown")

    async def script():
        await stop_at(w, 17)()
        await w.until(lambda: bool(w.events("stop_requested")))
        w.allocation.means = SignalMeaning("preempted")

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert [e["meaning"] for e in w.events("signal")] == ["unknown", "preempted"]


def test_a_signal_that_comes_early_leaves_the_time_to_training(world, virtual):
    """SLURM sends USR2 up to 60 s before it was asked to: the stop begins signal_lead_s before the limit."""
    w = world(checkpoint={"interval_steps": 1000}, restart={"signal_lead_s": 20}, site={"kill_wait_s": 30})
    w.total_steps, w.step_s = 5000, 0.5
    w.allocation.means = SignalMeaning("time_limit", 30 + 20 + 45)
    times = {}

    async def script():
        import asyncio

        await stop_at(w, 5, "USR2")()
        times["signal"] = asyncio.get_running_loop().time()
        await w.until(lambda: bool(w.events("stop_requested")))
        times["stop"] = asyncio.get_running_loop().time()

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert times["stop"] - times["signal"] == pytest.approx(45, abs=1)
    assert w.events("stop_requested")[0]["deadline_s"] <= 20
    assert w.events("stopped")[0]["lost_steps"] == 0


@pytest.mark.parametrize("told", ["by TERM", "when asked"])
@pytest.mark.parametrize("when", ["time left to training", "stopping", "saving"])
def test_a_scancel_in_the_window_before_the_time_limit_ends_the_run(world, virtual, when, told):
    """USR2 has announced the time limit; then somebody cancels, by TERM or, unheard, in SLURM alone: cancelled, not requeued."""
    w = world(checkpoint={"interval_steps": 1000}, restart={"signal_lead_s": 20}, site={"kill_wait_s": 30})
    w.total_steps, w.step_s, w.save_s = 5000, 0.5, 5.0
    w.allocation.means = SignalMeaning("time_limit", 30 + 20 + 45)
    seen = {"time left to training": "signal", "stopping": "stop_requested", "saving": "save_started"}[when]

    async def script():
        await stop_at(w, 5, "USR2")()
        await w.until(lambda: bool(w.events(seen)))
        w.allocation.is_cancelled = True
        w.allocation.means = SignalMeaning("cancelled", 0.0)
        if told == "by TERM":
            w.signal("TERM")

    ending = virtual(w.attempt_once(script))

    assert (ending.state, w.outcome["state"]) == ("cancelled", "cancelled")
    assert w.allocation.said == [("forbid_requeue",)]
    assert not w.events("requeued")
    early = when == "time left to training" and told == "by TERM"
    assert w.events("stop_requested")[0]["cause"] == ("cancelled" if early else "time_limit")


def test_int_stops_as_term_does_and_is_told_by_its_name(world, virtual):
    """^C, or ``scancel --signal=INT``: the history and the reason say SIGINT."""
    w = world(checkpoint={"interval_steps": 100})
    w.allocation.means = SignalMeaning("terminated")

    async def script():
        await w.until(lambda: len(w.events("first_step")) == 1)
        w.signal("INT")

    ending = virtual(w.attempt_once(script))

    assert ending.state == "cancelled"
    assert [(e["name"], e["meaning"]) for e in w.events("signal")] == [("INT", "terminated")]
    assert "INT was sent to the job" in w.events("decision")[0]["reason"]


@pytest.mark.parametrize("name", ["USR1", "HUP"])
def test_a_signal_that_means_nothing_is_noted_once(world, virtual, name):
    """Every agent of the step reports it; training goes on."""
    w = world(checkpoint={"interval_steps": 100})

    async def script():
        await w.until(lambda: len(w.events("first_step")) == 1)
        w.signal(name)

    ending = virtual(w.attempt_once(script))

    assert ending.state == "completed"
    assert [(e["name"], e["meaning"]) for e in w.events("signal")] == [(name, "nothing")]


def test_a_false_alarm_costs_no_step(world, virtual):
    """SLURM was silent at the signal and says afterwards that it wants nothing: on in the same allocation, from the same step."""
    w = world(checkpoint={"interval_steps": 1000})
    w.allocation.means = SignalMeaning("unknown")

    async def script():
        await stop_at(w, 17, "USR2")()
        await w.until(lambda: bool(w.events("stopped")))
        w.allocation.means = SignalMeaning("nothing")

    ending = virtual(w.attempt_once(script))

    assert ending.state == "completed"
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert [e["resume_step"] for e in w.events("round_started")] == [None, w.events("agreed")[0]["step"]]
    assert w.allocation.said == []


def test_a_false_alarm_while_nodes_are_waited_for(world, virtual):
    """A signal that nobody explains comes before all nodes are here, and means nothing: they are waited for again."""
    w = world()
    w.allocation.means = SignalMeaning("unknown")

    async def script():
        import asyncio

        await asyncio.sleep(7)
        w.signal("USR2")
        await asyncio.sleep(10)
        w.allocation.means = SignalMeaning("nothing")
        await asyncio.sleep(10)
        w.nodes[1].join()

    ending = virtual(w.attempt_once(script, absent=(1,)))

    assert ending.state == "completed"
    assert len(w.events("round_started")) == 1


def test_a_signal_that_means_nothing_stops_nothing(world, virtual):
    """`scancel --signal=USR2`: the workers do not even pause."""
    w = world(checkpoint={"interval_steps": 1000})
    w.allocation.means = SignalMeaning("nothing")

    ending = virtual(w.attempt_once(stop_at(w, 17, "USR2")))

    assert ending.state == "completed"
    assert not w.events("stop_requested", "stopped")
    assert len(w.events("round_started")) == 1


def test_a_request_that_a_slow_file_system_shows_late_is_found(world, virtual):
    """USR2 announces `cancel --save`, and the leader's node sees the file half a minute later: cancelled all the same."""
    w = world(checkpoint={"interval_steps": 1000})
    w.step_s, w.total_steps = 0.5, 5000
    w.allocation.means = SignalMeaning("nothing")

    async def script():
        import asyncio

        await stop_at(w, 17, "USR2")()
        await asyncio.sleep(30)
        w.paths.request.write_text("{}")

    ending = virtual(w.attempt_once(script))

    assert ending.state == "cancelled"
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert w.paths.request.exists()


def test_term_sent_by_hand_ends_the_run_for_good(world, virtual):
    """`scancel --signal=TERM`: SLURM kills nothing, so there is time to save; cancelled, requeueing forbidden."""
    w = world(checkpoint={"interval_steps": 1000})
    w.allocation.means = SignalMeaning("terminated")
    w.step_s, w.save_s = 0.5, 100.0

    ending = virtual(w.attempt_once(stop_at(w, 17)))

    assert (ending.state, ending.exit_code) == ("cancelled", 9)
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert w.allocation.said == [("forbid_requeue",)]


@pytest.mark.parametrize("kind", ["preempted", "preempted_now", "time_limit"])
@pytest.mark.parametrize("first", ["user", "the other"])
def test_a_users_cancel_outranks_what_takes_the_nodes(world, virtual, kind, first):
    """`cancel --save` and a preemption in one stop, in either order: the run does not come back."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 60, "kill_wait_s": 30})
    w.save_s = 5.0
    kinds = ["user", kind] if first == "user" else [kind, "user"]
    w.allocation.means = SignalMeaning(kinds[0])

    async def script():
        await stop_at(w, 10)()
        await w.until(lambda: bool(w.events("agreed")))
        w.allocation.means = SignalMeaning(kinds[1])
        w.signal("USR2")

    ending = virtual(w.attempt_once(script))

    assert ending.state == "cancelled"
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert w.allocation.said == [("forbid_requeue",)]


def test_a_second_term_within_a_second_is_asked_about(world, virtual):
    """scancel half a second after a preemption began: not taken for another agent's word of the first signal."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 60, "kill_wait_s": 30})
    w.save_s = 5.0

    async def script():
        import asyncio

        await stop_at(w, 10)()
        await asyncio.sleep(0.3)
        w.allocation.means = SignalMeaning("cancelled")
        w.signal()

    ending = virtual(w.attempt_once(script))

    assert ending.state == "cancelled"
    assert [e["meaning"] for e in w.events("signal")] == ["preempted", "cancelled"]
    assert w.events("stopped")[0]["lost_steps"] == 0


@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled", "requeued"])
def test_passed_values_stay_for_a_next_attempt_and_go_with_the_run(world, virtual, ends):
    """The file that holds secrets outlives a requeue, which needs it, and not the run."""
    w = world(checkpoint={"interval_steps": 5}, restart={"max_restarts": 0} if ends == "failed" else {})
    w.paths.passed.write_text('{"TOKEN": "hunter2"}')
    w.allocation.means = SignalMeaning("preempted" if ends == "requeued" else "cancelled")
    if ends == "failed":
        w.hooks[7] = [lambda worker: worker.fail("ValueError", "no") if worker.rank == 1 else None]

    ending = virtual(w.attempt_once(*([stop_at(w, 17)] if ends in ("cancelled", "requeued") else [])))

    assert ending.state == ends
    assert w.paths.passed.exists() == (ends == "requeued")


def test_passed_values_stay_where_the_outcome_could_not_be_written(world, virtual, monkeypatch):
    """The batch script finds no outcome and starts the run again: that attempt needs them."""

    def full(path, outcome):
        raise OSError(errno.ENOSPC, "No space left on device")

    w = world()
    w.paths.passed.write_text('{"TOKEN": "hunter2"}')
    monkeypatch.setattr(finish, "write_outcome", full)

    assert virtual(w.attempt_once()).state == "completed"
    assert w.paths.passed.exists()


def test_a_run_without_restarts_may_be_preempted_before_its_first_checkpoint(world, virtual):
    """`restart.max_restarts: 0` is about failures: the first preemption requeues, a second one without a checkpoint does not."""
    w = world(restart={"max_restarts": 0})
    w.allocation.means, w.save_s = SignalMeaning("preempted_now", 0.5), 30.0

    assert virtual(w.attempt_once(stop_at(w, 2))).state == "requeued"
    assert virtual(w.attempt_once(stop_at(w, 2))).state == "failed"
