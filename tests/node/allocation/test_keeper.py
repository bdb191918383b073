"""The keeper, over the real wire: a scripted leader, a stand-in for srun, and a job as SLURM shows it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ProtocolError
from launcher.node.allocation import keeper as module
from launcher.node.allocation import reach
from launcher.node.allocation.keeper import Keeper
from launcher.node.wire import connection
from launcher.node.wire import messages as wire
from launcher.node.wire.keeper_messages import KeeperWelcome, Revive, WithdrawRevival
from launcher.node.wire.proofs import LifeKey
from launcher.run.batch import GONE, LAST_WORDS, MARK, SHELL
from launcher.run.paths import RunPaths
from launcher.run.processes import mark_of
from launcher.run.spec import RunSpec, Work
from launcher.slurm.jobs import JobFacts

SECRET = "5a" * 32
ENVIRON = {
    "SLURM_JOB_ID": "7",
    "SLURM_RESTART_COUNT": "1",
    "SLURM_JOB_NODELIST": "node[1-3]",
    "SLURM_STEP_ID": "3",
    "PATH": os.environ["PATH"],
}
RUNNING = JobFacts(job_id="7", state="RUNNING", restarts=1)
SRUN = """
import json, os, sys, time
words, root = sys.argv[1:], os.environ["ROOT"]
with open(root + "/started", "a") as f:
    f.write(json.dumps([words, sorted(k for k in os.environ if k.startswith("SLURM_STEP")), os.environ["LAUNCHER_AGENT_LOG"]]) + "\\n")
while not os.path.exists(root + "/end"):
    time.sleep(0.01)
sys.exit(int(open(root + "/end").read()))
"""
"""Notes how it was called, and ends with the code that the file ``end`` holds."""


class ScriptedLeader(wire.Hub):
    """Welcomes the keeper in the name of a process that lives, and keeps what it says."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.links: list[Any] = []
        self.said: list[dict[str, Any]] = []

    def received(self, link: wire.Link, message: dict[str, Any]) -> None:
        """See `Hub`."""
        self.said.append(message)
        if message["type"] == "keeper":
            self.links.append(link)
            link.send(KeeperWelcome(pid=self.pid, mark=mark_of(self.pid), nodes=["node1", "node2", "node3"]))

    def closed(self, link: wire.Link, why: str) -> None:
        """See `Hub`."""

    def told(self, type_: str) -> list[dict[str, Any]]:
        """What it was told of one type."""
        return [m for m in self.said if m["type"] == type_]


