"""Agents with the real fork server, store and workers: torch is imported once per node."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_agents import FUNCTION, WAIT_S, left, make_run, start, until

from launcher.node.agent.agent import PRELOAD
from launcher.node.agent.leading import Dismissal
from launcher.node.forkserver.client import MARK_VARIABLE, ForkServer
from launcher.node.wire import connect, connection
from launcher.node.wire.messages import AgentHello
from launcher.node.wire.proofs import LifeKey
from launcher.run.files import read_lines
from launcher.run.spec import RestartSpec, Work
from launcher.run.state import read_outcome


def test_the_fork_server_has_one_thread_after_importing_torch() -> None:
    """Forking a process with threads is not safe: torch and the training floor, imported, start none."""

    async def main() -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "2"}  # with which numpy's OpenBLAS starts threads
        server = ForkServer(preload=PRELOAD, environ=environ)
        server.start()
        try:
            assert (await asyncio.wait_for(server.ready(), WAIT_S))["threads"] == 1
        finally:
            await server.stop()

    asyncio.run(main())


def test_importing_torch_leaves_nothing_in_a_workers_environment(tmp_path: Path) -> None:
    """A worker finds the variables that its fork server was given and its own: torch's imports preset none."""
    (tmp_path / "their_work.py").write_text("import json, os\ndef tells(): print(json.dumps(dict(os.environ)))\n")
    given = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH", "TRITON", "LC_CTYPE"))}

    async def main() -> None:
        ended = asyncio.Event()
        server = ForkServer(preload=PRELOAD, environ=given)
        server.start()
        try:
            with (tmp_path / "log").open("wb") as log:
                end = lambda *_: ended.set()  # noqa: E731
                await server.fork("w", 0, "their_work:tells", [log.fileno()], end, cwd=str(tmp_path), env={"X": "1"})
            await asyncio.wait_for(ended.wait(), WAIT_S)
        finally:
            await server.stop()

    asyncio.run(main())
    found = json.loads((tmp_path / "log").read_text())
    ours = {MARK_VARIABLE, "LC_CTYPE"}  # the latter is Python's own, in the C locale

    assert {k: v for k, v in found.items() if k not in ours} == {**given, "PWD": str(tmp_path), "X": "1"}


def test_each_worker_draws_its_own_random_numbers(tmp_path: Path) -> None:
    """As separate processes do: a script that seeds nothing would have one dropout and one order of its data on all ranks of a node."""
    (tmp_path / "their_work.py").write_text(
        "import random, numpy, torch\ndef draws(): print(torch.initial_seed(), torch.rand(()).item(), random.random(), numpy.random.rand())\n"
    )

    async def main() -> None:
        server = ForkServer(preload=PRELOAD, environ=dict(os.environ))
        server.start()
        try:
            for number in range(2):
                ended = asyncio.Event()
                with (tmp_path / f"log-{number}").open("wb") as log:
                    end = lambda *_, ended=ended: ended.set()  # noqa: E731
                    await server.fork(
                        f"w{number}", 0, "their_work:draws", [log.fileno()], end, cwd=str(tmp_path), env={}
                    )
                await asyncio.wait_for(ended.wait(), WAIT_S)
        finally:
            await server.stop()

    asyncio.run(main())
    first, second = ((tmp_path / f"log-{number}").read_text().split() for number in range(2))

    assert len(first) == 4
    assert not set(first) & set(second)


def test_two_nodes_check_their_network_and_data_loaders_end_with_their_round(world: Any) -> None:
    """Checks end with an all-reduce and its bandwidth; TERM and USR2 pass over loaders; ending a round ends them too."""

    async def body(w: Any) -> None:
        (w.paths.code / "job.py").write_text(FUNCTION)
        w.spec(nodes=2, tasks_per_node=1, work=Work(kind="function", target="job:loads"))
        for node in (0, 1):
            w.agent(node, REAL="1")
        await w.leader.heard("hello", count=2)
        for node in (0, 1):  # a store is up when torch is imported
            w.leader.tell("store", node, round=-1)
        ready = {m["node"]: m["port"] for m in await w.leader.heard("store_ready", count=2, round=-1)}
        port = ready[0]
        for node in (0, 1):
            w.leader.tell("preflight", node, port=port, rank=node, world_size=2, names=["127.0.0.1"])
        answers = await w.leader.heard("preflight", count=2)
        for answer in answers:
            assert answer["ok"], answer
            names = [c["name"] for c in answer["checks"]]
            assert {"disk", "run_dir", "names", "all_reduce"} <= set(names)
            assert "over 2 nodes" in answer["checks"][names.index("all_reduce")]["detail"]
            assert answer["bandwidth_gb_s"] > 0
        for node in (0, 1):
            w.leader.tell("end", node, round=-1)
        await w.leader.heard("cleared", count=2, round=-1)

        w.leader.tell("store", round=0)
        port = (await w.leader.heard("store_ready", round=0))[0]["port"]
        for node in (0, 1):
            order = {"workers": [{"rank": node, "local_rank": 0}], "group_rank": node, "master_port": port}
            w.leader.round(0, 2, "", node=node, mlflow_run_id=None, **order)
        await w.leader.until(lambda: w.paths.rank_log(0, 0, 0).exists() and "loaded" in w.log(0))
        before = sorted(w.left())
        assert len(before) >= 2 + 2 + 1 + 2 * 3  # agents, fork servers, the store, workers with two loaders each
        for signum in (signal.SIGTERM, signal.SIGUSR2):
            for pid in before:
                os.kill(pid, signum)
        await w.leader.heard("signal", count=4)
        heard = len(w.leader.all("alive"))
        await w.leader.heard("alive", count=heard + 4)
        assert set(before) <= set(w.left())
        assert w.leader.all("worker_exit") == []
        for node in (0, 1):
            w.leader.tell("end", node, round=0)
        await w.leader.heard("cleared", count=2, round=0)
        assert len(w.left()) == 4

    world(body)


