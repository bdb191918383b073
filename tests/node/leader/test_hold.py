"""A hold: its leader has runs train in its allocation, one after the other, for commands that connect to it."""

from __future__ import annotations

import asyncio
import json

import pytest

from launcher.node.allocation.allocation import SignalMeaning
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state, write_outcome


class Caller:
    """A command that connects to the hold's leader."""

    def __init__(self, w):
        self.world, self.cut, self.heard = w, False, []

    def connect(self):
        self.link = type(next(node.link for node in self.world.nodes if node.link))(self)
        return self

    def hear(self, message):
        self.heard.append(message)

    def start(self, run, nodes=2, most_nodes=2):
        self.link.up({"type": "start_rerun", "run": run, "nodes": nodes, "most_nodes": most_nodes})

    def stop(self, run, save=True):
        self.link.up({"type": "stop_rerun", "run": run, "save": save})

    async def says(self, kind):
        await self.world.until(lambda: any(m["type"] == kind for m in self.heard), 200)
        return next(m for m in self.heard if m["type"] == kind)


@pytest.fixture
def hold(world):
    """Make a hold of two nodes and its reruns' folders; agents take part for ``lasts_s``, the first one has the rerun's leader."""

    def make(lasts_s=5.0, idle_min=30.0, problem="", **changes):
        w = world(hold=True, restart={"idle_timeout_min": idle_min, "requeue": False}, **changes)
        w.paths.root.joinpath("spec.json").write_text(w.spec.dumps())
        w.lasts_s, w.problem, w.orders = lasts_s, problem, []
        w.names_of = lambda m: [one["run"] for one in w.orders if one["type"] == m]
        return w

    return make


def scripted(w):
    """Have the nodes obey what a hold's leader says."""

    def end(node, run, state="completed"):
        paths = RunPaths(w.paths.root.parent / run)
        if node.index == w.first and not w.problem and read_outcome(paths.outcome) is None:
            write_outcome(paths.outcome, {"state": state, "reason": "The work is done.", "exit_code": 0})
            node.up("left_rerun", run=run, state=state, reason="The work is done.", exit_code=0)
        else:
            node.up("left_rerun", run=run, problem=w.problem if node.index == w.first else "")

    def joins(node, m):
        w.orders.append({**m, "on": node.index})
        if m["node"] == 0:
            w.first = node.index
        if w.problem and m["node"] == 0:
            return end(node, m["run"])
        node.up("joined_rerun", run=m["run"], restarted=["seed"] if m["node"] == 0 else [])
        node.over = asyncio.get_running_loop().call_later(w.lasts_s + 0.1 * m["node"], end, node, m["run"])

    def stops(node, m):
        w.orders.append({**m, "on": node.index})
        if m["cause"] not in ("user", "cancelled"):
            return  # it saves, and ends in its own time
        for one in w.nodes:
            one.over.cancel()
            end(one, m["run"], "cancelled")

    def ended(node, m):
        w.orders.append({**m, "on": node.index})
        if hasattr(node, "over"):
            node.over.cancel()
        node.up("left_rerun", run=m["run"], problem="it was ended by its hold")

    for node in w.nodes:
        node.on_join_rerun = lambda m, node=node: joins(node, m)
        node.on_forward_stop = lambda m, node=node: stops(node, m)
        node.on_end_rerun = lambda m, node=node: ended(node, m)


def folder(w, run):
    """A rerun's folder, as the command makes it."""
    root = w.paths.root.parent / run
    (root / "attempts").mkdir(parents=True)
    spec = json.loads(w.spec.dumps()) | {
        "id": run,
        "run_dir": str(root),
        "hold": False,
        "held_by": w.spec.id,
        "batch": "local",
    }
    (root / "spec.json").write_text(json.dumps(spec))
    return RunPaths(root)


def runs(hold, virtual, script, kept_s=None, **how):
    """Play ``script`` beside the hold's leader; returns the world and how the hold ended. ``kept_s``: a keeper starts agents in so long."""
    w = hold(**how)
    if kept_s is not None:
        w.keep(start_s=kept_s)

    async def beside():
        await asyncio.sleep(0)
        scripted(w)
        await w.until(lambda: read_state(w.paths.state).get("phase") == "holding")
        await script(w)

    return w, virtual(w.attempt_once(beside))


