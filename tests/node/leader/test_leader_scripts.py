"""Scripts and the leader: attached ranks stop by agreement, whatever SLURM's TERM ends has stopped, and each may end as Python ends."""

from __future__ import annotations

import asyncio
import os
import re

import pytest
from acts import plain_script, stop_at

from launcher.node.allocation.allocation import SignalMeaning
from launcher.node.wire.messages import SHUTDOWN_S
from launcher.report.diagnosis.why import explain
from launcher.report.model.history import read_history
from launcher.report.model.summary import summarise_history
from launcher.run import clock
from launcher.run.spec import Work

LOADER = "DataLoader worker (pid 4242) is killed by signal: Terminated. "


def attached_script(w, *, never=()):
    """Workers that say ``attached`` before anything else but their start; ranks in ``never`` do not."""

    class Attached(w.worker_class):
        def say(self, type_, **values):
            if self.rank in never:
                return
            if type_ == "ready":
                super().say("attached")
            elif type_ != "phase":
                super().say(type_, **values)

    return Attached


def scripts(world, **changes):
    """A world of scripts in which every rank is attached."""
    changes = {"checkpoint": {"interval_steps": 1000}, "site": {"grace_s": 60}, **changes}
    w = world(work=Work(kind="script", target="train.py"), **changes)
    w.worker_class = attached_script(w)
    return w


def test_an_attached_script_is_told_to_stop_by_agreement_from_the_first_word_on(world, virtual):
    """Preempted before its first progress, with some ranks' word under way: an agreed step, saved, nothing lost."""
    w = scripts(world)
    w.step_s = 20.0

    async def script():
        await w.until(lambda: len(w.nodes[1].workers) == 2 and all(x.entered == 1 for n in w.nodes for x in n.workers))
        w.signal()

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert [e["step"] for e in w.events("agreed")] == [1]
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert [e["step"] for e in w.events("saved")] == [1]


@pytest.mark.parametrize("order", ["TERM first", "failure first", "agreement first"])
def test_what_slurms_term_ends_has_stopped(world, virtual, order):
    """A loader worker that SLURM's TERM killed takes its rank along, and the others lose it: no failure, no useless new round."""
    w = scripts(world)

    async def script():
        await w.until(lambda: any(x.entered >= 7 for n in w.nodes for x in n.workers))
        if order == "TERM first":
            w.signal()
            await w.until(lambda: w.leader._board.term_sent)
        elif order == "agreement first":
            w.step_s = 20.0
            w.signal()
            await w.until(lambda: bool(w.events("agreed")))
        w.find(0).fail("RuntimeError", LOADER)
        w.find(1).group.broken(w.find(1))
        w.find(1).fail("RuntimeError", "Connection reset by peer")
        if order == "failure first":
            await asyncio.sleep(0.3)
            w.signal()

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert not w.events("worker_failed", "victims", "hang")
    assert len(w.events("round_started")) == 1
    assert w.events("stopped")[0]["lost_steps"] > 0
    if order != "failure first":
        (said,) = (re.sub(r" at step \d+", "", e["text"]) for e in w.events("warning"))
        assert said == f"rank 0 on n0 raised RuntimeError: {LOADER.strip('. ')}, while the run was being stopped"


