"""`resources.replace`: one-node jobs for nodes that are missing. Their agents join, train, and leave when their job ends."""

from __future__ import annotations

import asyncio

import pytest
from acts import at, sizes

from launcher.node.allocation.allocation import SignalMeaning
from launcher.node.leader import replacements
from launcher.node.wire import connection
from launcher.run.spec import Work

SAVES = {"interval_steps": 5, "keep_last": 9}


def replacing(world, monkeypatch, **changes):
    """Two to three nodes of two ranks, at a step a second."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    w = world(**{"nodes": 3, "least_nodes": 2, "replace": True, "checkpoint": SAVES, **changes})
    w.step_s = 2.0
    w.allocation.means = SignalMeaning("nothing")
    return w


def asked(w):
    """The words and the excluded hosts of each job that was submitted."""
    return [said[1:] for said in w.allocation.said if said[0] == "ask_for_node"]


def came(w, name="r0"):
    """The agent of the newest replacement joins."""
    words, _ = asked(w)[-1]
    node = w.another(int(words[words.index("--node") + 1]), name)
    node.join()
    return node


async def comes(w, name="r0"):
    """It joins as soon as it was asked for."""
    await w.until(lambda: w.events("replacement_asked"))
    return came(w, name)


def test_a_lost_node_is_replaced_by_a_job_of_its_own(world, virtual, monkeypatch):
    """Asked for once it has not come back; taken in at the next checkpoint; the run's own hosts are not asked for."""
    w = replacing(world, monkeypatch)
    at(w, 7, lambda: w.nodes[1].die())

    assert virtual(w.attempt_once(lambda: comes(w))).state == "completed"
    assert sizes(w) == [6, 4, 6]
    assert {r["host"] for r in w.events("round_started")[2]["ranks"]} == {"n0", "n2", "r0"}
    ((words, exclude),) = asked(w)
    life = connection.allocation_life({"SLURM_JOB_ID": "77"})
    assert words[1:] == ("--node", "3", "--joins", life, "--hosts", "n0,n1,n2", "--leader", "0")
    assert exclude == ("n0", "n1", "n2")
    (lost,), (job,) = w.events("node_lost"), w.events("replacement_asked")
    assert 20 < job["t"] - lost["t"] < 35
    assert ("withdraw_nodes", False) in w.allocation.said


def test_without_replace_nothing_is_submitted(world, virtual, monkeypatch):
    """It costs node hours that nobody has asked for."""
    w = replacing(world, monkeypatch, replace=False)
    at(w, 7, lambda: w.nodes[1].die())
    assert virtual(w.attempt_once()).state == "completed"
    assert asked(w) == []


def test_what_the_range_lacks_from_the_start_is_asked_for_too(world, virtual, monkeypatch):
    """One job for each node; never more than the run asked for."""
    w = replacing(world, monkeypatch, nodes=4)
    w.names = ["n0", "n1"]
    assert virtual(w.attempt_once()).state == "completed"
    assert [words[2] for words, _ in asked(w)] == ["2", "3"]


def test_a_spare_that_was_used_is_replaced(world, virtual, monkeypatch):
    """The new node is the next spare: the round goes on."""
    w = replacing(world, monkeypatch, nodes=2, least_nodes=None, spare_nodes=1)
    at(w, 7, lambda: w.nodes[1].die())
    assert virtual(w.attempt_once(lambda: comes(w))).state == "completed"
    assert sizes(w) == [4, 4]
    assert len(asked(w)) == 1


def test_a_refusal_is_told_once_in_a_while(world, virtual, monkeypatch):
    """The site may forbid it: training goes on, and SLURM is left alone for a while. SLURM may have taken the job although no
    answer came: its index is given to nobody else, and its agent is sent away.
    """
    monkeypatch.setattr(replacements, "_REFUSED_S", 40.0)
    w = replacing(world, monkeypatch)
    w.step_s = 4.0
    w.allocation.refuses = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    at(w, 7, lambda: w.nodes[1].die())

    async def script():
        await w.until(lambda: w.events("replacement_refused"))
        stray = came(w, "r0")
        await w.until(lambda: stray.heard)
        assert [m["type"] for m in stray.heard] == ["shutdown"]
        w.allocation.refuses = ""

    assert virtual(w.attempt_once(script)).state == "completed"
    first, second = asked(w)
    assert (first[0][2], second[0][2]) == ("3", "4")
    (refused,), (job,) = w.events("replacement_refused"), w.events("replacement_asked")
    assert 40 <= job["t"] - refused["t"] < 55


