"""What breaks, and what the leader does about it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest
from an_event import an_event

from launcher.node.allocation import teardown
from launcher.node.checkpoints import committed
from launcher.node.leader.verify import Proof
from launcher.run import event_lines
from launcher.run.files import read_lines


def once(call):
    """A hook that acts the first time it is reached only."""
    done = []

    def hook(worker):
        if not done:
            done.append(worker)
            call(worker)

    return hook


def test_each_round_of_an_old_run_has_samples_of_its_own(world, virtual):
    """A run so old that samples are an hour apart: rounds of half a minute and more are sampled from their begin on."""
    w = world(checkpoint={"interval_steps": 10}, restart={"max_total_hours": 1e6})
    old_s = 3600 * 90_000 / w.spec.world_size
    now = time.time()
    for type_, t in (("attempt_started", now - old_s - 60), ("saved", now - 120), ("attempt_ended", now - 60)):
        event_lines.append(w.paths.events, an_event(type_, t=t, attempt=0, job_id="77", step=1))
    w.step_s, w.total_steps = 1.0, 60
    w.hooks[35] = [once(lambda worker: w.find(2).die(9))]

    assert virtual(w.attempt_once()).state == "completed"

    counted = Counter(line["round"] for line in read_lines(w.paths.samples))
    assert min(counted[0], counted[1]) >= 3
    assert sum(counted.values()) <= 14


def test_a_killed_worker_leads_to_a_new_round(world, virtual):
    """SIGKILL of one rank: a new round from the newest checkpoint, the cause named, the others its victims."""
    w = world(checkpoint={"interval_steps": 10})
    w.hooks[25] = [once(lambda worker: w.find(2).die(9))]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    starts = w.events("round_started")
    assert [e["resume_step"] for e in starts] == [None, 20]
    (failed,) = w.events("worker_failed")
    assert (failed["rank"], failed["host"], failed["cause"]["kind"], failed["cause"]["signal"]) == (
        2,
        "n1",
        "signal",
        9,
    )
    (victims,) = w.events("victims")
    assert {v["rank"] for v in victims["ranks"]} <= {0, 1, 3}
    assert w.events("decision")[0]["action"] == "new_round"


def test_victims_heard_first_are_not_the_cause(world, virtual):
    """Peers' connection errors arrive before the exit of the rank that died: the cause is still the dead rank."""
    w = world(checkpoint={"interval_steps": 10})

    def slow_exit(worker):
        dead = w.find(1)
        dead.task.cancel()
        dead.group.broken(dead)
        import asyncio

        asyncio.get_running_loop().call_later(0.4, lambda: dead.node.exited(dead, None, 11))

    w.hooks[15] = [once(slow_exit)]

    virtual(w.attempt_once())

    (failed,) = w.events("worker_failed")
    assert (failed["rank"], failed["cause"]["signal"]) == (1, 11)


def test_the_same_exception_three_times_ends_the_run(world, virtual):
    """A deterministic exception at one step: two restarts, then failed, saying where."""
    w = world(checkpoint={"interval_steps": 10})
    w.hooks[25] = [lambda worker: worker.fail("ValueError", "bad sample") if worker.rank == 3 else None]

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert ending.exit_code == 8
    assert len(w.events("worker_failed")) == 3
    assert "ValueError at step 25: bad sample" in ending.reason
    assert "3 times" in ending.reason
    assert w.outcome["cause"]["frames"][0]["line"] == 7


def test_restarts_without_progress_are_bounded(world, virtual):
    """A rank that is killed at the same place again and again: max_restarts restarts, then failed."""
    w = world(restart={"max_restarts": 3}, checkpoint={"interval_steps": 10})
    w.hooks[25] = [lambda worker: worker.die(11) if worker.rank == 0 else None]

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert len(w.events("round_started")) == 4
    assert "max_restarts" in ending.reason


def test_progress_refills_the_budget(world, virtual):
    """Ten kills, each after a new checkpoint, do not end the run."""
    w = world(checkpoint={"interval_steps": 4})
    for step in range(3, 40, 4):
        w.hooks[step] = [once(lambda worker: worker.die(9))]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert len(w.events("worker_failed")) == 10