def test_a_failure_while_the_nodes_are_taken_starts_no_new_round(world, virtual):
    """A task fails for its own reason while it is being stopped: told, and the allocation goes back at once."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 600})
    w.step_s = 5.0

    async def script():
        await w.until(lambda: any(x.entered >= 7 for n in w.nodes for x in n.workers))
        w.signal()
        await w.until(lambda: bool(w.events("stop_requested")))
        w.find(3).fail("ValueError", "bad sample")

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert [e["rank"] for e in w.events("worker_failed")] == [3]
    assert len(w.events("round_started")) == 1


@pytest.mark.parametrize(("total", "state"), [(None, "requeued"), (40, "requeued"), (7, "completed")])
def test_a_script_that_leaves_by_its_own_handler_has_not_completed_the_run(world, virtual, total, state):
    """Its handler for TERM exits with 0 in the middle of training: the run comes back, unless all steps are known to be done."""
    w = scripts(world)

    class Leaves(w.worker_class):
        def say(self, type_, **values):
            super().say(type_, **{**values, "total_steps": total} if type_ == "progress" else values)

    w.worker_class = Leaves

    async def script():
        await w.until(lambda: any(x.entered == 8 for n in w.nodes for x in n.workers))
        w.signal()
        for worker in [x for n in w.nodes for x in n.workers]:
            worker.task.cancel()
            worker.say("finished", step=7, saved=True)
            worker.node.exited(worker, 0, None)

    ending = virtual(w.attempt_once(script))

    assert ending.state == state


def test_ranks_that_are_not_attached_are_told_by_term_and_the_others_by_agreement(world, virtual):
    """One rank never attached: it hears TERM; the round is over when all have left, without a save that could not be whole."""
    w = scripts(world)
    w.worker_class = attached_script(w, never=(3,))

    ending = virtual(w.attempt_once(stop_at(w, 7)))

    assert ending.state == "requeued"
    assert {n.index for n in w.nodes for m in n.heard if m["type"] == "term"} == {0, 1}
    assert not w.events("worker_failed", "saved")
    assert len(w.events("round_started")) == 1


@pytest.mark.parametrize(("exit_s", "within_s"), [(5.0, (4.9, 8)), (500.0, (SHUTDOWN_S - 0.1, SHUTDOWN_S + 3))])
def test_a_stopped_script_has_time_to_close_its_files(world, virtual, exit_s, within_s):
    """It has said that it stopped and is at its own end: it is not killed for 20 s, and not waited for any longer."""
    w = scripts(world, site={"grace_s": 300})
    w.exit_s = exit_s
    times = []

    async def script():
        loop = asyncio.get_running_loop()
        await stop_at(w, 7)()
        await w.until(lambda: bool(w.events("saved")))
        times.append(loop.time())
        await w.until(lambda: any(m["type"] == "end" for n in w.nodes for m in n.heard))
        times.append(loop.time())

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert within_s[0] <= times[1] - times[0] <= within_s[1]


def test_a_script_that_has_finished_is_not_killed_while_it_ends(world, virtual):
    """All ranks said ``finished``: exit functions (an upload) and open files have the time that they need."""
    w = scripts(world)
    w.exit_s = 90.0
    killed = []

    async def script():
        await w.until(lambda: any(m["type"] == "end" for n in w.nodes for m in n.heard))
        killed.extend(x.rank for n in w.nodes for x in n.workers)

    ending = virtual(w.attempt_once(script))

    assert ending.state == "completed"
    assert killed == []


@pytest.mark.parametrize("exit_s", [-1.0, 0.1, 3.0])
def test_a_rank_that_left_early_is_named_not_those_that_missed_it(world, virtual, exit_s):
    """A script's rank may end with code 0 before the others, as under torchrun: where they fail for its absence, it is the cause.

    Its sockets close before its process has ended (``exit_s`` after): the failures of the others may be heard of first.
    On a loaded machine the process ends so late that what the rank said before Python's shutdown has to do.
    """
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, restart={"max_restarts": 0})
    w.worker_class = plain_script(w)

    async def script():
        await w.until(lambda: len([x for n in w.nodes for x in n.workers]) == 4)
        leaver = w.find(2)
        leaver.task.cancel()
        if exit_s < 0:
            leaver.node.exited(leaver, 0, None)
            await asyncio.sleep(-exit_s)
        elif exit_s > 1:
            leaver.say("over", code=0)
        for rank in (0, 1, 3):
            w.find(rank).fail("RuntimeError", "Connection closed by peer [10.0.0.1]:4242")
        if exit_s > 0:
            await asyncio.sleep(exit_s)
            leaver.node.exited(leaver, 0, None)

    ending = virtual(w.attempt_once(script))

    assert ending.state == "failed"
    (failed,), (victims,) = w.events("worker_failed"), w.events("victims")
    assert (failed["rank"], failed["cause"]["exit_code"]) == (2, 0)
    assert failed["cause"]["text"] == "rank 2 on n1 exited with code 0 before the work was done"
    assert [v["rank"] for v in victims["ranks"]] == [0, 1, 3]


def test_a_rank_that_ended_its_steps_one_collective_early_is_named(world, virtual):
    """``continue`` before an all-reduce on rank 2: it ends first, and the others, who wait for it one step earlier, are no cause."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, restart={"max_restarts": 0})

    class Skipping(w.worker_class):
        async def main(self):
            self.say("phase", name="script")
            self.say("attached")
            self.say("phase", name="train")
            for step in range(1, 31):
                if (step, self.rank) != (30, 2):
                    await self.group.meet(("step", step), self)
                if step == 30 and self.rank != 2:
                    await asyncio.sleep(3600)
                self.say("progress", step=step, epoch=0, total_steps=30, step_time_s=0.1)
            self.say("finished", step=30, saved=True)
            self.done = True
            await asyncio.sleep(0.5)
            self.node.exited(self, 0, None)

    async def script():
        await w.until(lambda: any(x.done for n in w.nodes for x in n.workers))
        for rank in (0, 1, 3):
            w.find(rank).fail("RuntimeError", "Connection closed by peer [10.0.0.1]:4242", step=29)

    w.worker_class = Skipping
    virtual(w.attempt_once(script))

    (failed,), (victims,) = w.events("worker_failed"), w.events("victims")
    assert (
        failed["cause"]["text"] == "rank 2 on n1 exited with code 0 at step 30: ranks 0, 1, 3 still waited at step 29"
    )
    assert [v["rank"] for v in victims["ranks"]] == [0, 1, 3]
    assert not w.events("excluded")
    history = read_history(w.paths)
    lines = explain(history, summarise_history(history), clock.now()).lines()
    assert lines[0] == "Rank 2 (n1) exited with code 0 at step 30: ranks 0, 1, 3 still waited at step 29."
    assert "a continue, break or if with which ranks skip a collective" in lines[-1]


