"""One agent as a real process under a fake leader: orders done, ends told, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import time
from typing import Any

import psutil
import pytest

from launcher.node.checkpoints import claims
from launcher.node.wire import connection
from launcher.run.spec import Work

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "3",
    "ROLE_NAME": "default",
    "ROLE_WORLD_SIZE": "4",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "4242",
    "TORCHELASTIC_RESTART_COUNT": "6",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_RUN_ID": "r1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "OMP_NUM_THREADS": "1",
}


async def start(w: Any, **how: Any) -> Any:
    """Start one agent and wait for its hello."""
    agent = w.agent(**how)
    await w.leader.heard("hello")
    return agent


SIGNALS = {"TERM", "INT", "USR2", "CONT", "USR1", "HUP"}


def test_an_agent_says_what_it_is_and_leaves_when_told(world: Any) -> None:
    """hello carries the node's facts; shutdown is answered by leaving, exit code 0 and nothing left."""

    async def body(w: Any) -> None:
        agent = await start(w)
        hello = w.leader.all("hello")[0]
        assert (hello["node"], hello["host"], hello["pid"], hello["attempt"]) == (0, "host0", agent.pid, None)
        facts = hello["facts"]
        assert facts["cpus"] == len(os.sched_getaffinity(0))
        assert facts["mem_bytes"] > 2**28
        assert facts["torch"].startswith("2.")
        assert (facts["gpus"], facts["sees_run_dir"], facts["master_addr"]) == (0, True, "127.0.0.1")
        assert facts["free_bytes"] > 0
        w.leader.tell("shutdown")
        assert await w.gone(agent) == 0
        assert len(await w.leader.heard("leaving")) == 1
        assert w.left() == []

    world(body)