def test_a_spare_takes_over_a_dead_node(world, virtual):
    """A node that falls silent is replaced by the spare within 15 s; its name is in the decision."""
    w = world(spare_nodes=1, checkpoint={"interval_steps": 5})
    w.total_steps = 400
    w.hooks[22] = [once(lambda worker: w.nodes[1].die(silently=True))]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    _, second = w.events("round_started")
    assert [r["host"] for r in second["ranks"]] == ["n0", "n0", "n2", "n2"]
    assert second["resume_step"] == 20
    assert w.events("node_lost")[0]["host"] == "n1"
    assert w.events("decision")[0]["evidence"] == "node_lost"


def test_a_silent_host_is_let_go_before_the_run_is_requeued(world, virtual):
    """SLURM would wait for its end up to SlurmdTimeout; a host whose agent alone has died ends by itself."""
    w = world(checkpoint={"interval_steps": 5})
    w.hooks[22] = [once(lambda worker: w.nodes[1].die(silently=True))]

    assert virtual(w.attempt_once()).state == "requeued"

    assert w.allocation.said == [("let_go", ("n1",)), ("hand_back", ("n1",), 0.0), ("pull_forward", [])]
    assert [e["let_go"] for e in w.events("requeued")] == [["n1"]]


def test_without_a_spare_the_run_is_requeued_without_the_lost_node(world, virtual):
    """A node whose agent dies: handed back, excluding it, the leader leaving after everybody else."""
    w = world(checkpoint={"interval_steps": 5})
    w.hooks[22] = [once(lambda worker: w.nodes[1].die())]

    ending = virtual(w.attempt_once())

    assert ending.state == "requeued"
    assert w.allocation.said == [("hand_back", ("n1",), 0.0), ("pull_forward", [])]
    assert w.outcome is None
    assert w.events("requeued")[0]["how"] == "requeue"
    assert w.events("excluded")[0]["hosts"] == ["n1"]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert w.events("round_started")[-1]["resume_step"] == 20


def test_a_refused_requeue_ends_failed_and_says_so(world, virtual):
    """SLURM does not take the run back: one sentence, failed."""
    w = world(checkpoint={"interval_steps": 5})
    w.allocation.refuses = "requeueing is disabled here."
    w.hooks[22] = [once(lambda worker: w.nodes[1].die())]

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert "requeueing is disabled here." in w.outcome["reason"]


def test_missing_nodes_are_named(world, virtual):
    """A node that never starts: named after 5 s, and in the outcome with its ranks after init_timeout_min."""
    w = world(init_timeout_min=0.5)

    ending = virtual(w.attempt_once(absent=(1,)))

    assert ending.state == "failed"
    assert "node n1 (ranks 2, 3) did not start within 0.5 min" in ending.reason.replace("Node", "node")
    assert w.events("node_missing")[0]["nodes"] == ["n1"]
    assert w.events("node_missing")[0]["waited_s"] < 7


def test_a_late_node_is_waited_for(world, virtual):
    """A node that starts 40 s late under init_timeout_min 1 trains with the others."""
    w = world(init_timeout_min=1.0)

    async def late():
        import asyncio

        await asyncio.sleep(40)
        w.nodes[1].join()

    ending = virtual(w.attempt_once(late, absent=(1,)))

    assert ending.state == "completed"
    assert len(w.events("node_missing")) == 3


def test_a_slow_import_of_torch_is_waited_for(world, virtual):
    """The first store needs ten minutes, as torch comes from a slow disk: no restart is spent."""
    w = world(init_timeout_min=30.0, preflight=False)

    async def slowly():
        import asyncio

        node = w.nodes[0]
        said, late = [], iter([600.0, 0.0])

        def on_store(m):
            said.append(m["round"])
            asyncio.get_running_loop().call_later(
                next(late), lambda: node.up("store_ready", round=m["round"], port=5000 + m["round"])
            )

        node.on_store = on_store
        await asyncio.sleep(599)
        assert said == [0]
        await w.until(lambda: w.nodes[0].workers)
        w.find(1).die(9)
        await w.until(lambda: len(said) > 1)

    ending = virtual(w.attempt_once(slowly))

    assert ending.state == "completed"
    assert [e["round"] for e in w.events("round_started")] == [0, 1]