async def all_but_rank_0_end(w):
    """As soon as all four ranks are there, three exit with code 0."""
    await w.until(lambda: len([x for n in w.nodes for x in n.workers]) == 4)
    for rank in (1, 2, 3):
        w.find(rank).task.cancel()
        w.find(rank).node.exited(w.find(rank), 0, None)


def test_an_upload_that_fails_when_the_others_are_done_is_its_own_cause(world, virtual):
    """Ranks that have ended as they should are not blamed for a refused connection that is none of torch's."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, restart={"max_restarts": 0})
    w.worker_class = plain_script(w)

    async def script():
        await all_but_rank_0_end(w)
        await asyncio.sleep(1)
        w.find(0).fail("ConnectionRefusedError", "[Errno 111] Connection refused")

    assert virtual(w.attempt_once(script)).state == "failed"
    (failed,) = w.events("worker_failed")
    assert failed["cause"]["text"].startswith("rank 0 on n0 raised ConnectionRefusedError")
    assert not w.events("victims")


@pytest.mark.parametrize(
    ("waited_s", "said", "missed"),
    [
        (300, "Connection closed by peer [10.0.0.1]:4242", False),
        (1800, "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv", True),
        (4000, "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv", False),
    ],
)
def test_ranks_that_left_long_before_are_not_the_cause(world, virtual, waited_s, said, missed):
    """Broken connections follow within a step from a rank that left, time-outs within torch's half an hour; later ones have another cause."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, restart={"max_restarts": 0})
    w.worker_class = plain_script(w)

    async def script():
        await all_but_rank_0_end(w)
        await asyncio.sleep(waited_s)
        w.find(0).fail("RuntimeError", said)

    assert virtual(w.attempt_once(script)).state == "failed"
    (failed,) = w.events("worker_failed")
    assert (failed["rank"] != 0) == missed


