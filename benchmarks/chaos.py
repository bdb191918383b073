"""A long random campaign of faults against real runs on a four-host cluster; every end is compared bit for bit.

    python benchmarks/chaos.py --faults 270 --every 15 --seed 1 --dir /tmp/chaos-15
    python benchmarks/chaos.py --dir /tmp/chaos-15 --table      # only print what is known so far

Faults strike at random moments (exponential intervals of the given mean, by the clock and whatever is going on), so they
hit starts, saves, recoveries and requeues as well; one that finds nothing to strike (its process does not live just then)
is left out, so that the true rate is a little lower. Each run is one line of DIR/runs.jsonl; a campaign that was
interrupted goes on with the next run. Prints faults by kind, steps lost, recovery times (p50, p99), efficiency, and every
mismatch, run without an end and resurrection. One machine plays all hosts and the model is small: say so with any figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import inflict
import psutil
from chaos_figures import line_of, table
from cluster import Cluster, own_directory
from harness import Run, digest, submit

WORLD = 3
STEP_S = 0.1
"""What a step sleeps: the least time it can take."""
SITES: tuple[dict[str, Any], ...] = (
    {"GraceTime": 20, "PreemptMode": "REQUEUE", "send_user_signal": "no"},
    {"GraceTime": 0, "PreemptMode": "REQUEUE", "send_user_signal": "no"},
    {"GraceTime": 20, "PreemptMode": "REQUEUE", "send_user_signal": "yes"},
    {"GraceTime": 20, "PreemptMode": "CANCEL", "send_user_signal": "no"},
)
"""Each run lives on one of these sites."""
STUCK_S, GONE_S, LOOK_S = 900.0, 45.0, 5.0
"""A run whose last fault is so long ago, or of which SLURM knows nothing for so long, will not end; looked at so often."""


class NotNow(Exception):  # noqa: N818 - nothing is wrong
    """The moment does not offer what this fault needs."""


@dataclass
class Scene:
    """A run under fire and what surrounds it."""

    cluster: Cluster
    run: Run
    chance: random.Random
    disk: Path
    over: threading.Event = field(default_factory=threading.Event)
    """Set at the run's end: what was to be done later is done now."""
    threads: list[threading.Thread] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What went wrong with the faults themselves."""
    released: int = 0
    """How often SLURM had put the job on hold, and it was released as ``launcher why`` says."""

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
        found = [p for node, p in inflict.agents(self.run).items() if (node == 0) == leader]
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


def _slurmd(scene: Scene) -> None:
    healthy = [h for h in scene.cluster.hosts if h not in scene.cluster.broken]
    scene.cluster.restart(scene.chance.choice(healthy))


def _disk_full(scene: Scene) -> None:
    """No room for checkpoints, for three seconds."""
    if (filler := scene.disk / "filler").exists():
        raise NotNow
    inflict.fill(filler)
    scene.later(3, filler.unlink)


FAULTS: dict[str, tuple[int, Callable[[Scene], None]]] = {
    "worker killed": (5, _signal(signal.SIGKILL, *range(1, WORLD))),
    "rank 0 killed": (3, _signal(signal.SIGKILL, 0)),
    "segfault": (3, _signal(signal.SIGSEGV, *range(WORLD))),
    "os._exit": (3, _order("exit")),
    "exception": (3, _order("exception")),
    "worker frozen": (2, _signal(signal.SIGSTOP, *range(WORLD))),
    "store killed": (3, _store),
    "agent killed": (2, lambda scene: scene.agent(leader=False).kill()),
    "leader killed": (2, lambda scene: scene.agent(leader=True).kill()),
    "preempted": (3, _preempt),
    "slurmctld restarted": (2, lambda scene: scene.cluster.restart("slurmctld")),
    "slurmd restarted": (2, _slurmd),
    "flipped byte": (2, _damage(inflict.flip_byte)),
    "truncated file": (1, _damage(inflict.truncate)),
    "disk full": (2, _disk_full),
    "host killed": (1, _host(Cluster.kill)),
    "host cut off": (1, _host(Cluster.cut)),
}
"""Kinds with their weights."""


def strike(scene: Scene) -> dict[str, Any] | None:
    """One random fault; None where it finds nothing to strike: a process that does not live just then cannot die."""
    kind = scene.chance.choice([k for k, (weight, _) in FAULTS.items() for _ in range(weight)])
    step, began = scene.run.state().get("step") or 0, time.time()
    try:
        FAULTS[kind][1](scene)
    except NotNow:
        return None
    except (OSError, IndexError, KeyError, ValueError, AssertionError, psutil.Error) as error:
        print(f"  {kind}: {type(error).__name__} {str(error)[:120]}", flush=True)
        return None
    return {"kind": kind, "t": round(began, 3), "step": step, "load": round(os.getloadavg()[0], 1)}


class Patience:
    """Sees when a run will not end any more."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.struck = self.known = self.looked = time.monotonic()

    def over(self) -> str | None:
        """Why there is no point in waiting any longer."""
        now = time.monotonic()
        if now - self.looked > LOOK_S:
            self.looked = now
            ask = ["squeue", "-h", "-n", self.scene.run.paths.id, "-o", "%i %r"]
            answer = self.scene.cluster.run(ask, check=False)
            if answer.returncode or answer.stdout.strip():
                self.known = now
            if "held" in answer.stdout:
                self.scene.released += 1
                # A slurmctld killed just after it started the job forgot that, and drained the host ("Duplicate jobid").
                hosts = ",".join(self.scene.cluster.hosts)
                self.scene.cluster.run(["scontrol", "update", f"NodeName={hosts}", "State=RESUME"], check=False)
                self.scene.cluster.run(["scontrol", "release", answer.stdout.split()[0]], check=False)
        if now - self.known > GONE_S:
            return "lost: SLURM has no job of it, and it has no outcome"
        return "stuck" if now - self.struck > STUCK_S else None