def test_a_node_that_fails_its_checks_is_replaced(world, virtual):
    """Preflight: the bad host is excluded and named; the spare trains in its place."""
    w = world(preflight=True, spare_nodes=1)

    async def bad():
        w.nodes[0].check_ok = False

    ending = virtual(w.attempt_once(bad))

    assert ending.state == "completed"
    assert {r["host"] for r in w.events("round_started")[0]["ranks"]} == {"n1", "n2"}
    assert w.events("round_started")[0]["master_addr"] == "n1"
    assert "gpus: 3 of 4" in w.events("excluded")[0]["why"]


def test_a_node_that_dies_during_the_checks_does_not_hold_up_the_others(world, virtual):
    """Their all-reduce waits for it, until its time-out of 75 s: the processes of the checks are ended, and the spare takes its place."""
    w = world(preflight=True, spare_nodes=1)

    async def die():
        for node in (w.nodes[0], w.nodes[2]):
            asked = []
            end, answer = node.on_end, node.on_preflight
            node.on_preflight = asked.append
            node.on_end = lambda m, asked=asked, end=end, answer=answer: end(m) if not asked else answer(asked.pop())
        w.nodes[1].on_preflight = lambda m: w.nodes[1].die()

    assert virtual(w.attempt_once(die)).state == "completed"
    assert w.events("preflight")[0]["seconds"] < 20
    assert {r["host"] for r in w.events("round_started")[0]["ranks"]} == {"n0", "n2"}


def test_a_host_that_cannot_be_used_keeps_its_name(world, virtual):
    """No sentence begins with a host's name, whose first letter would be made a capital: nobody has a host N1."""
    w = world(preflight=True)

    async def die():
        w.nodes[1].on_preflight = lambda m: w.nodes[1].die()

    virtual(w.attempt_once(die))
    assert w.events("decision")[0]["reason"].startswith("Node n1 cannot be used;")


@pytest.mark.parametrize("floor_s", [60.0, 3.0])
def test_a_frozen_worker_is_found_within_ten_seconds(world, virtual, floor_s):
    """SIGSTOP of one rank: hang named with the laggard, and that it was frozen; stacks dumped, new round."""
    w = world(checkpoint={"interval_steps": 5}, restart={"hang_floor_s": floor_s})
    w.step_s = 0.02
    times = {}

    def freeze(worker):
        import asyncio

        frozen = w.find(3)
        frozen.state = "T"
        frozen.task.cancel()
        times["frozen"] = asyncio.get_running_loop().time()

    w.hooks[12] = [once(freeze)]

    async def see():
        import asyncio

        await w.until(lambda: bool(w.events("hang")))
        times["found"] = asyncio.get_running_loop().time()

    ending = virtual(w.attempt_once(see))

    assert ending.state == "completed"
    (hang,) = w.events("hang")
    assert [(x["rank"], x["host"], x["frozen"]) for x in hang["laggards"]] == [(3, "n1", True)]
    assert times["found"] - times["frozen"] < 10
    assert any(m["type"] == "dump" for m in w.nodes[1].heard)


def test_a_silent_hang_is_found_by_the_learned_limit(world, virtual):
    """Nobody progresses and nobody is frozen: the floor's time passes, then a new round."""
    w = world(checkpoint={"interval_steps": 5}, restart={"hang_floor_s": 30})
    w.hooks[12] = [once(lambda worker: worker.task.cancel())]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert w.events("hang")[0]["limit_s"] == 30
    assert w.events("decision")[0]["evidence"] == "hang"


def test_of_ranks_that_are_told_together_one_that_falls_behind_is_known(world, virtual):
    """`status` shows it before the hang is found: the heartbeat in which only the others had news told each rank of its node."""
    w = world(checkpoint={"enabled": False}, restart={"hang_floor_s": 30})
    w.detail_every_s, w.step_s = 16.0, 1.0
    shown = []

    def hang(worker):
        for rank in range(4):
            found = w.find(rank)
            found.task.cancel()
            if rank != 3:
                found.say("progress", step=13, step_time_s=1.0)
        loop = asyncio.get_running_loop()
        loop.call_later(3, lambda: shown.extend(rank.step for rank in w.leader._board.round.ranks))

    w.hooks[12] = [once(hang)]
    virtual(w.attempt_once())

    assert shown == [13, 13, 13, 11]


