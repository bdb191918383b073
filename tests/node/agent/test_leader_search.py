"""A leader's host is lost for good: of the nodes next in line one leads, in its agent's own process, or hands the job back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ProtocolError
from launcher.node.agent import leader_search
from launcher.node.agent.leader_search import LeaderSearch
from launcher.node.agent.membership import Doors, names_with
from launcher.node.allocation import leaderless, slurm_allocation
from launcher.node.allocation.leaderless import LeaderEnd, await_lead
from launcher.node.checkpoints import claims
from launcher.node.wire import connection
from launcher.node.wire.messages import Hub, Welcome
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work
from launcher.slurm.ask_courier import VARIABLE
from launcher.slurm.jobs import JobFacts

SECRET, LIFE = "5" * 32, "5.0"
JOB = {"SLURM_JOB_ID": "5"}
NAMES = ["n0", "n1", "n2", "n3", "n4"]
REMOVED = LeaderEnd("n0, the leader's host, stopped answering and SLURM has removed it from the job", removed=True)


def search(
    tmp_path: Path, node: int, *, environ: dict[str, str] = JOB, lost: str = "silent", **changes: Any
) -> LeaderSearch:
    """The search of one node's agent that has lost its leader, of a run that can do without a host."""
    spec = RunSpec(
        id="r", name="r", run_dir=str(tmp_path), work=Work(kind="task", target="m:C"), timeout_min=5, backend="gloo", tasks_per_node=1,
        **{"batch": "slurm", "nodes": 4, "spare_nodes": 1, "port_range": [23000, 23999], **changes},
    )  # fmt: skip
    found = LeaderSearch(spec, RunPaths(tmp_path), Doors(spec, SECRET, LIFE, NAMES, node), environ)
    found.welcomed(Welcome(attempt=0, t=0.0, line=[1, 2, 3]))
    found.lost = lost
    return found


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[LeaderEnd | None], list[str]]:
    """What becomes of the leader, as SLURM shows it, and that this node is to lead then; all nodes are on this machine."""
    of = Doors.of

    def here(doors: Doors, leader: int) -> Any:
        door = of(doors, leader)
        return type(door)(door.host, "127.0.0.1", door.key, door.ports)

    monkeypatch.setattr(Doors, "of", here)

    def set_end(end: LeaderEnd | None) -> list[str]:
        asked: list[str] = []

        def lead(
            allocation: Any, node: str, line: list[str], *, over: Any, claims: Any, before: int
        ) -> tuple[str, ...]:
            asked.extend([node, *line])
            return ("n1", "n2", "n3", "n4")

        monkeypatch.setattr(slurm_allocation, "SlurmAllocation", lambda spec, paths: None)
        monkeypatch.setattr(leaderless, "await_leader_end", lambda *words, **how: end)
        monkeypatch.setattr(leaderless, "await_lead", lead)
        return asked

    return set_end


async def listening(doors: Doors) -> Callable[[], None]:
    """A leader on the node of these doors, at 127.0.0.1."""
    door = doors.of(doors.node)
    return await connection.server(door.key, door.ports, peers=4, local=True)(Silent())


class Silent(Hub):
    """Says nothing."""

    def received(self, link: Any, message: Any) -> None:
        """See `Hub`."""

    def closed(self, link: Any, why: str) -> None:
        """See `Hub`."""


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run at most half a minute."""
    return asyncio.run(asyncio.wait_for(work, 30))


def test_the_node_that_is_to_lead_joins_itself(tmp_path: Path, ends: Any) -> None:
    """Its leader starts in the agent's own process; the same search finds that one, on this machine."""
    asked = ends(REMOVED)

    async def body() -> None:
        mine = search(tmp_path, 2)
        finding = asyncio.ensure_future(mine.find())
        await mine.leads.wait()
        assert asked == ["n2", "n1", "n2", "n3"]
        assert mine.end is not None
        assert mine.end.left == ("n1", "n2", "n3", "n4")
        stop = await listening(Doors(mine._spec, SECRET, LIFE, NAMES, 2))
        peer = await finding
        assert peer is not None
        assert mine.leads_here
        peer.abort()
        stop()

    run(body())


@pytest.mark.parametrize(("ago_s", "leaves"), [(10.0, True), (4000.0, False)])
def test_a_term_of_long_ago_sends_no_agent_away(tmp_path: Path, ends: Any, ago_s: float, leaves: bool) -> None:
    """It was a false alarm: the leader lived on for longer than any grace. A leader that dies now is waited for as ever."""
    ends(None)

    async def body() -> None:
        mine = search(tmp_path, 3)
        mine.term_at = time.monotonic() - ago_s
        stop = await listening(Doors(mine._spec, SECRET, LIFE, NAMES, 1)) if not leaves else None
        if leaves:
            with pytest.raises(ProtocolError, match="received TERM and the leader is gone"):
                await mine.find()
        else:
            peer = await mine.find()
            assert peer is not None
            peer.abort()
            assert stop is not None
            stop()

    run(body())


def test_the_others_find_it_where_it_leads(tmp_path: Path, ends: Any) -> None:
    """Also one that is next in line behind it: that one leads no more."""
    ends(None)

    async def body() -> None:
        stop = await listening(Doors(search(tmp_path, 1)._spec, SECRET, LIFE, NAMES, 1))
        for node in (3, 4):
            mine = search(tmp_path, node)
            peer = await mine.find()
            assert peer is not None
            assert mine.door.host == "n1"
            assert not mine.leads.is_set()
            peer.abort()
        stop()

    run(body())