def test_runs_train_one_after_the_other_and_an_unused_hold_ends(hold, virtual):
    """Its end is no failure: it has no work of its own. The time counts from the last run's end."""

    async def script(w):
        for run in ("a", "b"):
            caller = Caller(w).connect()
            folder(w, run)
            caller.start(run)
            assert (await caller.says("rerun_accepted"))["restarted"] == ["seed"]
            end = await caller.says("rerun_finished")
            assert (end["state"], end["reason"], end["exit_code"]) == ("completed", "The work is done.", 0)
            await asyncio.sleep(25 * 60)

    w, end = runs(hold, virtual, script)
    assert (end.state, end.reason) == ("completed", "Nothing ran in it for 30 min.")
    assert sorted((o["run"], o["on"], o["node"], o["hosts"]) for o in w.orders) == [
        (run, i, i, ["n0", "n1"]) for run in ("a", "b") for i in (0, 1)
    ]
    started, over = w.events("rerun_started"), w.events("rerun_ended")
    assert [e["run"] for e in started] == [e["run"] for e in over] == ["a", "b"]
    assert w.events("ended")[0]["t"] - over[-1]["t"] == pytest.approx(1800, abs=2)


def test_a_second_run_waits_for_nobody(hold, virtual):
    """It is refused while another one trains: both commands are told what is."""

    async def script(w):
        folder(w, "a"), folder(w, "b")
        first, second = Caller(w).connect(), Caller(w).connect()
        first.start("a")
        await first.says("rerun_accepted")
        second.start("b")
        assert (await second.says("rerun_refused"))["why"] == "a still runs: launcher cancel a ends it"
        assert (await first.says("rerun_finished"))["state"] == "completed"

    w, _ = runs(hold, virtual, script)
    assert {o["run"] for o in w.orders} == {"a"}


@pytest.mark.parametrize("stopped", [False, True])
def test_a_run_follows_one_that_has_written_how_it_ended(hold, virtual, stopped):
    """Its command has returned, and its agents are still leaving: `rerun && rerun` refused the second one. Ctrl-C stops it there, too."""

    async def script(w):
        folder(w, "a"), folder(w, "b")
        joins = w.nodes[1].on_join_rerun
        w.nodes[1].on_join_rerun = lambda m: (
            joins(m),
            w.nodes[1].over.cancel(),
        )  # it stays until the hold ends its part
        first, second = Caller(w).connect(), Caller(w).connect()
        first.start("a")
        await w.until(lambda: read_outcome(w.paths.root.parent / "a" / "outcome.json"))
        second.start("b")
        if stopped:
            await asyncio.sleep(1)
            second.stop("b")
            assert (await second.says("rerun_refused"))["why"] == "it was stopped before it began"
        assert (await first.says("rerun_finished"))["state"] == "completed"
        if not stopped:
            assert (await second.says("rerun_finished"))["state"] == "completed"

    w, _ = runs(hold, virtual, script)
    assert [e["run"] for e in w.events("rerun_started")] == (["a"] if stopped else ["a", "b"])


def test_a_command_stops_its_run_and_the_hold_stays(hold, virtual):
    """The rerun's leader, on its first node, is told; whoever asked hears of the end."""

    async def script(w):
        folder(w, "a")
        first, other = Caller(w).connect(), Caller(w).connect()
        first.start("a")
        await first.says("rerun_accepted")
        other.stop("a", save=True)
        assert (await other.says("rerun_finished"))["state"] == "cancelled"
        assert (await first.says("rerun_finished"))["state"] == "cancelled"
        other.heard.clear()
        other.stop("a")
        assert (await other.says("rerun_refused"))["why"] == "a does not run any more"

    w, end = runs(hold, virtual, script, lasts_s=500)
    assert end.state == "completed"
    assert [(o["on"], o["cause"], o["left_s"]) for o in w.orders if o["type"] == "forward_stop"] == [(0, "user", None)]


def test_a_node_that_cannot_begin_ends_the_run_everywhere(hold, virtual):
    """The others would wait for its leader for half an hour. The outcome says why."""

    async def script(w):
        folder(w, "a")
        caller = Caller(w).connect()
        caller.start("a")
        end = await caller.says("rerun_finished")
        assert (end["state"], end["reason"]) == ("failed", "On n0: environment.setup failed: no such module.")

    w, _ = runs(hold, virtual, script, problem="environment.setup failed: no such module", lasts_s=500)
    assert w.names_of("end_rerun") == ["a"]
    assert read_outcome(w.paths.root.parent / "a" / "outcome.json")["state"] == "failed"
    assert w.events("ended")[0]["state"] == "completed"