def test_of_a_hang_the_exact_places_count_not_the_reported_steps(world, virtual):
    """A rank that waits may have told of its last step a moment before the one that hangs: who hangs is asked for."""
    w = world(checkpoint={"interval_steps": 5}, restart={"hang_floor_s": 30})

    def hang(worker):
        for rank in range(4):
            found = w.find(rank)
            found.task.cancel()
            found.entered = 13 if rank == 2 else 14
            found.say("progress", step=14 if rank == 2 else 12)

    w.hooks[12] = [once(hang)]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert [x["rank"] for x in w.events("hang")[0]["laggards"]] == [2]


def test_a_full_disk_does_not_stop_training(world, virtual):
    """save_failed: training goes on from the old checkpoint, a later save succeeds, the run completes."""
    w = world(checkpoint={"interval_steps": 10})
    w.hooks[15] = [lambda worker: setattr(w, "disk_full", True)]
    w.hooks[25] = [lambda worker: setattr(w, "disk_full", False)]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert w.events("save_failed")[0]["errno_name"] == "ENOSPC"
    assert [e["step"] for e in w.events("saved")] == [10, 30, 40]
    assert w.leftovers() == []


def test_a_disk_that_stays_full_ends_the_run(world, virtual):
    """Work at risk for longer than max_at_risk_min: failed, saying so."""
    w = world(checkpoint={"interval_steps": 10}, restart={"max_at_risk_min": 1.0})
    w.total_steps, w.disk_full = 5000, True

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert "no checkpoint could be written for 1 minutes" in ending.reason.replace("No", "no")


@pytest.mark.parametrize("damage", ["flip", "cut", "manifest"])
def test_a_damaged_newest_checkpoint_is_passed_over(world, virtual, damage):
    """A flipped byte, a truncated file or a lost manifest: the one before is resumed from, saying so."""
    w = world(checkpoint={"interval_steps": 10})

    def hurt(worker):
        folder = w.paths.checkpoint(20)
        part = folder / "rank-00001"
        if damage == "flip":
            data = bytearray(part.read_bytes())
            data[0] ^= 1
            part.write_bytes(bytes(data))
        elif damage == "cut":
            part.write_bytes(b"")
        else:
            (folder / "manifest.json").unlink()
        worker.die(9)

    w.hooks[29] = [once(hurt)]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert w.events("round_started")[1]["resume_step"] == 10
    assert w.events("checkpoint_damaged")[0]["path"].endswith("step-00000020")
    assert [e["step"] for e in w.events("saved")] == [10, 20, 20, 30, 40]


@pytest.mark.parametrize("takes_s", [0, 1000])
@pytest.mark.parametrize("flipped", [True, False])
def test_a_large_checkpoint_is_read_while_the_round_runs(world, virtual, monkeypatch, takes_s, flipped):
    """One of more than 2 GiB: the round starts at once; no save of it counts before the verdict, none of a damaged one."""
    read = Proof._read

    async def slowly(proof):
        await asyncio.sleep(takes_s)
        await read(proof)

    monkeypatch.setattr(committed, "_SMALL_BYTES", 0)
    monkeypatch.setattr(Proof, "_read", slowly)
    w = world(checkpoint={"interval_steps": 10})

    def hurt(worker):
        if flipped:
            part = w.paths.checkpoint(20) / "rank-00001"
            part.write_bytes(bytes([part.read_bytes()[0] ^ 1]) + part.read_bytes()[1:])
        worker.die(9)

    w.hooks[29] = [once(hurt)]

    ending = virtual(w.attempt_once())

    rounds, saved = w.events("round_started"), w.events("saved")
    assert ending.state == "completed"
    assert [e["resume_step"] for e in rounds] == ([None, 20, 10] if flipped else [None, 20])
    assert [e["step"] for e in saved] == ([10, 20, 20, 30, 40] if flipped else [10, 20, 30, 40])
    assert [Path(e["path"]).name for e in w.events("checkpoint_damaged")] == ["step-00000020"] * flipped
    assert [e["evidence"] for e in w.events("decision")][1:-1] == ["checkpoint_damaged"] * flipped
    assert w.leftovers() == []


def test_a_stale_leader_goes_without_a_word(world, virtual):
    """A newer attempt is claimed: the old leader stops its round, commits nothing, writes no outcome."""
    from launcher.node.checkpoints import claims

    w = world(checkpoint={"interval_steps": 10})
    w.total_steps = 2000

    async def newer():
        await w.until(lambda: bool(w.events("saved")))
        claims.claim_attempt(w.paths)

    ending = virtual(w.attempt_once(newer))

    assert ending.state == "requeued"
    assert w.outcome is None
    assert not w.events("decision", "ended", "attempt_ended")