def test_jobs_that_do_not_help_are_given_up(world, virtual, monkeypatch):
    """Three in a row of which none has trained up to a checkpoint, also where the run itself gets on: the next would fail, too."""
    w = replacing(world, monkeypatch)
    w.step_s = 20.0
    w.allocation.gone_jobs = {str(90 + n) for n in range(99)}
    at(w, 7, lambda: w.nodes[1].die())

    assert virtual(w.attempt_once()).state == "completed"
    assert len(asked(w)) == 3


async def loses_five(w):
    """One after the other, each once it has helped: it has trained up to a checkpoint."""
    for number in range(1, 6):
        await w.until(lambda: len(w.events("replacement_asked")) == number)  # noqa: B023
        node = came(w, f"r{number}")
        await w.until(lambda: w.leader._board.asked == 0 and node.workers)  # noqa: B023
        node.die()


def test_jobs_that_have_helped_are_asked_for_again_and_again(world, virtual, monkeypatch):
    """Each new node has trained up to a checkpoint before it was lost."""
    w = replacing(world, monkeypatch)
    w.step_s = 10.0
    at(w, 3, lambda: w.nodes[1].die())

    async def script():
        await loses_five(w)

    assert virtual(w.attempt_once(script)).state == "completed"
    assert len(asked(w)) >= 4


def test_jobs_that_have_helped_a_script_are_asked_for_again_and_again(world, virtual, monkeypatch):
    """Its own checkpoints tell that (`checkpoint.watch`)."""
    watched = {"enabled": False, "watch": "ckpt/*"}
    w = replacing(world, monkeypatch, work=Work(kind="script", target="train.py"), checkpoint=watched)
    folder = w.paths.root / "ckpt"
    folder.mkdir()

    class Saves(w.worker_class):
        async def main(self):
            self.say("phase", name="script")
            for save in range(30):
                await asyncio.sleep(20)
                (folder / f"{self.round}-{save}").write_text("")
            self.node.exited(self, 0, None)

    w.worker_class = Saves

    async def script():
        await w.until(lambda: len(sizes(w)) == 1 and w.nodes[1].workers)
        w.nodes[1].die()
        await loses_five(w)

    assert virtual(w.attempt_once(script)).state == "completed"
    assert len(asked(w)) >= 4


@pytest.mark.parametrize("ok", [True, False])
def test_a_node_that_joins_is_checked_before_it_trains(world, virtual, monkeypatch, ok):
    """The other nodes were checked before the first round. One that fails is sent away, and its host is not asked for again."""
    w = replacing(world, monkeypatch, preflight=True)
    at(w, 7, lambda: w.nodes[1].die())

    async def script():
        await w.until(lambda: w.events("replacement_asked"))
        words, _ = asked(w)[-1]
        node = w.another(int(words[2]), "r0")
        node.check_ok = ok
        node.join()

    assert virtual(w.attempt_once(script)).state == "completed"
    assert sizes(w) == ([6, 4, 6] if ok else [6, 4])
    assert [e["ok"] for e in w.events("preflight")] == [True, ok]
    if not ok:
        assert w.nodes[3].heard[-1]["type"] == "shutdown"
        assert all("r0" in exclude for _, exclude in asked(w)[1:])


def test_a_node_that_is_not_needed_any_more_is_sent_away(world, virtual, monkeypatch):
    """The lost one has come back meanwhile: never more nodes than the run asked for."""
    w = replacing(world, monkeypatch)
    at(w, 7, lambda: w.nodes[1].die())

    async def script():
        await w.until(lambda: w.events("replacement_asked"))
        w.nodes[1].join()
        await asyncio.sleep(1)
        node = came(w)
        await w.until(lambda: node.heard and node.heard[-1]["type"] == "shutdown")

    assert virtual(w.attempt_once(script)).state == "completed"
    assert {r["host"] for r in w.events("round_started")[-1]["ranks"]} == {"n0", "n1", "n2"}