def test_agents_and_leader_run_a_job_to_its_end(tmp_path: Path) -> None:
    """Two nodes of two workers: completed, both agents leave with 0, ranks and threads are right, nothing is left."""
    paths = make_run(tmp_path / "run-1", "job:adds")
    agents = [start(paths, node) for node in (0, 1)]
    try:
        codes = [agent.wait(WAIT_S) for agent in agents]
        said = [(paths.root / f"agent-{n}.log").read_text() for n in (0, 1)]
        assert codes == [0, 0], said
        outcome = read_outcome(paths.outcome)
        assert outcome is not None
        assert outcome["state"] == "completed", said
        for rank in range(4):
            assert paths.rank_log(0, 0, rank).read_text().split() == ["sum", "6.0", "threads", "1"]
        assert left(paths) == []
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


@pytest.mark.parametrize(("last", "cause"), [("raise ValueError('no paper')", "exception"), ("sys.exit(3)", "exit")])
def test_the_last_lines_of_a_rank_that_is_slow_to_end_are_in_the_outcome(tmp_path: Path, last: str, cause: str) -> None:
    """It has said that it failed and is ended before it has left: its log is read all the same, and our KILL is not the cause."""
    paths = make_run(
        tmp_path / "run-1", "train.py", nodes=1, work=Work(kind="script", target="train.py"),
        restart=RestartSpec(max_restarts=0),
    )  # fmt: skip
    script = f"import atexit, sys, time\natexit.register(time.sleep, 600)\nprint('out of paper', flush=True)\n{last}\n"
    (paths.code / "train.py").write_text(script)
    agent = start(paths, 0)
    try:
        agent.wait(WAIT_S)
        found = (read_outcome(paths.outcome) or {})["cause"]
        assert found["last_lines"][0] == "out of paper"
        assert found["last_lines"][-1] == ("ValueError: no paper" if cause == "exception" else "out of paper")
        assert (found["kind"], found["signal"]) == (cause, None)
        assert found["exit_code"] == (3 if cause == "exit" else None)
        assert left(paths) == []
    finally:
        agent.kill()
        agent.wait()


@pytest.mark.long
def test_spawned_workers_train(tmp_path: Path) -> None:
    """``start_method: spawn`` with torch: two fresh interpreters make a process group and the run is completed."""
    paths = make_run(tmp_path / "run-1", "job:spawned", nodes=1, start_method="spawn")
    agent = start(paths, 0)
    try:
        assert agent.wait(WAIT_S) == 0, (paths.root / "agent-0.log").read_text()
        assert (read_outcome(paths.outcome) or {})["state"] == "completed"
        for rank in range(2):
            assert paths.rank_log(0, 0, rank).read_text().split() == ["sum", "1.0", "threads", "1", "fresh"]
        assert left(paths) == []
    finally:
        agent.kill()
        agent.wait()


def test_killing_the_leader_ends_every_node(tmp_path: Path) -> None:
    """kill -9 of the first node's agent, and so of the leader: the other node leaves by itself and nothing is left."""
    paths = make_run(tmp_path / "run-1", "job:hangs")
    agents = [start(paths, node) for node in (0, 1)]
    try:
        logs = [paths.rank_log(0, 0, rank) for rank in range(4)]
        asyncio.run(until(lambda: all(log.exists() and "up" in log.read_text() for log in logs)))
        agents[0].kill()
        assert agents[1].wait(WAIT_S) == 15
        asyncio.run(until(lambda: left(paths) == []))
        assert [e["type"] for e in read_lines(paths.events)].count("round_started") == 1
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


def test_a_run_directory_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    """No spec: the code of RunDirError and one sentence, no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "launcher.node.agent", str(tmp_path), "--node", "0"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 11
    assert done.stderr.startswith("launcher: error: The run directory")
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("node", [2, -1])
def test_a_node_outside_the_run(tmp_path: Path, node: int) -> None:
    """A number that is none of the run's is refused."""
    paths = make_run(tmp_path / "run-1", "job:adds")
    done = subprocess.run(
        [sys.executable, "-m", "launcher.node.agent", str(paths.root), f"--node={node}"],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr.strip()) == (
        15,
        f"launcher: error: Node {node} does not belong to this run of 2 nodes.",
    )


def test_agents_without_a_leader_are_dismissed() -> None:
    """A leader that has nothing to lead has every other agent told to leave, and is done when all have."""

    async def main() -> None:
        dismissal = Dismissal(2)
        ports, key = list(range(24200, 24260)), LifeKey("ab", "1.0", "first")
        done = asyncio.ensure_future(dismissal.run(connection.server(key, ports, peers=3, local=True)))
        for node in (1, 2):
            peer = await connect.find_leader("127.0.0.1", ports, key, timeout_s=WAIT_S)
            peer.send(AgentHello(node=node, host="h", pid=1, attempt=None, facts=None))
            assert [m["type"] async for m in first(peer)] == ["shutdown"]
            assert not done.done()
            await peer.hang_up()
        await asyncio.wait_for(done, WAIT_S)

    async def first(peer: connection.Peer) -> Any:
        async for message in peer.messages():
            yield message
            return

    asyncio.run(main())