def test_an_exception_after_term_is_no_failure_of_a_plain_script(world, virtual):
    """A plain script's exception after TERM is no failure either: many handlers end by an exception."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, site={"grace_s": 20})
    w.allocation.means = SignalMeaning("preempted")
    w.worker_class = plain_script(w)

    async def script():
        await w.until(lambda: len([x for n in w.nodes for x in n.workers]) == 4)
        await asyncio.sleep(3)
        w.signal()
        for rank in range(4):
            w.find(rank).say("failed", exception="KeyboardInterrupt", message="", frames=[], step=None, kind=None)
        await asyncio.sleep(SHUTDOWN_S / 2)
        for rank in range(4):
            w.find(rank).die(None, 130)

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert not w.events("worker_failed", "warning")


@pytest.mark.parametrize(
    ("handles", "meaning", "code", "state"),
    [
        (True, "time_limit", 0, "requeued"),
        (True, "time_limit", 1, "requeued"),
        (True, "nothing", 0, "completed"),
        (True, "nothing", 1, "failed"),
        (False, "time_limit", 0, "completed"),
    ],
)
def test_a_script_that_saves_on_usr2_and_leaves_has_stopped(world, virtual, handles, meaning, code, state):
    """Its end upon SLURM's announcement of the time limit is no completion and no failure; upon a USR2 by hand it is its own."""
    w = world(
        work=Work(kind="script", target="train.py"),
        checkpoint={"enabled": False},
        restart={"max_restarts": 0 if state == "failed" else 3},
    )
    w.allocation.means = SignalMeaning(meaning, 3600.0 if meaning == "time_limit" else None)
    w.worker_class = plain_script(w)

    async def script():
        await w.until(lambda: len([x for n in w.nodes for x in n.workers]) == 4)
        await asyncio.sleep(3)
        for rank in range(4 if handles else 0):
            w.find(rank).say("handles_usr2")
        w.signal("USR2")
        for rank in range(4):
            w.find(rank).die(None, code)

    ending = virtual(w.attempt_once(script))

    assert ending.state == state
    if state == "requeued":
        assert not w.events("worker_failed")
        assert {e["cause"] for e in w.events("stop_requested")} == {"time_limit"}


@pytest.mark.parametrize("order", ["TERM first", "failure first"])
def test_a_rank_that_left_before_the_others_were_asked_has_not_finished(world, virtual, order):
    """Ranks 1-3 have done all steps and are over; rank 0 is ended by SLURM's TERM in its last save: the run is not completed."""
    w = scripts(world, checkpoint={"interval_steps": 10})
    w.total_steps = 17

    class Slow(w.worker_class):
        async def save(self, step):
            if self.rank == 0 and step == 17:
                await asyncio.sleep(1000)
            await super().save(step)

    w.worker_class = Slow

    async def script():
        await w.until(lambda: bool(w.events("first_step")))
        ranks = w.leader._board.round.ranks
        await w.until(lambda: sum(r.finished is not None for r in ranks) == 3)
        if order == "TERM first":
            w.signal()
            await w.until(lambda: w.leader._board.term_sent)
        w.find(0).fail("RuntimeError", LOADER)
        if order == "failure first":
            await asyncio.sleep(0.3)
            w.signal()

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert w.events("saved")[-1]["step"] == 10