def test_a_leader_that_only_stands_still_is_handed_back(tmp_path: Path, ends: Any) -> None:
    """Its host answers: SLURM would never drop it. The agent leaves, and `adopt` knows what became of the leader."""
    ends(LeaderEnd("The leader on n0 did not respond for 28 s"))
    mine = search(tmp_path, 1)
    with pytest.raises(ProtocolError, match="did not respond for 28 s; this agent exits"):
        run(mine.find())
    assert mine.decided
    assert mine.end is not None


def test_one_that_has_nothing_to_decide_leaves_soon(tmp_path: Path, ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM ends the job, or does not answer this host: nobody is waited for, and nothing handed back."""
    ends(None)
    monkeypatch.setattr(leader_search, "_DECIDED_S", 0.5)
    claims.claim_attempt(RunPaths(tmp_path), life=LIFE)
    mine = search(tmp_path, 1)
    with pytest.raises(ProtocolError):
        run(mine.find())
    assert (mine.decided, mine.end) == (True, None)


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, True),
        ({"spare_nodes": 0, "nodes": 5}, False),
        ({"spare_nodes": 0, "nodes": 5, "least_nodes": 2}, True),
        ({"batch": "local"}, False),
        ({"environ": {**JOB, VARIABLE: "/x"}}, True),
    ],
    ids=["a spare", "every node is needed", "a range", "one machine", "a spare, in a container"],
)
def test_only_a_run_that_can_do_without_the_host_waits(tmp_path: Path, changes: Any, waits: bool) -> None:
    """The others give the allocation back at once, as far as no keeper starts another leader: the nodes would idle for minutes."""
    mine = search(tmp_path, 1, **changes)
    assert mine.waits(welcomed=True) is waits
    mine.kept = True
    assert mine.waits(welcomed=True)
    assert mine.waits(welcomed=False) is waits
    assert mine.may_lead is waits
    assert not search(tmp_path, 4, **changes).may_lead  # it is not in line


def test_only_a_few_nodes_ask_slurm(tmp_path: Path) -> None:
    """A thousand agents would be too many; the leader names three."""
    assert [search(tmp_path, node).place for node in (1, 2, 3, 4)] == [0, 1, 2, None]


class Job:
    """SLURM's answers about the job, one after the other; the last one stays."""

    restart_count = 0

    def __init__(self, *nodes: str | None) -> None:
        self.nodes = list(nodes)

    def facts(self) -> JobFacts | None:
        """The next answer."""
        nodes = self.nodes.pop(0) if len(self.nodes) > 1 else self.nodes[0]
        return nodes and JobFacts(job_id="5", state="RUNNING", restarts=0, nodes=nodes)


@pytest.mark.parametrize(
    ("node", "answers", "after_s"),
    [
        ("n1", ["n[1-4]"], 0.0),
        ("n2", ["n[1-4]"], 20.0),
        ("n2", ["n[2-4]"], 0.0),
        ("n3", ["n[1-4]", "n[3-4]"], 0.5),
        ("n1", ["n[2-4]"], None),
        ("n1", [None], None),
        ("n1", [None, None, "n[1-4]"], 1.0),
        ("n1", [*[None] * 600, "n[1-4]"], 300.0),
        ("n2", [*[None] * 600, "n[1-4]"], 320.0),
    ],
    ids=[
        "the first",
        "the second waits",
        "the first is lost, too",
        "both are lost meanwhile",
        "removed itself",
        "no answer",
        "no answer at first",
        "no answer for minutes",
        "the second waits behind that, too",
    ],
)
def test_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch, node: str, answers: Any, after_s: float | None) -> None:
    """The first one that SLURM still lists leads at once; the next ones wait some seconds for it."""
    now = [100.0]
    monkeypatch.setattr(leaderless.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(leaderless.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    left = await_lead(Job(*answers), node, ["n1", "n2", "n3"], over=lambda: now[0] > 800, claims=lambda: 0, before=0)
    assert (node in left) is (after_s is not None)
    assert after_s is None or now[0] - 100 == pytest.approx(after_s)
    assert await_lead(Job("n[1-4]"), "n2", ["n1", "n2"], over=lambda: True, claims=lambda: 0, before=0) == ()


def test_one_that_has_claimed_the_attempt_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be slow to listen: a second claim would end it. One that has died since is not waited for longer than a minute."""
    now = [100.0]
    monkeypatch.setattr(leaderless.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(leaderless.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    left = await_lead(
        Job("n[1-4]"), "n2", ["n1", "n2"], over=lambda: now[0] > 300, claims=lambda: int(now[0] > 115), before=0
    )
    assert "n2" in left
    assert now[0] - 100 == pytest.approx(75, abs=1)


def test_an_agent_that_replaces_a_node_looks_for_a_leader_that_leads(
    tmp_path: Path, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its leader was when it was asked for; it is in no line, and leaves when that life is over."""
    ends(None)
    spec = search(tmp_path, 1)._spec
    names = names_with(["n0", "n1", "n2"], 4, "n9")
    assert names == ["n0", "n1", "n2", "", "n9"]

    def replacement() -> LeaderSearch:
        doors = Doors(spec, SECRET, LIFE, names, 4)
        return LeaderSearch(spec, RunPaths(tmp_path), doors, JOB, leader=2, joins=True)

    async def body() -> None:
        stop = await listening(Doors(spec, SECRET, LIFE, names, 2))
        peer = await (mine := replacement()).find()
        assert peer is not None
        assert (mine.door.host, mine.place, mine.leads_here) == ("n2", None, False)
        peer.abort()
        stop()
        monkeypatch.setattr(leader_search, "_UNANSWERED_S", 1.0)
        with pytest.raises(ProtocolError):
            await replacement().find()

    run(body())