@pytest.mark.parametrize("node", [0, 1])
def test_a_lost_agent_ends_its_part_and_not_the_hold(hold, virtual, node):
    """The rerun's own leader decides on a node that is not its own. The next run waits for the agent, which is started again."""

    async def script(w):
        folder(w, "a"), folder(w, "b")
        caller = Caller(w).connect()
        caller.start("a")
        await caller.says("rerun_accepted")
        w.nodes[node].over.cancel()
        w.nodes[node].die()
        end = await caller.says("rerun_finished")
        assert end["state"] == ("failed" if node == 0 else "completed")
        assert end["reason"] == ("The agent on n0 was lost." if node == 0 else "The work is done.")
        if node == 0:
            return  # that agent is in the leader's process
        again = Caller(w).connect()
        again.start("b")
        assert (await again.says("rerun_finished"))["state"] == "completed"

    w, end = runs(hold, virtual, script, kept_s=8.0)
    assert end.state == "completed"
    assert [e["state"] for e in w.events("rerun_ended")] == (["failed"] if node == 0 else ["completed", "completed"])


def test_a_run_that_needs_more_nodes_than_are_left_is_refused(hold, virtual):
    """Without a keeper nobody starts the agent again."""

    async def script(w):
        folder(w, "a")
        w.nodes[1].die()
        await asyncio.sleep(1)
        caller = Caller(w).connect()
        caller.start("a")
        why = (await caller.says("rerun_refused"))["why"]
        assert why == f"it needs 2 nodes, and 1 are left of {w.spec.id} (lost: n1)"
        caller.heard.clear()
        caller.start("a", nodes=1, most_nodes=1)
        assert (await caller.says("rerun_finished"))["state"] == "completed"

    w, _ = runs(hold, virtual, script)
    assert [o["hosts"] for o in w.orders] == [["n0"]]


@pytest.mark.parametrize(
    ("means", "state", "said"),
    [("time_limit", "completed", "The time limit is near."), ("preempted", "completed", "The job was preempted."),
     ("cancelled", "cancelled", "The job was cancelled; cancelled runs never come back by themselves.")],
)  # fmt: skip
def test_what_ends_the_job_ends_the_hold_after_its_run(hold, virtual, means, state, said):
    """The rerun has heard the signal, too, and saves: its agents are not sent away before its end. No new run begins."""

    async def script(w):
        folder(w, "a")
        caller, late = Caller(w).connect(), Caller(w).connect()
        caller.start("a")
        await caller.says("rerun_accepted")
        w.allocation.means = SignalMeaning(means, 60.0)
        w.signal("TERM")
        await asyncio.sleep(1)
        late.start("b")
        assert (await late.says("rerun_refused"))["why"] == f"{w.spec.id} is ending"

    w, end = runs(hold, virtual, script, lasts_s=9.0)
    assert (end.state, end.reason) == (state, said)
    assert [e["state"] for e in w.events("rerun_ended")] == ["cancelled" if means == "cancelled" else "completed"]
    (stop,) = (o for o in w.orders if o["type"] != "join_rerun")
    assert (stop["type"], stop["cause"]) == ("forward_stop", means)  # its agents may have begun after SLURM's signal
    assert 40 < stop["left_s"] < 60


def test_a_run_that_does_not_end_in_time_is_ended(hold, virtual):
    """SLURM is about to kill everything: the outcome is written before."""

    async def script(w):
        folder(w, "a")
        caller = Caller(w).connect()
        caller.start("a")
        await caller.says("rerun_accepted")
        w.allocation.means = SignalMeaning("preempted", 20.0)
        w.signal("TERM")
        w.asked = asyncio.get_running_loop().time()
        w.said = await caller.says("rerun_finished")
        assert asyncio.get_running_loop().time() - w.asked == pytest.approx(18.5, abs=1)

    w, end = runs(hold, virtual, script, lasts_s=500)
    assert end.state == "completed"
    assert w.names_of("end_rerun") == ["a", "a"]
    outcome = read_outcome(w.paths.root.parent / "a" / "outcome.json")
    assert (
        (outcome["state"], outcome["reason"])
        == (w.said["state"], w.said["reason"])
        == ("failed", "Its hold ended before it did.")
    )


def test_a_new_leader_writes_how_the_run_of_a_dead_one_ended(hold, virtual):
    """Its leader lived in the process that died; the hold goes on."""
    w = hold()
    w.allocation.means = SignalMeaning("nothing")
    folder(w, "a")

    async def first():
        await asyncio.sleep(0)
        scripted(w)
        await w.until(lambda: read_state(w.paths.state).get("phase") == "holding")
        caller = Caller(w).connect()
        caller.start("a")
        await caller.says("rerun_accepted")
        raise asyncio.CancelledError

    async def killed():
        beside = asyncio.ensure_future(first())
        leading = asyncio.ensure_future(w.attempt_once())
        await asyncio.wait([beside])
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    virtual(killed())
    assert read_outcome(w.paths.root.parent / "a" / "outcome.json") is None
    end = virtual(w.attempt_once(revived=True))
    assert (end.state, end.reason) == ("completed", "Nothing ran in it for 30 min.")
    outcome = read_outcome(w.paths.root.parent / "a" / "outcome.json")
    assert (outcome["state"], outcome["reason"]) == ("failed", "The leader of its hold died.")