def test_what_a_script_saves_when_a_handler_ends_it_is_not_kept(world, virtual):
    """Its last save comes from the middle of a step, labelled with the step before: resumed from, it would do that step twice."""
    w = scripts(world)

    async def script():
        await w.until(lambda: any(x.entered == 8 for n in w.nodes for x in n.workers))
        w.signal()
        await w.until(lambda: w.leader._board.term_sent)
        for worker in [x for n in w.nodes for x in n.workers]:
            worker.task.cancel()
            files = [{"name": f"rank-{worker.rank:05d}", "size": 1, "hash": "0"}]
            worker.say("shard", step=7, files=files, seconds=0.1, blocked_s=0.1, hash_name="xxh3_64", last=True)
            worker.say("finished", step=7, saved=True)
            worker.node.exited(worker, 0, None)

    ending = virtual(w.attempt_once(script))

    assert ending.state == "requeued"
    assert not w.events("saved", "save_failed")
    assert w.events("stopped")[0]["lost_steps"] == 7


def test_ranks_agree_without_one_that_a_signal_ended_before_an_agent_reported_it(world, virtual):
    """A rank ends before it answers the pause, and only then its TERM is heard: it has left, and the others learn where to stop."""
    w = scripts(world)
    w.allocation.means = SignalMeaning("user")
    w.step_s = 20.0

    class Deaf(w.worker_class):
        def hear(self, m):
            if self.rank != 0 or m["type"] != "pause":
                super().hear(m)

    w.worker_class = Deaf

    async def script():
        await w.until(lambda: len([x for n in w.nodes for x in n.workers if x.entered == 2]) == 4)
        w.signal("USR2")
        await w.until(lambda: bool(w.events("stop_requested")))
        await asyncio.sleep(0.2)
        ended = w.find(0)
        ended.task.cancel()
        ended.node.exited(ended, 143, None)
        await asyncio.sleep(0.2)
        w.allocation.means = SignalMeaning("preempted")
        w.signal("TERM")

    virtual(w.attempt_once(script))

    told = [m["message"] for m in w.nodes[1].heard if m["type"] == "to_workers"]
    assert [e["step"] for e in w.events("agreed")] == [2]
    assert [(m["step"], m["save"]) for m in told if m["type"] == "stop"] == [(2, False)]
    assert not w.events("worker_failed")


def test_a_stop_that_some_have_heard_as_term_is_not_withdrawn(world, virtual):
    """`cancel --save` in a long set-up that survives TERM: what ends later has stopped, so the stop must go on to a verdict."""
    w = scripts(world)
    w.allocation.means = SignalMeaning("user")
    w.total_steps = 3

    class Late(w.worker_class):
        attached = True

        def __setattr__(self, name, value):
            if name != "attached":
                super().__setattr__(name, value)

        async def main(self):
            self.node.up("worker", round=self.round, rank=self.rank, message={"type": "phase", "name": "script"})
            await asyncio.sleep(700)
            await super().main()

    w.worker_class = Late

    async def script():
        await w.until(lambda: len([x for n in w.nodes for x in n.workers]) == 4)
        await asyncio.sleep(3)
        w.signal("USR2")

    assert virtual(w.attempt_once(script)).state == "cancelled"


def test_a_stop_without_a_deadline_does_not_wait_for_ever(world, virtual):
    """A script takes TERM for something else and goes on: `cancel --save` ends it in the end."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False})
    w.allocation.means = SignalMeaning("user")

    class Deaf(plain_script(w)):
        attached = True

        def __setattr__(self, name, value):
            if name != "attached":
                super().__setattr__(name, value)

    w.worker_class = Deaf

    async def script():
        await w.until(lambda: len([x for n in w.nodes for x in n.workers]) == 4)
        await asyncio.sleep(3)
        w.signal("USR2")

    ending = virtual(w.attempt_once(script))

    assert ending.state == "cancelled"


def test_ranks_that_lose_the_one_that_saves_on_usr2_have_stopped_too(world, virtual):
    """Rank 0 alone handles USR2 and leaves upon it; the others' collectives break, before or after its end is heard."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, restart={"max_restarts": 0})
    w.allocation.means = SignalMeaning("preempted")
    w.worker_class = plain_script(w)

    async def script():
        await w.until(lambda: len([x for n in w.nodes for x in n.workers]) == 4)
        await asyncio.sleep(3)
        w.find(0).say("handles_usr2")
        w.allocation.means = SignalMeaning("time_limit", 3600.0)
        w.signal("USR2")
        await asyncio.sleep(0.3)
        for rank in (1, 2, 3):
            w.find(rank).fail("RuntimeError", "Connection closed by peer")
        await asyncio.sleep(2)
        w.find(0).die(None, 0)

    virtual(w.attempt_once(script))

    assert not w.events("worker_failed")
    assert {e["evidence"] for e in w.events("decision")} == {"time_limit"}


