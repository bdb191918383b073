"""A long random campaign of faults against real runs on the four-host cluster; every end is compared bit for bit.

    python benchmarks/chaos.py --faults 270 --every 15 --seed 1 --out chaos.jsonl

Each fault is one line of --out, so a broken campaign goes on where it stopped. Faults strike at random moments
(exponential intervals of the given mean), so they also hit starts, saves and requeues. Prints faults by kind, steps lost,
recovery times (p50, p99), efficiency (time the steps would have taken undisturbed over time taken, queue included), and
every mismatch. One machine plays all hosts and the model is small: say so with any figure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import inflict
from cluster import Cluster
from harness import Run, digest, submit

WORLD = 3
STEP_S = 0.1


def _heal_after(cluster: Cluster, host: str, seconds: float) -> None:
    inflict.heal_later(cluster, seconds, host).join()


def _damage(run: Run) -> None:
    for path in inflict.newest_checkpoint(run).glob("*.pt"):
        inflict.flip_byte(path)
    inflict.signal_rank(run, 1, signal.SIGKILL)


def _host(cluster: Cluster, run: Run, chance: random.Random) -> None:
    host = chance.choice(run.state()["nodes"][1:])
    cluster.kill(host)
    _heal_after(cluster, host, 8)


def _preempt(cluster: Cluster, run: Run, _: random.Random) -> None:
    job = inflict.preempt(cluster, run.state()["nodes"], 1)
    cluster.wait_job(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", limit_s=300)


Fault = Callable[[Cluster, Run, random.Random], None]

FAULTS: dict[str, tuple[int, Fault]] = {
    "worker killed": (4, lambda c, r, x: inflict.signal_rank(r, x.randrange(WORLD), signal.SIGKILL)),
    "segfault": (2, lambda c, r, x: inflict.signal_rank(r, x.randrange(WORLD), signal.SIGSEGV)),
    "worker frozen": (2, lambda c, r, x: inflict.signal_rank(r, x.randrange(WORLD), signal.SIGSTOP)),
    "os._exit": (2, lambda c, r, x: (r.paths.root / f"fault-exit-{x.randrange(WORLD)}").touch()),
    "store killed": (2, lambda c, r, x: inflict.kill_store(r)),
    "agent killed": (1, lambda c, r, x: inflict.kill_agent(r, 1 + x.randrange(WORLD - 1))),
    "leader killed": (1, lambda c, r, x: inflict.kill_agent(r, 0)),
    "preempted": (2, _preempt),
    "slurmctld restarted": (1, lambda c, r, x: c.restart("slurmctld")),
    "slurmd restarted": (1, lambda c, r, x: c.restart(x.choice(r.state()["nodes"]))),
    "checkpoint damaged": (1, lambda c, r, x: _damage(r)),
    "host killed": (1, _host),
}


def strike(cluster: Cluster, run: Run, chance: random.Random) -> dict[str, Any] | None:
    """One random fault; None when the moment did not offer what it needs (no such process just then)."""
    kinds = [k for k, (weight, _) in FAULTS.items() for _ in range(weight)]
    kind = chance.choice(kinds)
    step = run.state().get("step") or 0
    began = time.time()
    try:
        FAULTS[kind][1](cluster, run, chance)
    except (AssertionError, OSError, IndexError, KeyError, ValueError) as error:
        print(f"  {kind}: not possible just now ({str(error).splitlines()[0][:80]})", flush=True)
        return None
    return {"kind": kind, "t": began, "step": step}


def campaign(cluster: Cluster, place: Path, args: argparse.Namespace, number: int, left: int) -> dict[str, Any]:
    """One run under fire: its faults, its end, and whether it equals the undisturbed one."""
    chance = random.Random(args.seed * 1000 + number)
    restart = {"hang_floor_s": 5.0, "max_restarts": 1000}
    job = {
        "params": {"epochs": args.epochs, "step_s": STEP_S},
        "restart": restart,
        "checkpoint": {"interval_steps": 10},
    }
    run = submit(place / f"run-{number}-{os.getpid()}", cluster.env, WORLD, **job)
    run.wait("the first step", lambda: run.told("first_step"))
    faults: list[dict[str, Any]] = []
    while run.outcome() is None and len(faults) < left:
        pause_until = time.monotonic() + min(chance.expovariate(1 / args.every), 4 * args.every)
        while time.monotonic() < pause_until and run.outcome() is None:
            time.sleep(0.1)
        if run.outcome() is None and (fault := strike(cluster, run, chance)):
            faults.append(fault)
            print(f"  run {number}, step {fault['step']}: {fault['kind']}", flush=True)
    outcome = run.wait("the end", run.outcome, 1800)
    cluster.heal()
    return judge(run, outcome, faults, place, args)


def judge(
    run: Run, outcome: dict[str, Any], faults: list[dict[str, Any]], place: Path, args: argparse.Namespace
) -> dict[str, Any]:
    """The line of one run."""
    history = run.history()
    firsts = [e for e in history if e["type"] == "first_step"]
    for fault in faults:
        after = [e["t"] for e in firsts if e["t"] > fault["t"]]
        again = [e for e in history if e["type"] == "round_started" and e["t"] > fault["t"]]
        fault["recovery_s"] = round(after[0] - fault["t"], 3) if after else None
        fault["lost_steps"] = max(0, fault["step"] - (again[0].get("resume_step") or 0)) if again else 0
    wall = history[-1]["t"] - firsts[0]["t"]
    steps = int(outcome.get("step") or 0)
    same = outcome["state"] == "completed" and digest(run) == reference(place, args)
    return {
        "run": run.paths.id, "state": outcome["state"], "reason": outcome["reason"], "same": same, "steps": steps,
        "wall_s": round(wall, 1), "ideal_s": round(steps * STEP_S, 1), "faults": faults,
    }  # fmt: skip


_REFERENCE: dict[int, str] = {}


def reference(place: Path, args: argparse.Namespace) -> str:
    """The digest of the undisturbed end."""
    if args.epochs not in _REFERENCE:
        job = {"params": {"epochs": args.epochs, "step_s": 0.0}, "checkpoint": {"interval_steps": 10}}
        run = submit(place / f"reference-{os.getpid()}", {}, WORLD, backend="local", **job)
        assert run.wait("the reference", run.outcome, 900)["state"] == "completed"
        _REFERENCE[args.epochs] = digest(run)
    return _REFERENCE[args.epochs]


def table(lines: list[dict[str, Any]]) -> None:
    """The figures of all runs so far."""
    faults = [f for line in lines for f in line["faults"]]
    recoveries = sorted(f["recovery_s"] for f in faults if f["recovery_s"] is not None)
    wall, ideal = sum(x["wall_s"] for x in lines), sum(x["ideal_s"] for x in lines)
    print(f"\n{len(faults)} faults in {len(lines)} runs, one per {wall / max(1, len(faults)):.1f} s")
    for kind, count in Counter(f["kind"] for f in faults).most_common():
        times = [f["recovery_s"] for f in faults if f["kind"] == kind and f["recovery_s"] is not None]
        median = f"{statistics.median(times):6.2f} s" if times else "      -"
        print(f"  {kind:22} {count:4}   recovery, median {median}")
    if recoveries:
        p99 = recoveries[min(len(recoveries) - 1, int(len(recoveries) * 0.99))]
        print(f"recovery p50 {statistics.median(recoveries):.2f} s, p99 {p99:.2f} s")
    print(f"steps lost: {sum(f['lost_steps'] for f in faults)}; efficiency {100 * ideal / max(wall, 0.1):.1f} %")
    bad = [x for x in lines if not x["same"]]
    print(
        f"mismatches: {len(bad)} of {len(lines)}" + "".join(f"\n  {x['run']}: {x['state']}, {x['reason']}" for x in bad)
    )


def main() -> int:
    """Run the campaign until --faults have struck; the exit code is 1 when any end differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--every", type=float, default=15.0, help="mean seconds between faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=60, help="length of one run: 20 steps an epoch")
    parser.add_argument("--out", type=Path, default=Path("chaos.jsonl"))
    parser.add_argument("--cluster", type=Path, default=Path("/var/lib/launcher-cluster-chaos"))
    args = parser.parse_args()
    lines = [json.loads(x) for x in args.out.read_text().splitlines()] if args.out.exists() else []
    cluster = Cluster(args.cluster)
    cluster.verb("up")
    cluster.set(SlurmdTimeout=10)
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        while (done := sum(len(x["faults"]) for x in lines)) < args.faults:
            lines.append(campaign(cluster, place, args, len(lines), args.faults - done))
            with args.out.open("a") as f:
                f.write(json.dumps(lines[-1]) + "\n")
            table(lines)
    finally:
        cluster.cancel_all()
        cluster.verb("down")
    table(lines)
    return int(any(not x["same"] for x in lines))


if __name__ == "__main__":
    sys.exit(main())