@pytest.mark.parametrize("how", ["never joined", "left"])
def test_the_next_attempt_excludes_no_replacement(world, virtual, monkeypatch, how):
    """A job that ended before its agent joined has no host; one whose time was over has a good one. What was lost is excluded."""
    w = replacing(world, monkeypatch)
    if how == "never joined":
        w.allocation.gone_jobs = {str(90 + n) for n in range(99)}
    at(w, 7, lambda: w.nodes[1].die())

    async def script():
        if how == "left":
            node = await comes(w)
            await w.until(lambda: len(sizes(w)) == 3 and node.workers and all(x.entered >= 23 for x in node.workers))
            node.up("signal", name="TERM")
            await w.until(lambda: len(sizes(w)) == 4)
        else:
            await w.until(lambda: len(asked(w)) == 2)
        w.allocation.means = SignalMeaning("preempted", 60.0)
        w.nodes[0].up("signal", name="TERM")

    assert virtual(w.attempt_once(script)).state == "requeued"
    (back,) = (said for said in w.allocation.said if said[0] == "hand_back")
    assert back[1] == ("n1",)


@pytest.mark.parametrize("signal", ["TERM", "USR2"])
def test_a_node_whose_job_is_taken_leaves_at_an_agreed_step(world, virtual, monkeypatch, signal):
    """No step is lost; the run's own job is not asked, and not given back. What comes later for that job is another matter."""
    w = replacing(world, monkeypatch)
    at(w, 7, lambda: w.nodes[1].die())

    async def script():
        node = await comes(w)
        await w.until(lambda: len(sizes(w)) == 3 and node.workers and all(x.entered >= 23 for x in node.workers))
        node.up("signal", name=signal)

    assert virtual(w.attempt_once(script)).state == "completed"
    assert sizes(w)[:4] == [6, 4, 6, 4]
    (stopped,) = w.events("stopped")
    assert stopped["lost_steps"] == 0
    assert w.events("round_started")[3]["resume_step"] == stopped["step"]
    assert [d["evidence"] for d in w.events("decision")][:3] == ["node_lost", "more_nodes", "node_leaves"]
    assert not [e for e in w.events("excluded") if "r0" in e["hosts"]]
    assert len(w.events("attempt_started")) == 1


def test_a_spare_that_leaves_stops_nothing(world, virtual, monkeypatch):
    """It is sent away; the round goes on."""
    w = replacing(world, monkeypatch, nodes=2, least_nodes=None, spare_nodes=1)
    at(w, 7, lambda: w.nodes[1].die())

    async def script():
        node = await comes(w)
        await asyncio.sleep(3)
        node.up("signal", name="TERM")
        await w.until(lambda: not node.connected)

    assert virtual(w.attempt_once(script)).state == "completed"
    assert sizes(w) == [4, 4]
    assert w.events("stopped") == []