def test_a_scripts_last_files_are_progress_too(world, virtual):
    """It saves and crashes between two looks, again and again: each file counts, so that no budget of restarts is used up."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"watch": "ckpt/*"}, restart={"max_restarts": 1})
    folder = w.paths.root / "ckpt"
    folder.mkdir()

    class Saves(w.worker_class):
        async def main(self):
            self.say("phase", name="script")
            await asyncio.sleep(1.0)
            if self.rank == 0 and self.round < 4:
                (folder / str(self.round)).write_text("")
                os.utime(folder / str(self.round), (2e9 + self.round, 2e9 + self.round))
                self.die(None, 3)
            else:
                await asyncio.sleep(5.0)
                self.node.exited(self, 0, None)

    w.worker_class = Saves

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert [e["path"].rsplit("/", 1)[1] for e in w.events("saved")] == ["0", "1", "2", "3"]


def test_a_request_that_is_seen_late_outranks_the_end_that_its_signal_brought(world, virtual):
    """`cancel --save` sends USR2; its file shows seconds later on NFS, and the scripts have left upon the signal: cancelled."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False})
    w.allocation.means = SignalMeaning("nothing")
    w.worker_class = plain_script(w)

    async def script():
        await w.until(lambda: len([x for n in w.nodes for x in n.workers]) == 4)
        await asyncio.sleep(3)
        for rank in range(4):
            w.find(rank).say("handles_usr2")
        w.signal("USR2")
        for rank in range(4):
            w.find(rank).die(None, 0)
        await asyncio.sleep(5)
        w.paths.request.write_text("{}")

    assert virtual(w.attempt_once(script)).state == "cancelled"


def test_the_host_of_a_rank_that_only_waited_is_not_excluded(world, virtual):
    """Watchdogs end the ranks of one host because a rank elsewhere stands still: the spare takes no place of a host that works."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, spare_nodes=1)
    said = "[rank0]:[E1127 ProcessGroupNCCL.cpp:632] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)"

    class Script(w.worker_class):
        async def main(self):
            self.say("phase", name="script")
            await asyncio.sleep(60 if self.node.name == "n0" else 1e5)
            self.node.exited(self, None, 6, [said])

    w.worker_class = Script

    assert virtual(w.attempt_once()).state == "failed"
    assert {e["cause"]["kind"] for e in w.events("worker_failed")} == {"timeout"}
    assert w.events("excluded") == []
    assert [{r["host"] for r in e["ranks"]} for e in w.events("round_started")] == [{"n0", "n1"}] * 4


@pytest.mark.parametrize(("lives_s", "excluded"), [(700, []), (60, [["n1"]])])
def test_a_plain_scripts_host_is_excluded_for_failures_without_progress(world, virtual, lives_s, excluded):
    """A round that lives for ten minutes is progress: two failures with one in between are not in a row."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, spare_nodes=1)

    class Script(w.worker_class):
        async def main(self):
            self.say("phase", name="script")
            await asyncio.sleep(lives_s)
            if self.rank == 3 and self.round < 2:
                self.node.exited(self, None, 11)
                await asyncio.sleep(1e5)
            self.node.exited(self, 0, None)

    w.worker_class = Script

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["hosts"] for e in w.events("excluded")] == excluded