def test_workers_find_torchruns_variables_and_nothing_of_slurms_tasks(world: Any) -> None:
    """Exactly torchrun's names and values, the run's own, the job's; SLURM's task numbers and submitit's are hidden."""

    async def body(w: Any) -> None:
        w.spec(variables={"MINE": "a b"}, seed=7)
        slurm = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
        kept = {"SLURM_JOB_ID": "77", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_NODELIST": "a,b"}
        await start(w, **slurm, **kept, SUBMITIT_LOCAL_LOCALID="1", PMI_RANK="1", RANK="99", TORCHELASTIC_X="1")
        workers = [{"rank": 2, "local_rank": 0}, {"rank": 3, "local_rank": 1}]
        resume = {"own": True, "step": 5}
        w.leader.round(6, 4, "environment", workers=workers, group_rank=1, resume=resume)
        said = await w.leader.heard("worker", rank=3, count=2)
        found = json.loads(said[1]["message"]["text"])
        ranks = {k: v for k, v in found.items() if k in TORCHRUN or k.startswith("TORCHELASTIC_")}
        assert ranks == TORCHRUN
        assert {k: found.get(k) for k in kept} == kept
        assert not [k for k in found if k in slurm or k.startswith(("SUBMITIT", "PMI"))]
        ours = {k: v for k, v in found.items() if k.startswith("LAUNCHER_") and k != "LAUNCHER_FORKSERVER"}
        assert ours == {
            "LAUNCHER_RUN_DIR": str(w.paths.root),
            "LAUNCHER_ATTEMPT": "0",
            "LAUNCHER_ROUND": "6",
            "LAUNCHER_RESUME_PATH": str(w.paths.checkpoint(5)),
            "LAUNCHER_RESUME_STEP": "5",
        }
        assert (found["MINE"], found["PYTHONHASHSEED"], found["MLFLOW_RUN_ID"]) == ("a b", "7", "environment")
        await w.leader.heard("worker_exit", count=2, exit_code=0)
        assert w.log(3, round_=6).split()[:3] == ["cwd", str(w.paths.code), str(w.paths.code)]

    world(body)


def test_workers_of_a_whole_node_have_cpus_of_their_own(world: Any) -> None:
    """SLURM granted every CPU there is: each worker runs on its share alone, with as many threads as a task has CPUs."""
    allowed = sorted(os.sched_getaffinity(0))
    workers = min(2, len(allowed))
    each = len(allowed) // workers

    async def body(w: Any) -> None:
        w.spec(cpus_per_task=each)
        await start(w, SLURM_CPUS_ON_NODE=str(psutil.cpu_count()))
        w.leader.round(0, workers, "environment")
        await w.leader.heard("worker_exit", count=workers, exit_code=0)
        for rank in range(workers):
            share = allowed[rank * each : (rank + 1) * each]
            assert w.log(rank).split("cpus")[1].split() == [str(cpu) for cpu in share]
            said = [m["message"] for m in w.leader.all("worker", rank=rank)]
            found = next(json.loads(m["text"]) for m in said if m["type"] == "warning")
            assert found["OMP_NUM_THREADS"] == str(each)

    world(body)


def test_a_failure_is_told_with_its_last_words(world: Any) -> None:
    """A worker's last message arrives before its exit, which carries the exit code, whose doing it was, and the log's last 30 lines."""

    async def body(w: Any) -> None:
        await start(w)
        w.leader.round(0, 2, "fail")
        exits = await w.leader.heard("worker_exit", count=2)
        assert {(e["exit_code"], e["signal"], e["oom"], e["by_us"]) for e in exits} == {(1, None, False, False)}
        for e in exits:
            assert e["last_lines"][-1] == "ValueError: out of paper"
            assert len(e["last_lines"]) == 30
        order = [m["type"] for m in w.leader.said if m.get("rank") == 0 and m["type"] != "worker_up"]
        assert order == ["worker", "worker", "worker_exit"]
        assert os.readlink(w.paths.latest_log) == "logs/attempt-0/round-0/rank-00000.log"

    world(body)


def test_what_workers_say_of_secrets_stays_on_the_host(world: Any) -> None:
    """The value of a passed variable, and what looks like a token, in errors, warnings and last lines: history, pages and mails get them."""

    async def body(w: Any) -> None:
        w.spec(pass_names=("LOGIN", "LEVEL"))
        await start(w, LOGIN="hunter22", LEVEL="warning")
        w.leader.round(0, 1, "leak")
        (exit_,) = await w.leader.heard("worker_exit")
        said = {m["message"]["type"]: m["message"] for m in w.leader.all("worker")}
        assert said["warning"]["text"] == "slow login of <redacted>"
        assert (said["failed"]["message"], said["failed"]["caused_by"]) == ("no <redacted>", ["KeyError: <redacted>"])
        assert exit_["last_lines"] == ["login of <redacted>"]
        assert "hunter22" in w.log(0)  # the job's own output is the job's

    world(body)


def test_every_message_arrives_before_the_exit(world: Any) -> None:
    """500 messages sent just before `os._exit` are all forwarded, in order, ahead of the exit."""

    async def body(w: Any) -> None:
        await start(w)
        w.leader.round(0, 2, "many")
        await w.leader.heard("worker_exit", count=2, exit_code=5)
        for rank in (0, 1):
            said = [m for m in w.leader.said if m.get("rank") == rank and m["type"] in ("worker", "worker_exit")]
            assert [m["message"]["step"] for m in said[1:-1]] == list(range(500))
            assert said[-1]["type"] == "worker_exit"

    world(body)


def test_messages_reach_the_workers_they_are_for(world: Any) -> None:
    """to_workers goes to the ranks named, or to all."""

    async def body(w: Any) -> None:
        await start(w)
        w.leader.round(0, 3, "echo")
        await w.leader.until(lambda: w.leader.phases == 3)
        w.leader.tell("to_workers", round=0, ranks=[1], message={"type": "say", "text": "one"})
        w.leader.tell("to_workers", round=0, ranks=None, message={"type": "leave", "text": "x" * 300_000})
        await w.leader.heard("worker_exit", count=3, exit_code=0)
        texts = {
            rank: [
                len(m["message"]["text"])
                for m in w.leader.all("worker", rank=rank)
                if m["message"]["type"] == "warning"
            ]
            for rank in range(3)
        }
        assert texts == {0: [300_000], 1: [3, 300_000], 2: [300_000]}

    world(body)


def test_ending_a_round_leaves_nothing_of_it(world: Any) -> None:
    """``end`` ends workers, their children, other sessions and orphans; every exit is told before ``cleared``."""

    async def body(w: Any) -> None:
        agent = await start(w)
        w.leader.round(0, 4, "family")
        await w.leader.until(lambda: w.leader.phases == 4)
        await w.leader.until(lambda: len(w.left()) == 2 + 4 * 4)  # what was just executed has no environment to read
        w.leader.tell("end", round=0)
        await w.leader.heard("cleared", round=0)
        kinds = [m["type"] for m in w.leader.said if m["type"] in ("worker_exit", "cleared")]
        assert kinds == ["worker_exit"] * 4 + ["cleared"]
        assert {e["signal"] for e in w.leader.all("worker_exit")} == {9}
        assert sorted(w.left()) == sorted([agent.pid, w.fork_server(agent)])

    world(body)


def test_ending_a_round_that_never_began(world: Any) -> None:
    """``end`` for an unknown round, or at once after ``round``, is answered by ``cleared`` all the same."""

    async def body(w: Any) -> None:
        agent = await start(w)
        w.leader.tell("end", round=9)
        await w.leader.heard("cleared", round=9)
        w.leader.round(10, 4, "wait")
        w.leader.tell("end", round=10)
        await w.leader.heard("cleared", round=10)
        await w.leader.until(lambda: len(w.left()) == 2)
        assert agent.poll() is None

    world(body)


def test_a_script_hears_term_once(world: Any) -> None:
    """``term`` is forwarded once, however often the leader says it, after a note of the deadline."""

    async def body(w: Any) -> None:
        w.spec(work=Work(kind="script", target="x.py"))
        await start(w)
        w.leader.round(0, 2, "term")
        await w.leader.until(lambda: w.leader.phases == 2)
        asked_t = time.time()
        for _ in range(3):
            w.leader.tell("term", round=0, cause="preempted", left_s=20.0)
        await w.leader.heard("worker_exit", count=2, exit_code=0)
        heard = [m["message"]["text"] for m in w.leader.all("worker") if m["message"]["type"] == "warning"]
        assert heard == ["TERM 1", "TERM 1"]
        note = json.loads(w.paths.stop_note(0, 0, 0).read_text())
        assert asked_t - 1 < note.pop("deadline_t") - 20 < time.time() + 1
        assert note == {"cause": "preempted", "left_s": 20}

    world(body)


def test_an_agents_signals_are_told_and_end_nothing(world: Any) -> None:
    """Signals that SLURM, or a user, sends to every process of the step are told to the leader; everybody lives on."""

    async def body(w: Any) -> None:
        agent = await start(w)
        w.leader.round(0, 2, "wait")
        await w.leader.heard("worker_up", count=2)
        await w.leader.until(lambda: w.leader.phases == 2)
        alive = sorted(w.left())
        for signum in (signal.SIGTERM, signal.SIGUSR2, signal.SIGCONT, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            for pid in alive:
                os.kill(pid, signum)
        await w.leader.until(lambda: {m["name"] for m in w.leader.all("signal")} == SIGNALS)
        before = len(w.leader.all("alive"))
        await w.leader.heard("alive", count=before + 2)
        assert sorted(w.left()) == alive
        assert agent.poll() is None
        assert w.leader.all("worker_exit") == []

    world(body)


def test_heartbeats_carry_every_rank_and_show_a_frozen_one(world: Any) -> None:
    """``alive`` names each worker with its memory; a stopped worker's state becomes T, and a dump has it show its stack, too."""

    async def body(w: Any) -> None:
        await start(w)
        w.leader.round(0, 2, "wait")
        pids = {m["rank"]: m["pid"] for m in await w.leader.heard("worker_up", count=2)}
        await w.leader.until(lambda: len(w.leader.all("alive")[-1]["ranks"]) == 2)
        sample = w.leader.all("alive")[-1]
        assert [r["rank"] for r in sample["ranks"]] == [0, 1]
        assert all(r["rss_bytes"] > 1_000_000 for r in sample["ranks"])
        os.kill(pids[1], signal.SIGSTOP)
        await w.leader.until(lambda: [r["state"] for r in w.leader.all("alive")[-1]["ranks"]] == ["S", "T"])
        w.leader.tell("dump", round=0)
        await w.leader.heard("stacks")
        await w.leader.until(lambda: "in wait" in w.log(0))
        await w.leader.until(lambda: "in wait" in w.log(1))
        w.leader.tell("end", round=0)
        await w.leader.heard("cleared")

    world(body)


def test_stacks_are_waited_for_on_a_busy_node(world: Any) -> None:
    """Processes that do not run for a second write late: the leader, which then ends the round, hears of stacks that are there."""

    async def body(w: Any) -> None:
        agent = await start(w, tweak="workers._STACKS_S = 600.0")
        w.leader.round(0, 2, "wait")
        await w.leader.until(lambda: w.leader.phases == 2)
        os.kill(w.fork_server(agent), signal.SIGSTOP)
        w.leader.tell("dump", round=0)
        await w.leader.heard("alive", count=len(w.leader.all("alive")) + 3)
        assert w.leader.all("stacks") == []
        os.kill(w.fork_server(agent), signal.SIGCONT)
        await w.leader.heard("stacks")
        assert all("most recent call first" in w.log(rank) for rank in (0, 1))

    world(body)


def test_losing_the_leader_ends_everything(world: Any) -> None:
    """When the leader's connection closes the agent ends its workers and leaves with a code that says so."""

    async def body(w: Any) -> None:
        agent = await start(w)
        w.leader.round(0, 2, "family")
        await w.leader.until(lambda: w.leader.phases == 2)
        w.stop()
        assert await w.gone(agent) == 15
        assert w.left() == []
        assert "The connection to the leader closed" in w.agent_log()

    world(body)


def test_a_silent_leader_is_left(world: Any) -> None:
    """A leader whose connection stands but who answers no heartbeat is taken for dead after the silence allowed."""

    async def body(w: Any) -> None:
        agent = w.agent(tweak="module.wire.SILENCE_S = 2.0;module.wire.HEARTBEAT_S = 0.1")
        await w.leader.heard("hello")
        w.leader.links[0].send = lambda *_: None  # the transport's own answers stop
        assert await w.gone(agent) == 15
        assert "The leader did not answer" in w.agent_log()

    world(body)


def test_killing_the_agent_leaves_nothing(world: Any) -> None:
    """kill -9 of the agent: fork server, store, workers, their children and orphans vanish."""

    async def body(w: Any) -> None:
        agent = await start(w)
        w.leader.tell("store", round=0)
        await w.leader.heard("store_ready", port=4242)
        w.leader.round(0, 3, "family")
        await w.leader.until(lambda: w.leader.phases == 3)
        await w.leader.until(lambda: len(w.left()) == 3 + 3 * 4)  # what was just executed has no environment to read
        agent.kill()
        await w.gone(agent)
        await w.leader.until(lambda: w.left() == [])

    world(body)


def test_killing_the_fork_server_costs_a_round(world: Any) -> None:
    """kill -9 of the fork server: its workers' exits and the store's are told, and the next round works."""

    async def body(w: Any) -> None:
        agent = await start(w)
        w.leader.tell("store", round=0)
        await w.leader.heard("store_ready")
        w.leader.round(0, 2, "family")
        await w.leader.until(lambda: w.leader.phases == 2)
        os.kill(w.fork_server(agent), signal.SIGKILL)
        exits = await w.leader.heard("worker_exit", count=2)
        assert {e["signal"] for e in exits} == {9}
        await w.leader.heard("store_lost", round=0)
        w.leader.tell("end", round=0)
        await w.leader.heard("cleared", round=0)
        w.leader.round(1, 2, "finish")
        await w.leader.heard("worker_exit", count=2, round=1, exit_code=0)
        assert len(w.left()) == 2

    world(body)


def test_a_store_is_told_ready_lost_or_failed(world: Any) -> None:
    """The store's port is told; its death is told; one that cannot start is told with its own words."""

    async def body(w: Any) -> None:
        agent = await start(w)
        w.leader.tell("store", round=0)
        assert (await w.leader.heard("store_ready"))[0]["port"] == 4242
        server = psutil.Process(w.fork_server(agent))
        server.children()[0].kill()
        await w.leader.heard("store_lost", round=0)
        w.leader.tell("end", round=0)
        await w.leader.heard("cleared", round=0)
        w.leader.tell("shutdown")
        await w.gone(agent)

    world(body)


def test_a_store_that_cannot_start_says_why(world: Any) -> None:
    """store_failed carries the error of the store's process."""

    async def body(w: Any) -> None:
        await start(w, tweak="store.STORE_MAIN = 'agent_work:broken_store'")
        w.leader.tell("store", round=0)
        assert (await w.leader.heard("store_failed"))[0]["error"] == "OSError: no port for you"

    world(body)


def test_what_cannot_be_imported_fails_each_worker(world: Any) -> None:
    """A fork server that cannot import its modules is told as its workers' exits, with Python's words."""

    async def body(w: Any) -> None:
        await start(w, tweak="module.PRELOAD = ['no_such_module']")
        w.leader.round(0, 2, "finish")
        exits = await w.leader.heard("worker_exit", count=2)
        assert all("No module named 'no_such_module'" in e["last_lines"][-1] for e in exits)
        w.leader.tell("end", round=0)
        await w.leader.heard("cleared")

    world(body)


def test_spawned_workers(world: Any) -> None:
    """start_method: spawn runs each worker in a fresh interpreter, with the same messages and ends."""

    async def body(w: Any) -> None:
        w.spec(start_method="spawn")
        agent = await start(w)
        w.leader.round(0, 2, "finish")
        await w.leader.heard("worker_exit", count=2, exit_code=0)
        assert len([m for m in w.leader.all("worker") if m["message"]["type"] == "finished"]) == 2
        w.leader.round(1, 2, "family")
        await w.leader.until(lambda: w.leader.phases == 2)
        w.leader.tell("end", round=1)
        await w.leader.heard("cleared", round=1)
        assert sorted(w.left()) == sorted([agent.pid, w.fork_server(agent)])

    world(body)


def test_heartbeats_go_on_while_files_are_slow(world: Any) -> None:
    """While a log takes long to open, as on a stuck NFS, heartbeats come and orders are heard."""

    async def body(w: Any) -> None:
        there = w.paths.root / "the disk answers"
        slow = "import pathlib, time; from launcher.node.agent import logs; was = logs.open_log"
        wait = f"while not pathlib.Path({str(there)!r}).exists(): time.sleep(0.05)"
        late = f"def late(*a, **k):\n  {wait}\n  return was(*a, **k)"
        await start(w, tweak=f"{slow};exec({late!r});logs.open_log = late;module.wire.HEARTBEAT_S = 0.2")
        w.leader.round(0, 1, "finish")
        await w.leader.heard("alive", count=len(w.leader.all("alive")) + 5)
        w.leader.tell("end", round=9)
        await w.leader.heard("cleared", round=9)
        assert w.leader.all("worker_up") == []
        there.touch()
        await w.leader.heard("worker_up")

    world(body)


def test_an_agent_waits_for_a_leader_that_starts_late(world: Any) -> None:
    """The leader may start after its agents; a signal that came meanwhile is told then."""

    async def body(w: Any) -> None:
        w.stop()
        with socket.socket() as held:  # bound and not listening: ours until the leader takes it, and refused until then
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
            w.spec(port_range=[port, port])
            agent = w.agent()
            await w.leader.until(lambda: psutil.Process(agent.pid).children())
            agent.send_signal(signal.SIGUSR2)
            w.stop = await connection.server(w.key, [port], peers=1, local=True)(w.leader)
        await w.leader.heard("hello")
        assert (await w.leader.heard("signal"))[0]["name"] == "USR2"
        w.leader.tell("shutdown")
        assert await w.gone(agent) == 0

    world(body)


def test_no_leader_within_the_time_allowed(world: Any) -> None:
    """Without a leader an agent gives up after init_timeout_min, with one sentence and the code of ProtocolError."""

    async def body(w: Any) -> None:
        w.stop()
        w.spec(init_timeout_min=0.01)
        agent = w.agent()
        assert await w.gone(agent) == 15
        assert "The leader on 127.0.0.1 did not answer" in w.agent_log()

    world(body)


@pytest.mark.parametrize(
    ("life", "said"),
    [("test.0", "The leader has begun and does not answer"), ("test.1", "The leader on 127.0.0.1 did not answer")],
    ids=["this life's", "another life's"],
)
def test_a_leader_that_died_before_it_was_found(world: Any, life: str, said: str) -> None:
    """A leader that has claimed its attempt in this life and does not answer is gone: nobody waits half an hour for it."""

    async def body(w: Any) -> None:
        w.stop()
        w.spec(init_timeout_min=0.1 if life == "test.1" else 30.0)
        claims.claim_attempt(w.paths, life=life)
        agent = w.agent(tweak="from launcher.node.agent import leader_search; leader_search._UNANSWERED_S = 0.5")
        assert await w.gone(agent) == 15
        assert said in w.agent_log()

    world(body)


STALLS = """
import asyncio, time
from launcher.node.agent import leader_search as search
find, read, calls, found = search.connect.find_leader, search.read_outcome, [], []
async def late(*words, **how):
    await asyncio.sleep(2.5)
    found.append(await find(*words, **how))
    return found[0]
def stalling(path):
    calls.append(path)
    if len(calls) == 2:
        time.sleep(2.0)
        while not found:
            time.sleep(0.05)
    return read(path)
search.connect.find_leader, search.read_outcome, search._UNANSWERED_S = late, stalling, 1.5
"""
"""The leader is found after 2.5 s; from 2 to 4 s, and until then, the node's file system answers nothing."""


def test_a_leader_that_was_found_during_a_stall_is_kept(world: Any) -> None:
    """The verdict that it does not answer is not given on a node whose own file system took the time."""

    async def body(w: Any) -> None:
        claims.claim_attempt(w.paths, life="test.0")
        agent = await start(w, tweak=STALLS)
        w.leader.tell("shutdown")
        assert await w.gone(agent) == 0

    world(body)


def test_a_run_that_has_ended_needs_no_agents(world: Any) -> None:
    """An agent that finds the outcome while it looks for a leader leaves with 0."""

    async def body(w: Any) -> None:
        w.stop()
        w.paths.outcome.write_text(json.dumps({"state": "completed"}))
        agent = w.agent()
        assert await w.gone(agent) == 0

    world(body)


def told(w: Any, number: int) -> set[int]:
    """The ranks of a round of which the leader has heard that they began, or that they did not."""
    return {m["rank"] for kind in ("worker_up", "worker_exit") for m in w.leader.all(kind, round=number)}


def test_fifty_rounds_of_random_kills_leave_nothing(world: Any) -> None:
    """50 rounds of 4 workers with children, killed at random moments and in random ways: every exit told, nothing left."""

    async def body(w: Any) -> None:
        dice = random.Random(11)
        agent = await start(w)
        for number in range(50):
            w.leader.round(number, 4, dice.choice(["wait", "family", "fail", "many", "echo"]))
            if dice.random() < 0.8:
                least = dice.randint(1, 4)  # of a fork server that was just killed come ends alone
                await w.leader.until(lambda number=number, least=least: len(told(w, number)) >= least)
            ups = w.leader.all("worker_up", round=number)
            gone = {m["rank"] for m in w.leader.all("worker_exit", round=number)}
            live = [m["pid"] for m in ups if m["rank"] not in gone]
            if live and dice.random() < 0.8:
                try:
                    os.kill(dice.choice(live), dice.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV]))
                except ProcessLookupError:
                    pass
            elif dice.random() < 0.3:
                for server in psutil.Process(agent.pid).children():  # none, where it was killed before it could fork
                    server.kill()
            await asyncio.sleep(dice.random() * 0.05)
            w.leader.tell("end", round=number)
            await w.leader.heard("cleared", round=number)
            exits = sorted(m["rank"] for m in w.leader.all("worker_exit", round=number))
            assert len(exits) == len(set(exits))
            assert set(exits) >= {m["rank"] for m in w.leader.all("worker_up", round=number)}

        def alone() -> bool:  # a fork server that was killed in the last round is started again when it is needed
            children = [p.pid for p in psutil.Process(agent.pid).children(recursive=True)]
            return len(children) <= 1 and set(w.left()) <= {agent.pid, *children}

        await w.leader.until(alone)

    world(body)