def test_a_host_that_fails_again_and_again_makes_room_for_a_spare(world, virtual):
    """Two failures in a row on one host without progress: the spare is used from then on."""
    w = world(spare_nodes=1, checkpoint={"interval_steps": 1000})
    w.hooks[5] = [lambda worker: worker.die(7) if worker.node.name == "n1" and worker.rank == 2 else None]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    hosts = [sorted({r["host"] for r in e["ranks"]}) for e in w.events("round_started")]
    assert hosts == [["n0", "n1"], ["n0", "n1"], ["n0", "n2"]]
    assert w.events("excluded")[0]["hosts"] == ["n1"]


def test_a_host_without_which_the_run_could_not_start_is_told(world, virtual):
    """Excluded, and given up by the allocation: the history says both, before it says that the run was handed back."""
    w = world(checkpoint={"interval_steps": 5})
    w.hooks[22] = [once(lambda worker: w.nodes[1].die())]
    w.allocation.given_up = ("n1",)

    assert virtual(w.attempt_once()).state == "requeued"

    told = [
        (e["type"], e.get("hosts"))
        for e in read_lines(w.paths.events)
        if e["type"] in ("excluded", "readmitted", "requeued")
    ]
    assert told == [("excluded", ["n1"]), ("readmitted", ["n1"]), ("requeued", None)]


def test_without_a_spare_the_next_attempt_does_not_get_a_host_that_failed_again_and_again(world, virtual):
    """Two failures in a row on one host: it trains on, since no other is there, and the requeue after it excludes it."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 20})
    w.hooks[5] = [lambda worker: worker.die(7) if worker.round < 2 and worker.rank == 2 else None]
    w.hooks[20] = [once(lambda worker: w.signal())]

    assert virtual(w.attempt_once()).state == "requeued"

    hosts = [sorted({r["host"] for r in e["ranks"]}) for e in w.events("round_started")]
    assert hosts == [["n0", "n1"]] * 3
    assert w.allocation.said[0] == ("hand_back", ("n1",), 0.0)
    assert [(e["hosts"], e["why"]) for e in w.events("excluded")] == [(["n1"], "its workers failed 2 times in a row")]


def test_one_failure_of_a_host_is_not_held_against_it(world, virtual):
    """A worker that failed once, then a preemption: the next attempt may get every host."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 20})
    w.hooks[5] = [lambda worker: worker.die(7) if worker.round < 1 and worker.rank == 2 else None]
    w.hooks[20] = [once(lambda worker: w.signal())]

    assert virtual(w.attempt_once()).state == "requeued"

    assert w.allocation.said[0] == ("hand_back", (), 0.0)


def test_a_dead_node_is_no_hang(world, virtual):
    """The hang limit is over before the silence is long enough: the node is to blame all the same."""
    w = world(spare_nodes=1, checkpoint={"interval_steps": 5}, restart={"hang_floor_s": 3})
    w.hooks[22] = [once(lambda worker: cut(w.nodes[1]))]

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert w.events("decision")[0]["evidence"] == "node_lost"


def cut(node):
    """The network goes, and the others' collectives just wait."""
    node.cut = True
    for w in node.workers:
        w.task.cancel()


def test_a_restarting_slurmctld_is_waited_for(world, virtual):
    """SLURM does not answer for a minute while the allocation is given back: asked again, requeued."""
    w = world(checkpoint={"interval_steps": 5})

    def lose(worker):
        import asyncio

        w.allocation.silent_until = asyncio.get_running_loop().time() + 60
        w.nodes[1].die()

    w.hooks[22] = [once(lose)]

    assert virtual(w.attempt_once()).state == "requeued"
    assert w.events("requeued")


def test_a_leader_that_is_cut_off_writes_no_outcome(world, virtual):
    """SLURM never answers: the run may go on elsewhere, so nothing is decided here."""
    w = world(checkpoint={"interval_steps": 5})
    w.allocation.silent_until = 1e9
    w.hooks[22] = [once(lambda worker: w.nodes[1].die())]

    ending = virtual(w.attempt_once())

    assert ending.exit_code == 5
    assert w.outcome is None
    assert "does not answer" in w.events("warning")[-1]["text"]


