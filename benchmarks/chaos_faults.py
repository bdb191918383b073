"""The faults of `benchmarks/chaos.py`: each strikes a real run as the world would, or finds nothing to strike."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import inflict
import psutil
from cluster import Cluster
from harness import Run

WORLD = 3
REFUSE_VARIABLE = "CHAOS_REFUSE"
"""Where listings.c looks for its orders; the jobs' environment."""


CHANGES = ("round_ended", "attempt_ended", "decision", "leader_revived", "attempt_started", "round_started")
"""Events that tell of a round's end, or of what follows it."""


class NotNow(Exception):  # noqa: N818 - nothing is wrong
    """The moment does not offer what this fault needs."""


@dataclass
class Scene:
    """A run under fire and what surrounds it."""

    cluster: Cluster
    run: Run
    chance: random.Random
    disk: Path
    refuse: Path
    """Orders for listings.c."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set at the run's end: what was to be done later is done now."""
    threads: list[threading.Thread] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What went wrong with the faults themselves."""
    released: int = 0
    """How often SLURM had put the job on hold, and it was released as ``launcher why`` says."""
    resubmitted_t: list[float] = field(default_factory=list)
    """When SLURM had lost the job, and the run was submitted again as ``launcher why`` says."""

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """Do something after a while (at the run's end, if that comes first), beside what goes on."""

        def wait_and_act() -> None:
            self.over.wait(seconds)
            try:
                act()
            except Exception as error:
                self.troubles.append(f"{type(error).__name__}: {error}"[:300])

        self.threads.append(threading.Thread(target=wait_and_act, daemon=True))
        self.threads[-1].start()

    def worker(self, *ranks: int) -> int:
        """The pid of a living worker with one of these ranks."""
        alive = {p.pid for p in self.run.processes()}
        pids = {r.get("rank"): r.get("pid") for r in self.run.state().get("ranks", [])}
        mine = [pids[r] for r in ranks if pids.get(r) in alive]
        if not mine:
            raise NotNow
        return int(self.chance.choice(mine))

    def agent(self, *, leader: bool) -> psutil.Process:
        """A living agent."""
        leads = self.run.state().get("leader_pid")
        found = [p for p in inflict.agents(self.run).values() if (p.pid == leads) == leader]
        if not found:
            raise NotNow
        return self.chance.choice(found)

    def training(self) -> dict[str, Any]:
        """The leader's picture, fresh and of a round that trains."""
        state = self.run.state()
        if state.get("phase") != "training" or time.time() - state.get("t", 0) > 3:
            raise NotNow
        return state

    def job(self) -> tuple[str, str, list[str]]:
        """Job id, state and hosts, by SLURM."""
        out = self.cluster.run(["squeue", "-h", "-n", self.run.paths.id, "-o", "%A %T %N"], check=False).stdout
        words = out.split()
        if len(words) < 3 or words[1] != "RUNNING":
            raise NotNow
        names = self.cluster.run(["scontrol", "show", "hostnames", words[2]]).stdout.split()
        return words[0], words[1], names


def _signal(number: int, *ranks: int) -> Callable[[Scene], None]:
    return lambda scene: os.kill(scene.worker(*ranks), number)


def _order(kind: str) -> Callable[[Scene], None]:
    """Have a rank do something to itself in its next step."""

    def strike(scene: Scene) -> None:
        scene.training()
        path = scene.run.paths.root / f"fault-{kind}-{scene.chance.randrange(WORLD)}"
        path.touch()
        end = time.monotonic() + 2
        while path.exists():
            if time.monotonic() > end:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                    raise NotNow
            time.sleep(0.01)

    return strike


def _store(scene: Scene) -> None:
    scene.training()
    inflict.kill_store(scene.run)


def _damage(how: Callable[[Path], None]) -> Callable[[Scene], None]:
    """The newest checkpoint rots, and then it is needed."""

    def strike(scene: Scene) -> None:
        pid = scene.worker(*range(WORLD))
        if not list(scene.run.paths.checkpoints.glob("step-*")):
            raise NotNow
        for path in inflict.newest_checkpoint(scene.run).glob("*.pt"):
            how(path)
        os.kill(pid, signal.SIGKILL)

    return strike


def _preempt(scene: Scene) -> None:
    _, _, hosts = scene.job()
    if scene.cluster.broken:
        raise NotNow
    wanted = hosts if scene.chance.random() < 0.5 else [scene.chance.choice(hosts)]
    job = inflict.preempt(scene.cluster, wanted, 1)
    scene.later(90, lambda: scene.cluster.run(["scancel", job], check=False))


def _host(strike: Callable[[Cluster, str], None]) -> Callable[[Scene], None]:
    """A host goes, and comes back after a while."""

    def act(scene: Scene) -> None:
        _, _, hosts = scene.job()
        if scene.cluster.broken:
            raise NotNow
        host = scene.chance.choice(hosts)
        strike(scene.cluster, host)
        scene.later(scene.chance.uniform(3, 25), lambda: scene.cluster.heal(host))

    return act


def _first_host(scene: Scene) -> None:
    """The leader's host goes; where the run can do without it, another one leads."""
    host = scene.training().get("leader_host")
    if scene.cluster.broken or host not in scene.cluster.hosts:
        raise NotNow
    scene.cluster.kill(host)
    scene.later(scene.chance.uniform(20, 60), lambda: scene.cluster.heal(host))


def _replacement(scene: Scene) -> None:
    """The job that replaces a node is cancelled, whether it waits or runs."""
    words = ["squeue", "-h", "-n", f"{scene.run.paths.id}+node", "-o", "%A"]
    jobs = scene.cluster.run(words, check=False).stdout.split()
    if not jobs:
        raise NotNow
    scene.cluster.run(["scancel", scene.chance.choice(jobs)], check=False)


def _slurmctld(scene: Scene) -> None:
    if "slurmctld" in scene.cluster.broken:
        raise NotNow
    scene.cluster.restart("slurmctld")


def _slurmd(scene: Scene) -> None:
    if "slurmctld" in scene.cluster.broken:
        raise NotNow
    healthy = [h for h in scene.cluster.hosts if h not in scene.cluster.broken]
    scene.cluster.restart(scene.chance.choice(healthy))


def _disk_full(scene: Scene) -> None:
    """No room for checkpoints, for three seconds."""
    if (filler := scene.disk / "filler").exists():
        raise NotNow
    inflict.fill(filler)
    scene.later(3, filler.unlink)


def _away(scene: Scene) -> None:
    """The run's folder is not there for some seconds, as a mount that is lost."""
    root = scene.run.paths.root
    hidden = root.with_name(f"{root.name}-away")
    scene.training()
    root.rename(hidden)
    scene.later(scene.chance.uniform(1, 20), lambda: hidden.rename(root))


def _unreadable(scene: Scene) -> None:
    """A folder cannot be listed (EIO), once or for a while, just when it is needed: something dies at the same time."""
    order = (
        scene.refuse / f"{scene.chance.choice(('once', 'always'))}-{scene.chance.choice(('attempts', 'checkpoints'))}"
    )
    victim = scene.chance.choice(("worker", "leader", "agent"))
    process = (
        psutil.Process(scene.worker(*range(WORLD))) if victim == "worker" else scene.agent(leader=victim == "leader")
    )
    order.touch()
    process.kill()
    scene.later(scene.chance.uniform(2, 30), lambda: order.unlink(missing_ok=True))


def _frozen(scene: Scene) -> None:
    """The leader stands still for a while, as on a host that swaps, and goes on."""
    leader = scene.agent(leader=True)
    leader.suspend()

    def resume() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            leader.resume()

    scene.later(scene.chance.uniform(5, 45), resume)


def _soon(ready: Callable[[], object], limit_s: float, every_s: float) -> None:
    """Wait for a moment that ought to come; NotNow when it does not."""
    end = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > end:
            raise NotNow
        time.sleep(every_s)


def _recovering(scene: Scene) -> dict[str, Any]:
    """A second fault within the recovery from a first, of any kind that a run has to recover from.

    Returns the two; where nothing was there that the second could strike, the first alone, as one of its kind.
    """
    leader, before = scene.training()["leader_pid"], _changes(scene)
    first = _drawn(scene, [kind for kind in FAULTS if kind not in (*NO_ROUND, *_IN_TWO)])
    FAULTS[first][1](scene)
    second = scene.chance.choice(list(_SECONDS))

    def struck() -> bool:
        try:
            _SECONDS[second](scene)
        except (NotNow, AssertionError, OSError, psutil.Error, LookupError):
            return False  # what it strikes is not there yet
        return True

    try:
        _soon(lambda: not psutil.pid_exists(leader) or _changes(scene) > before, _NOTICED_S, 0.05)
        time.sleep(scene.chance.uniform(0, 2))
        _soon(struck, 10, 0.02)
    except NotNow:
        return {"kind": first}
    return {"first": first, "second": second}


def _changes(scene: Scene) -> int:
    return sum(event["type"] in CHANGES for event in scene.run.history())


def _keeper(scene: Scene) -> psutil.Process:
    try:
        return inflict.keeper(scene.run)
    except StopIteration:
        raise NotNow from None


def _frozen_agent(scene: Scene) -> None:
    """An agent stands still for good."""
    scene.training()
    scene.agent(leader=False).suspend()


def _all_agents(scene: Scene) -> None:
    """Every process of the launcher in the job's steps dies at once."""
    scene.training()
    for process in inflict.agents(scene.run).values():
        process.kill()


def _srun(scene: Scene) -> None:
    scene.training()
    inflict.kill_srun(scene.run)


def _requeue(*, started: bool) -> Callable[[Scene], None]:
    """slurmctld dies just after a requeue, or as the requeued job starts, and is down for up to a minute."""

    def strike(scene: Scene) -> None:
        if scene.cluster.broken:
            raise NotNow
        scene.training()
        job, _, _ = scene.job()
        count = len(scene.run.told("requeued"))
        restarts = scene.cluster.job(job).get("Restarts", "")
        _keeper(scene).kill()  # it would start the agent again, in the same job
        scene.agent(leader=False).kill()
        if started:
            _soon(lambda: _began_again(scene.cluster.job(job), restarts), 60, 0.05)
        else:
            _soon(lambda: len(scene.run.told("requeued")) > count, 30, 0.02)
        scene.cluster.stop_slurmctld()
        scene.later(scene.chance.choice((2, 10, 30, 60)), lambda: scene.cluster.heal("slurmctld"))

    return strike


def _began_again(job: dict[str, str], restarts: str) -> bool:
    return job.get("JobState") == "RUNNING" and job.get("Restarts") != restarts


FAULTS: dict[str, tuple[int, Callable[[Scene], dict[str, Any] | None]]] = {
    "worker killed": (5, _signal(signal.SIGKILL, *range(1, WORLD))),
    "rank 0 killed": (3, _signal(signal.SIGKILL, 0)),
    "segfault": (3, _signal(signal.SIGSEGV, *range(WORLD))),
    "os._exit": (3, _order("exit")),
    "exception": (3, _order("exception")),
    "worker frozen": (2, _signal(signal.SIGSTOP, *range(WORLD))),
    "store killed": (3, _store),
    "agent killed": (2, lambda scene: scene.agent(leader=False).kill()),
    "leader killed": (2, lambda scene: scene.agent(leader=True).kill()),
    "agent frozen": (2, _frozen_agent),
    "all agents killed": (2, _all_agents),
    "srun killed": (1, _srun),
    "keeper killed": (1, lambda scene: _keeper(scene).kill()),
    "preempted": (3, _preempt),
    "slurmctld restarted": (2, _slurmctld),
    "slurmd restarted": (2, _slurmd),
    "flipped byte": (2, _damage(inflict.flip_byte)),
    "truncated file": (1, _damage(inflict.truncate)),
    "disk full": (2, _disk_full),
    "host killed": (1, _host(Cluster.kill)),
    "leader's host killed": (2, _first_host),
    "replacement cancelled": (3, _replacement),
    "host cut off": (1, _host(Cluster.cut)),
    "leader frozen": (3, _frozen),
    "folder away": (4, _away),
    "unreadable listing": (5, _unreadable),
    "two in one recovery": (5, _recovering),
    "slurmctld killed after a requeue": (4, _requeue(started=False)),
    "slurmctld killed as it starts": (4, _requeue(started=True)),
}
"""Kinds with their weights. What a fault returns is added to its record."""
NO_ROUND = (
    "slurmctld restarted",
    "slurmd restarted",
    "disk full",
    "folder away",
    "keeper killed",
    "replacement cancelled",
)
"""Kinds that a run should not even notice."""
_IN_TWO = ("two in one recovery", "slurmctld killed after a requeue", "slurmctld killed as it starts")
"""Kinds that are two faults already."""
_SECONDS: dict[str, Callable[[Scene], None]] = {
    "worker killed": _signal(signal.SIGKILL, *range(WORLD)),
    "store killed": lambda scene: inflict.kill_store(scene.run),
    "agent killed": lambda scene: scene.agent(leader=False).kill(),
    "leader killed": lambda scene: scene.agent(leader=True).kill(),
}
"""What can strike while the run recovers."""
_NOTICED_S = 20.0
"""Until a run has noticed what is silent: an agent after 8 s."""


RANKS = ("worker killed", "rank 0 killed")
"""The kinds that torchft's published campaigns consist of."""


def strike(scene: Scene, kinds: Collection[str]) -> dict[str, Any] | None:
    """One random fault of these kinds; None where it finds nothing to strike: a process that does not live just then cannot die."""
    kind = _drawn(scene, kinds)
    step, began = scene.run.state().get("step") or 0, time.time()
    try:
        more = FAULTS[kind][1](scene) or {}
    except NotNow:
        return None
    except (OSError, IndexError, KeyError, ValueError, AssertionError, psutil.Error) as error:
        print(f"  {kind}: {type(error).__name__} {str(error)[:120]}", flush=True)
        return None
    return {"kind": kind, "t": round(began, 3), "step": step, "load": round(os.getloadavg()[0], 1), **more}


def _drawn(scene: Scene, kinds: Collection[str]) -> str:
    """One of these kinds, by weight."""
    return scene.chance.choice([k for k, (weight, _) in FAULTS.items() if k in kinds for _ in range(weight)])


def injector(place: Path) -> Path:
    """listings.c, compiled."""
    out = place / "listings.so"
    source = Path(__file__).with_name("listings.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(out), str(source), "-ldl"], check=True)
    return out