class Scene:
    """A run's folder, a keeper's input, and SLURM's answers."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths = RunPaths(root)
        self.facts: JobFacts | None = RUNNING
        self.leader_process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.leader = ScriptedLeader(self.leader_process.pid)
        self.paths.submitit.mkdir(parents=True)
        self.write_log("")
        self.silent = 0
        """So many questions SLURM leaves unanswered."""
        monkeypatch.setattr(module, "job_facts", lambda job_id: self.answer())
        monkeypatch.setattr(module, "_GIVEN_UP_S", 1.0)
        monkeypatch.setattr(module, "_LAST_S", 1.0)  # the scripted leader's process does not end by itself
        monkeypatch.setattr(module, "_EXIT_S", 0.5)
        monkeypatch.setattr(module, "host_answers", lambda host, ports: host != "node3")
        for name, value in ENVIRON.items():
            monkeypatch.setenv(name, value)
        (root / "srun").write_text(f"#!{sys.executable}\n{SRUN}")
        (root / "srun").chmod(0o755)
        self.input, self._open = os.pipe()
        self.stop: Callable[[], None] = lambda: None
        self.start_s = 0.0
        """How long the first leader took to answer; 0: as it did."""

    def answer(self) -> JobFacts | None:
        """What SLURM says of the job, after the questions that it leaves unanswered."""
        self.silent -= 1
        return None if self.silent >= 0 else self.facts

    def write_log(self, text: str) -> None:
        """What the batch script's log holds of this life."""
        (self.paths.submitit / "7_0_log.out").write_text(f"{MARK}7.1\n{text}")

    def srun_ends(self) -> None:
        """The batch script's own srun has ended."""
        os.close(self._open)

    def step_ends(self, code: int) -> None:
        """Every step that the keeper started ends."""
        new = self.paths.root / "end.new"
        new.write_text(str(code))
        new.rename(self.paths.root / "end")  # a step never reads half of it

    def started(self) -> list[tuple[list[str], list[str]]]:
        """How srun was called, and which variables of a step it had."""
        file = self.paths.root / "started"
        return [tuple(json.loads(line)[:2]) for line in file.read_text().splitlines()] if file.exists() else []  # type: ignore[misc]

    def logs(self) -> list[str]:
        """Where the agents that were started again write."""
        return [json.loads(line)[2] for line in (self.paths.root / "started").read_text().splitlines()]

    async def listen(self) -> int:
        """Lead on a port of the life's candidates."""
        key = LifeKey(SECRET, "7.1", "node1")
        while True:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.port = probe.getsockname()[1]
            try:
                self.stop = await connection.server(key, [self.port], peers=3, local=True)(self.leader)
                return self.port
            except ProtocolError:
                continue

    def keeper(self) -> Keeper:
        """The keeper of this life."""
        spec = RunSpec(
            id="r", name="r", run_dir=str(self.paths.root), work=Work(kind="task", target="m:C"), batch="slurm", nodes=3,
            tasks_per_node=1, timeout_min=5, backend="gloo", port_range=[self.port, min(self.port + 9, 65535)],
        )  # fmt: skip
        srun = [str(self.paths.root / "srun"), "--overlap", "agent"]
        environ = {**ENVIRON, "ROOT": str(self.paths.root)}
        made = Keeper(self.paths, spec, SECRET, srun, environ, stdin=os.fdopen(self.input))
        made._start_s = self.start_s
        return made


async def until(true: Callable[[], object]) -> None:
    """Wait until something holds."""

    async def wait() -> None:
        while not true():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), 60)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """The scene; nothing of it outlives the test."""
    made = Scene(tmp_path / "run", monkeypatch)
    yield made
    made.leader_process.kill()
    made.leader_process.wait()