def test_a_malformed_shard_loses_that_save_alone(world, virtual):
    """A worker reports files without sizes: the save is lost, said, and the run goes on to its end."""
    w = world(checkpoint={"interval_steps": 10})
    real = w.worker_class.say

    class Odd(w.worker_class):
        def say(self, type_, **values):
            if type_ == "shard" and values["step"] == 20 and self.rank == 1:
                values["files"] = [{"name": "x"}]
            real(self, type_, **values)

    w.worker_class = Odd

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["step"] for e in w.events("saved")] == [10, 30, 40]
    assert w.events("save_failed")[0]["step"] == 20


def test_a_signal_is_heard_even_when_asking_fails(world, virtual, monkeypatch):
    """A fault while SLURM is asked counts as no answer: stopped and saved."""
    w = world(checkpoint={"interval_steps": 1000})

    def fail(signal):
        raise AttributeError("a fault of ours")

    async def script():
        await w.until(lambda: bool(w.events("first_step")))
        w.allocation.meaning = fail
        w.signal()
        await w.until(lambda: bool(w.events("agreed")))
        del w.allocation.meaning

    assert virtual(w.attempt_once(script)).state == "requeued"
    assert w.events("stopped")[0]["lost_steps"] == 0


@pytest.mark.parametrize("answers", [True, False], ids=["handed back", "slurm refuses"])
def test_a_leader_that_stood_still_while_another_acted_writes_nothing_more(world, virtual, answers):
    """Woken by SLURM's signals, it finds every agent gone: another has decided for it, and the history has one end, not two."""
    w = world(checkpoint={"interval_steps": 5})
    w.allocation.refuses = "" if answers else "no"
    left = {}

    async def frozen():
        await w.until(lambda: any(x.entered >= 22 for n in w.nodes for x in n.workers))
        teardown.act(w.spec, w.paths, w.allocation, exclude=("n0",))  # in one go: the leader's loop stands still
        left.update({p: p.read_bytes() for p in w.paths.root.iterdir() if p.is_file()})
        asyncio.get_running_loop().now += 35
        for node in w.nodes:
            node.die()

    ending = virtual(w.attempt_once(frozen))

    assert ending.state == "requeued"
    assert {p: p.read_bytes() for p in w.paths.root.iterdir() if p.is_file()} == left
    assert len(w.events("decision")) == 1
    assert len(w.events("requeued")) == int(answers)
    assert [said[0] for said in w.allocation.said if said[0] == "hand_back"] == ["hand_back"] * answers


@pytest.mark.parametrize("late_s", [1.0, 1.4, 4.0])
def test_the_cause_is_known_although_its_exit_is_told_late(world, virtual, late_s):
    """Rank 3 was killed, and its agent reads the log's end before it tells: the leader waits for that, or hears that it was not its own kill."""
    w = world(restart={"max_restarts": 0})

    def die(worker):
        if worker.rank != 3:
            return
        node, loop = worker.node, asyncio.get_running_loop()
        worker.task.cancel()
        node.workers.remove(worker)
        told_at = loop.time() + late_s
        loop.call_at(told_at, lambda: node.exited(worker, None, 9, by_us=False))
        end = node.on_end  # the agent says that the node is clear behind every exit
        node.on_end = lambda m: loop.call_at(max(told_at + 0.001, loop.time()), end, m)
        worker.group.broken(worker)

    w.hooks[10] = [die]

    assert virtual(w.attempt_once()).state == "failed"
    (failed,) = w.events("worker_failed")
    assert (failed["rank"], failed["cause"]["signal"]) == (3, 9)


def test_an_evaluation_of_forty_minutes_ends_no_run(world, virtual):
    """It is taken for a hang once; the next round waits four times as long for it."""
    w = world()

    class Evaluating(w.worker_class):
        async def main(self):
            self.say("hello", pid=1000 + self.rank)
            await self.group.meet(("ready", 0), self)
            self.say("ready")
            self.say("phase", name="train")
            self.say("progress", step=1, epoch=0, total_steps=1, step_time_s=1.0)
            self.say("phase", name="evaluate")
            await asyncio.sleep(2400)
            self.done = True
            self.say("finished", step=1, saved=True)
            await self.exit()

    w.worker_class = Evaluating

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["limit_s"] for e in w.events("hang")] == [1800.0]