def test_a_node_that_dies_is_noticed_while_the_watched_files_do_not_answer(world, virtual):
    """`checkpoint.watch` on a file system that takes a minute: silence of a node is seen meanwhile, and is not taken for the leader's own."""
    w = world(
        work=Work(kind="script", target="train.py"),
        checkpoint={"enabled": False, "watch": "out/*"},
        restart={"requeue": False},
    )
    w.worker_class = plain_script(w)
    died = []

    async def script():
        await w.until(lambda: w.events("round_started"))
        answer = w.leader._board.blocking

        async def slow(work):
            if "newest_of" in work.__code__.co_names:
                await asyncio.sleep(60)
            return await answer(work)

        w.leader._board.blocking = slow
        await asyncio.sleep(6)
        died.append(clock.now())
        w.nodes[1].cut = True

    virtual(w.attempt_once(script))

    (lost,) = w.events("node_lost")
    assert lost["why"] == "silent"
    assert lost["t"] - died[0] < 12
    assert w.leader._board.woke_at is None


def test_a_rank_that_left_in_the_middle_is_named_when_the_others_wait_for_it(world, virtual):
    """sys.exit(0) at step 20 of 100: nobody lags behind, and yet the hang has a name, which `why` tells; no host is blamed."""
    w = world(work=Work(kind="script", target="train.py"), restart={"max_restarts": 0}, checkpoint={"enabled": False})

    class Leaving(w.worker_class):
        async def main(self):
            self.say("phase", name="script")
            self.say("attached")
            self.say("phase", name="train")
            for step in range(1, 101):
                self.entered = self.begun = step
                await asyncio.sleep(0.1)
                await self.group.meet(("step", step), self)
                self.say("progress", step=step, epoch=0, total_steps=100, step_time_s=0.1)
                if (step, self.rank) == (20, 2):
                    self.done = True
                    self.say("over", code=0)
                    return self.node.exited(self, 0, None)

    w.worker_class = Leaving

    ending = virtual(w.attempt_once())

    said = "no rank progressed for 60 s (rank 2 on n1 had exited with code 0 at step 20)"
    assert ending.reason.lower().startswith(said)
    assert w.leader._board.hang.hosts == ()
    history = read_history(w.paths)
    lines = explain(history, summarise_history(history), clock.now()).lines()
    assert "Rank 2 (n1) had exited with code 0 at step 20, and the others waited for it" in "\n".join(lines)


@pytest.mark.parametrize("total", [None, 40])
@pytest.mark.parametrize("kind", ["user", "time_limit"])
def test_a_rank_that_leaves_with_code_0_while_it_is_told_to_stop_has_stopped(world, virtual, kind, total):
    """It saves by itself at the agreed step and leaves by ``os._exit(0)``, without a word: that is not the end of its work."""
    w = scripts(world)
    w.allocation.means = SignalMeaning(kind)

    class Leaves(w.worker_class):
        def say(self, type_, **values):
            super().say(type_, **({**values, "total_steps": total} if type_ == "progress" else values))

        async def leave(self, step):
            self.done = True
            await self.exit()

    w.worker_class = Leaves

    async def act():
        await w.until(lambda: any(x.entered >= 17 for n in w.nodes for x in n.workers))
        if kind == "user":
            w.paths.request.write_text("{}")
        w.signal("USR2")

    assert virtual(w.attempt_once(act)).state == {"user": "cancelled", "time_limit": "requeued"}[kind]


@pytest.mark.parametrize("after_s", [0.2, 2.0])
def test_code_0_after_a_failure_is_no_success(world, virtual, after_s):
    """Every rank told of an exception, and an exit function of the script's ended it with code 0: the run has failed."""
    w = scripts(world, restart={"max_restarts": 0})

    class Fails(w.worker_class):
        async def main(self):
            self.say("phase", name="script")
            await asyncio.sleep(30)
            self.say("failed", exception="ValueError", kind="exception", message="bad sample")
            self.say("over", code=0)
            await asyncio.sleep(after_s)
            self.node.exited(self, 0, None)

    w.worker_class = Fails
    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert "ValueError: bad sample" in ending.reason