def keeping(scene: Scene, act: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run a keeper while ``act`` happens; return its code."""

    async def both() -> int:
        await scene.listen()
        keeper = scene.keeper()
        running = asyncio.ensure_future(keeper.run())
        try:
            await until(lambda: scene.leader.links or running.done())
            await act()
            code = await asyncio.wait_for(running, 60)
            await until(lambda: not keeper._steps)  # a slow one was killed, and nobody has waited for it
            return code
        finally:
            scene.step_ends(1)
            running.cancel()
            scene.stop()

    return asyncio.run(both())


async def leader_dies(scene: Scene) -> None:
    scene.leader_process.kill()
    scene.leader_process.wait()
    scene.stop()
    await asyncio.sleep(0)


def test_an_agent_is_started_in_a_step_of_its_own(scene: Scene) -> None:
    """On its host, with the log of its node and the names of all; the leader hears how the step ended; no step's variable leaks."""

    async def act() -> None:
        (link,) = scene.leader.links
        link.send(Revive(node=1, host="node2", address="node2", order=1, pid=4711, mark="boot/1"))
        await until(scene.started)
        scene.step_ends(5)
        await until(lambda: scene.leader.told("not_revived"))
        link.send(wire.Shutdown())
        scene.srun_ends()

    assert keeping(scene, act) == 0
    ((words, variables),) = scene.started()
    log = scene.paths.submitit / "7_1_log.out"
    assert words[0] == "--nodelist=node2"
    assert scene.logs() == [str(log)]
    assert words[-6:] == [str(scene.paths.root), "--node", "1", "--again", "node[1-3]", "--ends=4711,boot/1"]
    assert variables == []
    (said,) = scene.leader.told("not_revived")
    assert (said["node"], said["why"]) == (1, "its step ended with exit code 5")


@pytest.mark.parametrize(
    ("host", "facts", "why"),
    [
        ("node3", RUNNING, "its host does not answer"),
        ("node2", JobFacts(job_id="7", state="COMPLETING", restarts=1), "SLURM is ending the job"),
        ("node2", JobFacts(job_id="7", state="RUNNING", restarts=2), "SLURM is ending the job"),
        ("node2", JobFacts(job_id="7", state="RUNNING", restarts=1, preempt_t=5.0), "SLURM is ending the job"),
    ],
)
def test_slurm_and_the_host_are_asked_first(scene: Scene, host: str, facts: JobFacts, why: str) -> None:
    """A job that SLURM is ending, has started anew or preempts is left alone, and so is a host that is gone."""
    scene.facts = facts

    async def act() -> None:
        (link,) = scene.leader.links
        link.send(Revive(node=1, host=host, address=host, order=1, pid=4711, mark="boot/1"))
        await until(lambda: scene.leader.told("not_revived"))
        link.send(wire.Shutdown())
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert scene.started() == []
    assert scene.leader.told("not_revived")[0]["why"] == why


def test_one_lost_packet_is_no_lost_host(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is not answered within a second is tried at another port: the agent is started again."""
    dialled: list[int] = []

    def dial(address: tuple[str, int], timeout: float) -> socket.socket:
        dialled.append(address[1])
        raise TimeoutError if len(dialled) == 1 else ConnectionRefusedError

    monkeypatch.setattr(module, "host_answers", reach.host_answers)
    monkeypatch.setattr(reach.socket, "create_connection", dial)

    async def act() -> None:
        (link,) = scene.leader.links
        link.send(Revive(node=1, host="node2", address="node2", order=1, pid=4711, mark="boot/1"))
        await until(lambda: scene.started() or scene.leader.told("not_revived"))
        scene.step_ends(0)
        link.send(wire.Shutdown())
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert len(scene.started()) == 1
    assert len(set(dialled)) == 2


def test_an_order_outlasts_slurms_silence(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slurmctld that is restarted says nothing against the job, or the host: it is asked for as long as the agent is wanted."""
    monkeypatch.setattr(module, "_UNHEARD_S", 0.0)
    scene.silent = 2

    async def act() -> None:
        (link,) = scene.leader.links
        link.send(Revive(node=1, host="node2", address="node2", order=1, pid=4711, mark="boot/1"))
        await until(lambda: scene.started() or scene.leader.told("not_revived"))
        assert scene.leader.told("not_revived") == []
        scene.step_ends(0)
        link.send(wire.Shutdown())
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert len(scene.started()) == 1


def test_slurm_is_asked_for_a_leader_as_long_as_agents_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a leader takes long to start, agents wait for two such times more: SLURM is asked during the first of them."""
    monkeypatch.setattr(module, "_UNHEARD_S", 0.0)
    scene.silent, scene.start_s = 2, 30.0

    async def act() -> None:
        await leader_dies(scene)
        await until(scene.started)
        scene.srun_ends()
        scene.step_ends(0)

    assert keeping(scene, act) == 0
    assert len(scene.started()) == 2


def test_another_leader_is_started_where_one_dies(scene: Scene) -> None:
    """On the first host; where it dies before it answers it is tried once more, and then the teardown decides."""

    async def act() -> None:
        await leader_dies(scene)
        await until(scene.started)
        scene.srun_ends()
        await asyncio.sleep(0.3)  # it waits for the new leader, although srun has ended
        scene.step_ends(GONE)

    assert keeping(scene, act) == GONE
    assert [words[0] for words, _ in scene.started()] == ["--nodelist=node1"] * 2


def test_an_end_of_the_leader_that_was_meant_is_no_death(scene: Scene) -> None:
    """It says so first. The keeper then waits for the batch script's srun, and for steps that are left."""

    async def act() -> None:
        (link,) = scene.leader.links
        link.send(Revive(node=1, host="node2", address="node2", order=1, pid=4711, mark="boot/1"))
        await until(scene.started)
        link.send(wire.Shutdown())
        await leader_dies(scene)
        scene.srun_ends()
        await asyncio.sleep(0.3)
        scene.step_ends(0)

    assert keeping(scene, act) == 0
    assert len(scene.started()) == 1


def test_leaders_that_die_at_once_are_not_started_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is killed before its first decision has counted nothing in restart.max_restarts: the teardown decides after twenty."""
    monkeypatch.setattr(module, "_MOST_SHORT_LIVED", 1)

    async def act() -> None:
        await leader_dies(scene)
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert scene.started() == []


@pytest.mark.parametrize("how", ["outcome", "its words", "step cancelled", "step cancelled, 26.05", "job over", "TERM"])
def test_a_leader_whose_run_is_over_is_not_missed(scene: Scene, how: str) -> None:
    """It has written the outcome or a last sentence, a step was cancelled, SLURM ends the job, or TERM came to the batch script."""

    async def act() -> None:
        if how == "outcome":
            scene.paths.outcome.write_text("{}")
        elif how == "its words":
            scene.write_log(f"{LAST_WORDS}the leader failed: no room\n")
        elif how == "step cancelled":
            scene.write_log("slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-26T12:00:00 ***\n")
        elif how == "step cancelled, 26.05":
            signal_named = "CANCELLED AT 2026-11-26T14:48:46 DUE to SIGNAL Killed ***"
            scene.write_log(f"[2026-11-26T14:48:46.745] error: *** STEP 7.0 ON node1 {signal_named}\n")
        elif how == "job over":
            scene.facts = JobFacts(job_id="7", state="COMPLETING", restarts=1)
        else:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
        await leader_dies(scene)
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert scene.started() == []


def test_the_leader_learns_that_a_step_was_cancelled(scene: Scene) -> None:
    """Its agents were killed, and the leader, in another step, has heard nothing: they are not started again."""
    scene.write_log("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n")

    async def act() -> None:
        (link,) = scene.leader.links
        link.send(Revive(node=1, host="node2", address="node2", order=1, pid=4711, mark="boot/1"))
        await until(lambda: scene.leader.told("not_revived"))
        link.send(wire.Shutdown())
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert scene.started() == []
    assert scene.leader.told("not_revived")[0]["step_cancelled"] is True


def test_a_killed_srun_is_no_cancelled_step(scene: Scene) -> None:
    """slurmstepd says the same of both: the batch script's log tells that srun was killed."""

    async def act() -> None:
        scene.write_log(
            "/var/spool/slurmd/job00007/slurm_script: line 30:  4711 Killed                  srun --unbuffered\n"
            "slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-26T12:00:00 ***\n"
        )
        await leader_dies(scene)
        await until(scene.started)
        scene.srun_ends()
        scene.step_ends(1)

    assert keeping(scene, act) == 0
    assert len(scene.started()) == 2


def test_a_leader_that_lives_is_joined_again(scene: Scene) -> None:
    """Its connection broke, and it answers: nothing is started beside it."""

    async def act() -> None:
        scene.leader.links[0].close()
        await until(lambda: len(scene.leader.links) == 2)
        scene.leader.links[1].send(wire.Shutdown())
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert scene.started() == []


def test_without_a_leader_it_leaves_with_srun(scene: Scene) -> None:
    """No leader ever answered: how that is mended is the teardown's to decide."""

    async def both() -> int:
        await scene.listen()
        scene.stop()
        running = asyncio.ensure_future(scene.keeper().run())
        await asyncio.sleep(0.2)
        assert not running.done()
        scene.srun_ends()
        return await asyncio.wait_for(running, 60)

    assert asyncio.run(both()) == 0
    assert scene.started() == []


def test_a_keeper_whose_batch_script_has_gone_ends_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its input closes as at srun's end. SLURM ends what is left of the job: nobody waits for it."""
    ended: list[int] = []
    shell = subprocess.Popen(["true"])
    shell.wait()
    monkeypatch.setitem(ENVIRON, SHELL, str(shell.pid))
    monkeypatch.setattr(module.os, "_exit", ended.append)

    async def act() -> None:
        scene.srun_ends()
        await until(lambda: ended)
        scene.leader.links[0].send(wire.Shutdown())

    assert keeping(scene, act) == 0
    assert ended == [1]


def test_an_order_that_is_withdrawn_ends_what_it_started(scene: Scene) -> None:
    """The agent came back by itself: the one that starts in its place would end it. Nothing is said of it."""

    async def act() -> None:
        (link,) = scene.leader.links
        link.send(Revive(node=1, host="node2", address="node2", order=1, pid=None, mark=None))
        await until(scene.started)
        link.send(WithdrawRevival(node=1, order=1))
        await asyncio.sleep(0.5)
        link.send(wire.Shutdown())
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert len(scene.started()) == 1
    assert scene.leader.told("not_revived") == []


def test_a_keeper_that_stood_still_blames_nobody(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped for longer than a leader may be silent, as by a suspended job: the leader lives on."""
    monkeypatch.setattr(module.wire, "SILENCE_S", 2.5)

    async def act() -> None:
        await asyncio.sleep(0.2)
        time.sleep(4.0)  # this process, the loop of both included
        await asyncio.sleep(1.5)
        assert scene.leader_process.poll() is None
        scene.leader.links[-1].send(wire.Shutdown())
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert len(scene.leader.links) == 1
    assert scene.started() == []


def test_a_leader_that_lives_is_joined_again_without_srun(scene: Scene) -> None:
    """The batch script's srun was killed before: that its step goes on is all that counts."""

    async def act() -> None:
        scene.srun_ends()
        await asyncio.sleep(0.1)
        scene.leader.links[0].close()
        await until(lambda: len(scene.leader.links) == 2)
        scene.leader.links[1].send(wire.Shutdown())

    assert keeping(scene, act) == 0
    assert scene.started() == []


def test_an_srun_that_cannot_be_started_is_told(scene: Scene) -> None:
    """The leader hears why; where it is the leader's own, the teardown decides."""

    async def act() -> None:
        (scene.paths.root / "srun").unlink()
        (link,) = scene.leader.links
        link.send(Revive(node=1, host="node2", address="node2", order=1, pid=None, mark=None))
        await until(lambda: scene.leader.told("not_revived"))
        await leader_dies(scene)
        scene.srun_ends()

    assert keeping(scene, act) == 0
    assert "srun cannot be started: No such file" in scene.leader.told("not_revived")[0]["why"]


@pytest.mark.parametrize("modules", ["keeper", "teardown, launcher.node.allocation.slurm_allocation"])
def test_what_runs_beside_srun_and_after_it_needs_the_standard_library_alone(modules: str) -> None:
    """With a container it runs outside, with whatever Python the host has."""
    code = (
        "import sys\n"
        f"import launcher.node.allocation.{modules}\n"
        "print(sorted({'psutil', 'submitit', 'torch', 'omegaconf', 'pydantic', 'numpy'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("spec", "words", "said"),
    [
        ("{", ["srun"], "cannot be read"),
        ("[1]", ["srun"], "cannot be read"),
        ("{", [], "usage: python -m launcher.node.allocation.keeper RUN_DIR SRUN..."),
    ],
)
def test_what_it_cannot_read_is_one_sentence(tmp_path: Path, spec: str, words: list[str], said: str) -> None:
    """The batch script goes on without a keeper: everything is then as without one."""
    (tmp_path / "spec.json").write_text(spec)
    command = [sys.executable, "-m", "launcher.node.allocation.keeper", str(tmp_path), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