def test_other_runs_hold_nothing(world, virtual):
    """A command that names a run that trains by itself is told so."""
    w = world()

    async def script():
        await w.until(lambda: w.events("node_joined"))
        caller = Caller(w).connect()
        caller.start("a")
        assert (await caller.says("rerun_refused"))["why"] == f"{w.spec.id} is no hold"

    assert virtual(w.attempt_once(script)).state == "completed"


def test_a_hold_that_cannot_start_refuses_who_waits_for_it(world, virtual):
    """`hold` and `rerun` typed one after the other: the second is told why, and takes away what it has made."""
    w = world(hold=True, nodes=2, init_timeout_min=0.5, restart={"requeue": False})

    async def script():
        await w.until(lambda: w.events("node_joined"))
        caller = Caller(w).connect()
        caller.start("a")
        assert "did not start within 0.5 min" in (await caller.says("rerun_refused"))["why"]
        w.heard = True

    assert virtual(w.attempt_once(script, absent=(1,))).state == "failed"
    assert w.heard


def test_a_run_whose_command_died_before_it_began_has_an_outcome(world, virtual):
    """Nobody else would write one, and `launcher ls` would show it as running as long as the hold does."""
    w = world(hold=True, nodes=2, init_timeout_min=0.5, restart={"requeue": False})
    folder(w, "a")

    async def script():
        await w.until(lambda: w.events("node_joined"))
        caller = Caller(w).connect()
        caller.start("a")
        await asyncio.sleep(1)
        caller.link.hang_up()

    virtual(w.attempt_once(script, absent=(1,)))
    assert "did not start within 0.5 min" in read_outcome(w.paths.root.parent / "a" / "outcome.json")["reason"]


def test_a_run_id_is_no_path(hold, virtual):
    """Who knows the secret could name any folder otherwise."""

    async def script(w):
        for run in ("../b", "/tmp/b", "..", ""):
            caller = Caller(w).connect()
            caller.start(run)
            assert (await caller.says("rerun_refused"))["why"] == f"{run!r} is no run's id"

    w, _ = runs(hold, virtual, script)
    assert w.orders == []


def test_hosts_that_break_again_and_again_serve_every_run(hold, virtual):
    """Each run that trained is progress: a connection that breaks once a day excludes no host, and no death uses up the restarts."""

    async def script(w):
        for number in range(4):
            folder(w, f"a{number}")
            caller = Caller(w).connect()
            caller.start(f"a{number}")
            await caller.says("rerun_finished")
            w.nodes[1].die()
            await asyncio.sleep(30)

    w, end = runs(hold, virtual, script, kept_s=2.0)
    assert end.state == "completed"
    assert [e["state"] for e in w.events("rerun_ended")] == ["completed"] * 4
    assert len(w.events("agent_revived")) == 4


def test_an_agent_that_is_lost_before_it_joins_ends_the_rerun_at_once(hold, virtual):
    """The rerun's own leader would wait for it for half an hour, and the hold with it."""

    async def script(w):
        w.nodes[1].on_join_rerun = lambda m: w.nodes[1].die()
        folder(w, "a")
        caller = Caller(w).connect()
        caller.start("a")
        end = await caller.says("rerun_finished")
        assert (end["state"], end["reason"]) == ("failed", "The agent on n1 was lost.")

    runs(hold, virtual, script, kept_s=1.0)


@pytest.mark.parametrize("how", ["leader", "signal"])
def test_a_hold_keeps_what_it_has_left(hold, virtual, how):
    """A host of four is dead for good. Neither a leader that takes the dead one's place nor a signal that meant nothing ends the hold."""
    w = hold(nodes=4)
    w.allocation.means = SignalMeaning("unknown" if how == "signal" else "nothing")
    w.keep(refuses="its host does not answer")

    async def beside():
        await asyncio.sleep(0)
        scripted(w)
        await w.until(lambda: read_state(w.paths.state).get("phase") == "holding")
        w.nodes[3].die()
        await asyncio.sleep(5)
        if how == "signal":
            w.signal("USR2")
            await asyncio.sleep(4)
            w.allocation.means = SignalMeaning("nothing")
            await asyncio.sleep(60)

    async def killed():
        leading = asyncio.ensure_future(w.attempt_once())
        await beside()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    if how == "leader":
        virtual(killed())
    end = virtual(w.attempt_once(revived=True, absent=(3,)) if how == "leader" else w.attempt_once(beside))
    assert (end.state, end.reason) == ("completed", "Nothing ran in it for 30 min.")
