"""A long random campaign of faults against real runs on a four-host cluster; every end is compared bit for bit.

    python benchmarks/chaos.py --faults 270 --every 15 --seed 1 --dir /tmp/chaos-15
    python benchmarks/chaos.py --dir /tmp/chaos-15 --table      # only print what is known so far

Faults strike at random moments (exponential intervals of the given mean, by the clock and whatever is going on), so they
hit starts, saves, recoveries and requeues as well; one that finds nothing to strike (its process does not live just then)
is left out, so that the true rate is a little lower. Each run is one line of DIR/runs.jsonl; a campaign that was
interrupted goes on with the next run. Prints faults by kind, steps lost, recovery times (p50, p99), efficiency, every
mismatch, run without an end and resurrection, and what was done by hand. A range of nodes whose size changed is compared by
its samples instead of its bits. One machine plays all hosts and the model is small: say so with any figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from chaos_faults import FAULTS, RANKS, REFUSE_VARIABLE, WORLD, Scene, injector, strike
from chaos_figures import line_of, sizes, table, uses
from cluster import Cluster, own_directory
from harness import Run, digest, submit, verb

STEP_S = 0.1
"""What a step sleeps: the least time it can take."""
SITES: tuple[dict[str, Any], ...] = (
    {"GraceTime": 20, "PreemptMode": "REQUEUE", "send_user_signal": "no"},
    {"GraceTime": 0, "PreemptMode": "REQUEUE", "send_user_signal": "no"},
    {"GraceTime": 20, "PreemptMode": "REQUEUE", "send_user_signal": "yes"},
    {"GraceTime": 20, "PreemptMode": "CANCEL", "send_user_signal": "no"},
)
"""Each run lives on one of these sites."""
SHAPES: tuple[dict[str, Any], ...] = ({}, {}, {"spare_nodes": 1}, {"nodes": "2-3", "replace": True})
"""And asks for these nodes, of which there are four."""
ROWS, SAMPLES = 180, 9
"""Twenty steps of so many samples, as the other runs have steps in an epoch."""
STUCK_S, GONE_S, LOOK_S = 900.0, 45.0, 5.0
"""A run whose last fault is so long ago, or of which SLURM knows nothing for so long, will not end; looked at so often."""


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
                self.scene.cluster.release(answer.stdout.split()[0])
        if now - self.known > GONE_S and "launcher resubmit" in verb(self.scene.cluster, self.scene.run, "why"):
            # slurmctld forgot a requeue, and was away for longer than KillWait.
            verb(self.scene.cluster, self.scene.run, "resubmit")
            self.scene.resubmitted_t.append(round(time.time(), 3))
            self.known = now
        if now - self.known > GONE_S:
            return "lost: SLURM has no job of it, and it has no outcome"
        return "stuck" if now - self.struck > STUCK_S else None


def under_fire(scene: Scene, kinds: Collection[str], every: float, most: int) -> list[dict[str, Any]]:
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
        if (fault := strike(scene, kinds)) is not None:
            faults.append(fault)
            patience.struck = time.monotonic()
            print(f"  {time.strftime('%H:%M:%S')} {len(faults):3} {fault}", flush=True)
    return faults


def campaign(cluster: Cluster, place: Path, args: argparse.Namespace, number: int, left: int) -> dict[str, Any]:
    """One run under fire, to its end."""
    chance = random.Random(args.seed * 1000 + number)
    site, shape = chance.choice(SITES), chance.choice(SHAPES)
    cluster.set(**site)
    folder = place / f"run-{number}-{int(time.time())}"
    work: dict[str, Any] = {"params": {"epochs": args.epochs, "step_s": STEP_S}}
    if "nodes" in shape:
        work = {"task": "ledger:Ledger", "params": {**work["params"], "rows": ROWS, "seen": str(folder / "seen")}}
    job = {
        **work,
        "resources": {**shape, "timeout_min": 60},
        "distributed": {"init_timeout_min": 0.75},
        "restart": {"hang_floor_s": 5.0, "max_restarts": 1000},
        "checkpoint": {"interval_steps": 10},
    }
    (refuse := folder / "refuse").mkdir(parents=True)
    lines = [f"export {REFUSE_VARIABLE}={refuse}", f"export LD_PRELOAD={injector(folder)}"]
    run = submit(folder, cluster.env, WORLD, **job, environment={"setup": lines})
    (disk := place / "disk" / folder.name).mkdir(parents=True)
    run.paths.checkpoints.rmdir()  # the leader needs seconds before it looks at it
    run.paths.checkpoints.symlink_to(disk)
    scene = Scene(cluster, run, chance, place / "disk", refuse)
    print(f"run {number}: {run.paths.id}, {site}, {shape}", flush=True)
    run.wait("the first step", lambda: run.told("first_step") or run.outcome())
    kinds = [kind for kind in (RANKS if args.ranks else FAULTS) if re.search(args.kinds, kind)]
    faults = under_fire(scene, kinds, args.every, left)
    scene.over.set()
    for thread in scene.threads:
        thread.join(150)
    line = line_of(run, faults, lambda run: ends_the_same(run, work, place), STEP_S)
    line |= {
        "site": site,
        "shape": shape,
        "troubles": scene.troubles,
        "released": scene.released,
        "resubmitted_t": scene.resubmitted_t,
        "left": _left(cluster, run),
    }
    return line


def _left(cluster: Cluster, run: Run) -> list[str]:
    """What is left of a run that has ended; nothing, if all is well."""
    try:
        run.wait_no_process()
        queue = ["squeue", "-h", "-o", "%j"]
        # A slurmctld that has forgotten where the job ran misses it after 120 s, and starts it once more: it ends at once.
        cluster.wait(lambda: run.paths.id not in cluster.run(queue).stdout, "the job's end", 240)
    except AssertionError as error:
        words = [str(error).splitlines()[0]]
        for process in run.processes():
            with contextlib.suppress(psutil.Error):
                words.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())[:150]}")
        return words
    return []


def ends_the_same(run: Run, work: dict[str, Any], place: Path) -> bool:
    """Whether the run ended as one without faults: bit for bit.

    Where its number of ranks changed, its bits did too: then as many steps, and every sample of every epoch exactly once.
    """
    params = work["params"]
    if "seen" not in params or sizes(run) == [WORLD]:
        return digest(run) == reference(place, work)
    wanted = Counter((epoch, row) for epoch in range(params["epochs"]) for row in range(ROWS))
    steps = params["epochs"] * ROWS // SAMPLES
    return uses(Path(params["seen"])) == wanted and (run.outcome() or {}).get("step") == steps


_REFERENCE: dict[str, str] = {}


def reference(place: Path, work: dict[str, Any]) -> str:
    """The digest of the undisturbed end."""
    if (task := work.get("task", "")) not in _REFERENCE:
        params = {key: value for key, value in work["params"].items() if key != "seen"}
        job = {**work, "params": {**params, "step_s": 0.0}, "checkpoint": {"interval_steps": 10}}
        run = submit(place / f"reference-{int(time.time())}", {}, WORLD, backend="local", **job)
        assert run.wait("the reference", run.outcome, 900)["state"] == "completed"
        _REFERENCE[task] = digest(run)
    return _REFERENCE[task]


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
    parser.add_argument("--ranks", action="store_true", help="only kills of ranks, as torchft's campaigns")
    parser.add_argument("--kinds", default="", help="regular expression: only the kinds of faults in which it is found")
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
            cluster.release("")  # hosts only: some may be drained
            cluster.cancel_all()
    return table(lines)


if __name__ == "__main__":
    sys.exit(main())