def test_a_new_leader_knows_the_jobs_of_the_one_that_died(world, virtual, monkeypatch):
    """Their agents join it; those that wait are not asked for again. One on another host asks anew: they look for the lost one."""
    for lost in ((), ("n0",)):
        w = replacing(world, monkeypatch, nodes=4)
        w.names = ["n0", "n1", "n2"]

        async def both(w=w, lost=lost):
            leading = asyncio.ensure_future(w.attempt_once())
            await w.until(lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            return await w.attempt_once(revived=True, lost=lost)

        assert virtual(both()).state == "completed"
        assert [words[2] for words, _ in asked(w)] == (["3", "4"] if lost else ["3"])
        assert (("withdraw_nodes", True) in w.allocation.said) is bool(lost)


def test_a_new_leader_knows_each_job_by_its_index(world, virtual, monkeypatch):
    """A refusal has used one up: the agent of the job that came after it is taken in again."""
    monkeypatch.setattr(replacements, "_REFUSED_S", 10.0)
    w = replacing(world, monkeypatch)
    w.allocation.refuses = "no answer"
    at(w, 7, lambda: w.nodes[1].die())

    async def both():
        leading = asyncio.ensure_future(w.attempt_once())
        await w.until(lambda: w.events("replacement_refused"))
        w.allocation.refuses = ""
        await w.until(lambda: w.events("replacement_asked"))
        assert came(w).index == 4
        await w.until(lambda: len(sizes(w)) == 3)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

        async def again():
            await asyncio.sleep(1)
            w.another(4, "r0").join(again=True)
            refused = w.leader._board.nodes.all[3]
            assert refused.bad == "SLURM did not accept its job"  # nobody waits for that one
            assert not refused.comes

        return await w.attempt_once(again, revived=True, absent=(1,))

    assert virtual(both()).state == "completed"
    assert {r["host"] for r in w.events("round_started")[3]["ranks"]} == {"n0", "n2", "r0"}


def test_a_new_leader_waits_for_the_check_of_a_replacement(world, virtual, monkeypatch):
    """Without it too few nodes are left; its check takes seconds, a requeue the queue."""
    w = replacing(world, monkeypatch, preflight=True)
    at(w, 7, lambda: w.nodes[2].die())

    async def both():
        leading = asyncio.ensure_future(w.attempt_once())
        await w.until(lambda: w.events("replacement_asked"))
        came(w)
        await w.until(lambda: len(sizes(w)) == 3)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

        async def again():
            await asyncio.sleep(1)
            node = w.another(3, "r0")
            check, node.on_preflight = (
                node.on_preflight,
                lambda m: asyncio.get_running_loop().call_later(15.0, check, m),
            )
            node.join(again=True)

        return await w.attempt_once(again, revived=True, lost=("n0", "n2"))

    assert virtual(both()).state == "completed"
    assert {r["host"] for r in w.events("round_started")[3]["ranks"]} == {"n1", "r0"}


def test_an_agent_that_dies_while_a_replacement_leaves_is_started_again(world, virtual, monkeypatch):
    """The stop for the node that leaves ends no run: the keeper is asked as ever, and nothing is requeued."""
    w = replacing(world, monkeypatch)
    w.keep(refuses="its host does not answer")
    at(w, 7, lambda: w.nodes[1].die())

    async def script():
        r0 = await comes(w)
        await w.until(lambda: len(sizes(w)) == 3 and r0.workers and all(one.entered >= 18 for one in r0.workers))
        w.keeper.refuses = ""
        r0.up("signal", name="TERM")
        await asyncio.sleep(0.3)
        w.nodes[2].die()

    assert virtual(w.attempt_once(script)).state == "completed"
    assert [e["host"] for e in w.events("agent_revived")] == ["n2"]


def test_one_too_many_is_sent_away_after_its_checks(world, virtual, monkeypatch):
    """The lost node comes back while its replacement is being checked: three nodes were asked for, and three train."""
    w = replacing(world, monkeypatch, preflight=True)
    at(w, 7, lambda: w.nodes[1].die())

    async def script():
        await w.until(lambda: w.events("replacement_asked"))
        words, _ = asked(w)[-1]
        node = w.another(int(words[words.index("--node") + 1]), "r0")
        check = node.on_preflight
        node.on_preflight = lambda m: asyncio.get_running_loop().call_later(8.0, check, m)
        node.join()
        await asyncio.sleep(1)
        w.nodes[1].join(again=True)
        await w.until(lambda: any(m["type"] == "shutdown" for m in node.heard))
        assert w.leader._board.phase == "training"

    assert virtual(w.attempt_once(script)).state == "completed"
    assert {r["host"] for r in w.events("round_started")[-1]["ranks"]} == {"n0", "n1", "n2"}


def test_refusals_are_no_jobs(world, virtual, monkeypatch):
    """SLURM away three times: asked again as soon as it answers. Only jobs that came to nothing count."""
    monkeypatch.setattr(replacements, "_REFUSED_S", 40.0)
    w = replacing(world, monkeypatch)
    w.step_s = 12.0
    w.allocation.refuses = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    at(w, 3, lambda: w.nodes[1].die())

    async def script():
        await w.until(lambda: len(w.events("replacement_refused")) == 4, 3000)
        w.allocation.refuses = ""
        await comes(w)

    assert virtual(w.attempt_once(script)).state == "completed"
    assert len(w.events("replacement_asked")) == 1


@pytest.mark.parametrize(("left_s", "lost"), [(330.0, 0), (None, 3)])
def test_a_replacement_that_leaves_has_the_time_that_its_own_job_has(world, virtual, monkeypatch, left_s, lost):
    """Preempted with 300 s of grace, a save of a minute is awaited. Where SLURM does not say, KillWait is all there may be."""
    w = replacing(world, monkeypatch)
    w.save_s, w.allocation.left_s = 60.0, left_s
    at(w, 7, lambda: w.nodes[1].die())

    async def script():
        r0 = await comes(w)
        await w.until(lambda: r0.workers and all(one.entered > one.first + 2 for one in r0.workers), 9000)
        r0.up("signal", name="TERM")

    assert virtual(w.attempt_once(script)).state == "completed"
    assert w.events("stopped")[0]["lost_steps"] == lost