def test_the_oldest_logs_make_room(world: Any) -> None:
    """Logs of the last 20 rounds are kept."""

    async def body(w: Any) -> None:
        await start(w)
        for number in range(23):
            w.leader.round(number, 1, "finish")
            await w.leader.heard("worker_exit", round=number)
            w.leader.tell("end", round=number)
            await w.leader.heard("cleared", round=number)
        kept = sorted(int(p.name.split("-")[1]) for p in w.paths.attempt_logs(0).iterdir())
        assert kept == list(range(3, 23))
        assert w.paths.latest_log.resolve() == w.paths.rank_log(0, 22, 0).resolve()

    world(body)


@pytest.mark.parametrize("share", ["none", "group"])
def test_logs_are_for_the_owner_or_the_group(world: Any, share: str) -> None:
    """Log folders are 0700 and logs 0600; share: group opens both for reading by the group."""

    async def body(w: Any) -> None:
        w.spec(share=share)
        await start(w)
        w.leader.round(0, 1, "finish")
        await w.leader.heard("worker_exit")
        log = w.paths.rank_log(0, 0, 0)
        modes = [oct(p.stat().st_mode & 0o777) for p in (log, log.parent, log.parent.parent)]
        assert modes == (["0o600", "0o700", "0o700"] if share == "none" else ["0o640", "0o750", "0o750"])

    world(body)