def under_fire(scene: Scene, every: float, most: int) -> list[dict[str, Any]]:
    """Strike until the run has ended or ``most`` faults have struck; returns the faults, oldest first."""
    faults: list[dict[str, Any]] = []
    patience = Patience(scene)
    due = time.monotonic() + scene.chance.expovariate(1 / every)
    while scene.run.outcome() is None:
        if why := patience.over():
            scene.troubles.append(why)
            print(f"  {why}", flush=True)
            break
        if time.monotonic() < due or len(faults) >= most:
            time.sleep(0.05)
            continue
        due += scene.chance.expovariate(1 / every)
        if (fault := strike(scene)) is not None:
            faults.append(fault)
            patience.struck = time.monotonic()
            print(f"  {time.strftime('%H:%M:%S')} {len(faults):3} {fault}", flush=True)
    return faults


def campaign(cluster: Cluster, place: Path, args: argparse.Namespace, number: int, left: int) -> dict[str, Any]:
    """One run under fire, to its end."""
    chance = random.Random(args.seed * 1000 + number)
    site, spares = chance.choice(SITES), chance.choice((0, 0, 1))
    cluster.set(**site)
    job = {
        "params": {"epochs": args.epochs, "step_s": STEP_S},
        "resources": {"spare_nodes": spares, "timeout_min": 60},
        "distributed": {"init_timeout_min": 0.75},
        "restart": {"hang_floor_s": 5.0, "max_restarts": 1000},
        "checkpoint": {"interval_steps": 10},
    }
    folder = place / f"run-{number}-{int(time.time())}"
    run = submit(folder, cluster.env, WORLD, **job)
    (disk := place / "disk" / folder.name).mkdir(parents=True)
    run.paths.checkpoints.rmdir()  # the leader needs seconds before it looks at it
    run.paths.checkpoints.symlink_to(disk)
    scene = Scene(cluster, run, chance, place / "disk")
    print(f"run {number}: {run.paths.id}, {site}, {spares} spare", flush=True)
    run.wait("the first step", lambda: run.told("first_step") or run.outcome())
    faults = under_fire(scene, args.every, left)
    scene.over.set()
    for thread in scene.threads:
        thread.join(150)
    line = line_of(run, faults, reference(place, args) if run.outcome() else "", STEP_S)
    line |= {
        "site": site,
        "spares": spares,
        "troubles": scene.troubles,
        "released": scene.released,
        "left": _left(cluster, run),
    }
    return line


def _left(cluster: Cluster, run: Run) -> list[str]:
    """What is left of a run that has ended; nothing, if all is well."""
    try:
        run.wait_no_process()
        cluster.wait(lambda: run.paths.id not in cluster.run(["squeue", "-h", "-o", "%j"]).stdout, "the job's end")
    except AssertionError as error:
        words = [str(error).splitlines()[0]]
        for process in run.processes():
            with contextlib.suppress(psutil.Error):
                words.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())[:150]}")
        return words
    return []


_REFERENCE: dict[int, str] = {}


def reference(place: Path, args: argparse.Namespace) -> str:
    """The digest of the undisturbed end."""
    if args.epochs not in _REFERENCE:
        job = {"params": {"epochs": args.epochs, "step_s": 0.0}, "checkpoint": {"interval_steps": 10}}
        run = submit(place / f"reference-{int(time.time())}", {}, WORLD, backend="local", **job)
        assert run.wait("the reference", run.outcome, 900)["state"] == "completed"
        _REFERENCE[args.epochs] = digest(run)
    return _REFERENCE[args.epochs]


@contextlib.contextmanager
def surroundings(args: argparse.Namespace) -> Iterator[Cluster]:
    """A cluster of its own, and a small disk for checkpoints that its hosts see (they do not see what is mounted later)."""
    with own_directory() as directory:
        yield from _surroundings(Cluster(directory), args.dir / "disk")


def _surroundings(cluster: Cluster, disk: Path) -> Iterator[Cluster]:
    cluster.verb("down")
    disk.mkdir(parents=True, exist_ok=True)
    if not disk.is_mount():
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "tmpfs", str(disk)], check=True)
    try:
        cluster.verb("up")
        cluster.set(SlurmdTimeout=10)
        yield cluster
    finally:
        cluster.verb("down")
        subprocess.run(["umount", "-l", str(disk)], check=True)


def main() -> int:
    """Run the campaign until --faults have struck; the exit code is 1 when any end is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--every", type=float, default=15.0, help="mean seconds between faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=50, help="length of one run: 20 steps of 0.1 s an epoch")
    parser.add_argument("--dir", type=Path, default=Path("chaos"), help="results and run directories")
    parser.add_argument("--table", action="store_true", help="print the results so far and leave")
    args = parser.parse_args()
    args.dir = args.dir.absolute()
    args.dir.mkdir(parents=True, exist_ok=True)
    out = args.dir / "runs.jsonl"
    lines = [json.loads(x) for x in out.read_text().splitlines()] if out.exists() else []
    if args.table:
        return table(lines)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with surroundings(args) as cluster:
        while (done := sum(len(x["faults"]) for x in lines)) < args.faults:
            lines.append(campaign(cluster, args.dir, args, len(lines), args.faults - done))
            with out.open("a") as f:
                f.write(json.dumps(lines[-1]) + "\n")
            table(lines)
            cluster.cancel_all()
    return table(lines)


if __name__ == "__main__":
    sys.exit(main())