def test_two_agents_of_one_run(world: Any) -> None:
    """Two nodes join one leader; a stranger on the port and another run's agent are not heard."""

    async def body(w: Any) -> None:
        for node in (0, 1):
            w.agent(node)
        await w.leader.heard("hello", count=2)
        with socket.create_connection(("127.0.0.1", w.port)) as stranger:
            stranger.sendall(b'{"type": "hello", "node": 5}\n')
        for node in (0, 1):
            workers = [{"rank": 2 * node + i, "local_rank": i} for i in range(2)]
            w.leader.round(0, 4, "finish", node=node, workers=workers, group_rank=node)
        await w.leader.heard("worker_exit", count=4, exit_code=0)
        assert sorted(m["node"] for m in w.leader.all("worker_exit")) == [0, 0, 1, 1]
        assert set(w.leader.links) == {0, 1}

    world(body)


def test_a_connection_that_closes_before_the_welcome_costs_no_node(world: Any) -> None:
    """Under a flood of strangers the leader may hang up on an agent: it tries again, and a signal that came meanwhile is told."""

    async def body(w: Any) -> None:
        w.leader.greets = False
        agent = w.agent()
        (first,) = await w.leader.heard("hello")
        agent.send_signal(signal.SIGUSR2)
        await w.leader.heard("signal")
        w.leader.greets = True
        w.leader.links[first["node"]].abort()
        await w.leader.heard("hello", 2)
        await w.leader.heard("signal", 2)
        w.leader.tell("shutdown")
        assert await w.gone(agent) == 0
        assert "closed before it answered; trying again" in w.agent_log()

    world(body)
