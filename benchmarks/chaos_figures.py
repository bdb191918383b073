"""What `benchmarks/chaos.py` makes of its runs: one line a run, one table of all."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaos_faults import CHANGES, NO_ROUND, WORLD
from harness import Run

from launcher.report.model.history import read_history
from launcher.report.model.ledger import ledger


def line_of(run: Run, faults: list[dict[str, Any]], same: Callable[[Run], bool], step_s: float) -> dict[str, Any]:
    """The line of one run that has ended, or of one that has not (its outcome is then "stuck"); ``same``: it ended as it should."""
    history = read_history(run.paths)
    outcome = run.outcome() or {"state": "stuck", "reason": "it did not end"}
    events = [e.raw for e in history.events if e.type != "submitted"]
    firsts = [e["t"] for e in events if e["type"] == "first_step"]
    end = next((e["t"] for e in reversed(events) if e["type"] == "ended"), events[-1]["t"])
    for number, fault in enumerate(faults):
        until = faults[number + 1]["t"] if number + 1 < len(faults) else end
        fault["recovery_s"] = _recovery(events, fault, until)
    book = ledger(history, end)
    steps = int(outcome.get("step") or 0)
    return {
        "run": run.paths.id,
        "root": str(run.paths.root),
        "state": outcome["state"],
        "reason": outcome["reason"],
        "same": outcome["state"] == "completed" and same(run),
        "steps": steps,
        "wall_s": round(end - firsts[0], 1) if firsts else 0.0,
        "steps_s": round(steps * step_s, 1),
        "seconds": {k: round(v, 1) for k, v in book.seconds.items()},
        "before_s": round(firsts[0] - history.events[0].t, 1) if firsts else 0.0,
        "lost_steps": _lost_steps(events, faults),
        "attempts": len(run.told("attempt_started")),
        "rounds": len(run.told("round_started")),
        "sizes": sizes(run),
        "faults": faults,
    }


def _recovery(events: list[dict[str, Any]], fault: dict[str, Any], until: float) -> float | None:
    """Seconds from the fault to the first optimizer step after what it ended; None when it ended nothing."""
    change = next((e["t"] for e in events if e["t"] >= fault["t"] and e["type"] in CHANGES), None)
    if change is None or (fault["kind"] in NO_ROUND and change > until):
        return None
    again = next((e["t"] for e in events if e["t"] >= change and e["type"] == "first_step"), None)
    return None if again is None else round(again - fault["t"], 3)


def _lost_steps(events: list[dict[str, Any]], faults: list[dict[str, Any]]) -> int:
    """Steps done that a later round did again: the furthest one heard of in each round, less where the next began."""
    heard = [(e["t"], e["step"]) for e in events if e["type"] != "round_started" and isinstance(e.get("step"), int)]
    heard += [(f["t"], f["step"]) for f in faults]
    starts = [(e["t"], e.get("resume_step") or 0) for e in events if e["type"] == "round_started"]
    lost = 0
    for (t0, began), (t1, resumed) in pairwise(starts):
        lost += max(0, max((s for t, s in heard if t0 <= t < t1), default=began) - resumed)
    return lost


def sizes(run: Run) -> list[int]:
    """How many ranks its rounds had."""
    return sorted({len(e["ranks"]) for e in run.told("round_started")})


def uses(seen: Path) -> Counter[tuple[int, int]]:
    """How often each sample was used in each epoch, within committed steps: of a step that was done again, the latest round's count."""
    steps: defaultdict[int, defaultdict[tuple[int, int], list[tuple[int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for file in seen.parent.glob(f"{seen.name}.*"):
        for line in file.read_text().splitlines():
            epoch, row, step, attempt, number = map(int, line.split())
            steps[step][attempt, number].append((epoch, row))
    return Counter(sample for rounds in steps.values() for sample in rounds[max(rounds)])


def revived(lines: list[dict[str, Any]]) -> list[str]:
    """Runs whose history goes on after their end."""
    out = []
    for line in lines:
        root = Path(line["root"])
        if line["state"] != "stuck" and root.exists() and len(Run(root).told("attempt_started")) != line["attempts"]:
            out.append(line["run"])
    return out


def table(lines: list[dict[str, Any]]) -> int:
    """Print the figures of all runs so far; 1 when any end is not as it must be."""
    faults = [f for line in lines for f in line["faults"]]
    wall = sum(x["wall_s"] for x in lines)
    print(f"\n{len(faults)} faults in {len(lines)} runs, {wall:.0f} s, one per {wall / max(1, len(faults)):.1f} s")
    _by_kind(lines)
    times = sorted(f["recovery_s"] for f in faults if f["recovery_s"] is not None)
    if times:
        shown = ", ".join(f"p{100 * share:.0f} {_quantile(times, share):.2f} s" for share in (0.5, 0.95, 0.99))
        print(f"recovery: {shown}")
    steps = sum(x["steps"] for x in lines)
    print(f"steps: {steps} kept, {sum(x['lost_steps'] for x in lines)} done again; rounds {sum(x['rounds'] for x in lines)},"
          f" attempts {sum(x['attempts'] for x in lines)}")  # fmt: skip
    _efficiency(lines, wall)
    loads = [f["load"] for f in faults]
    if loads:
        print(f"load: median {statistics.median(loads):.1f}, {min(loads):.1f} to {max(loads):.1f}")
    return _ends(lines)


def _by_kind(lines: list[dict[str, Any]]) -> None:
    rows = [(_row(f["kind"], line["shape"]), f["recovery_s"]) for line in lines for f in line["faults"]]
    for row, count in Counter(row for row, _ in rows).most_common():
        times = sorted(time_s for its, time_s in rows if its == row and time_s is not None)
        words = "no recovery needed"
        if times:
            words = f"p50 {_quantile(times, 0.5):6.2f} s, p95 {_quantile(times, 0.95):6.2f} s, max {times[-1]:6.2f} s"
        print(f"  {row:35} {count:4} {100 * count / len(rows):5.1f} %   {words}")


def _row(kind: str, shape: dict[str, Any]) -> str:
    """What the loss of a host costs depends on what the run has instead."""
    if "host" not in kind or not shape:
        return kind
    return f"{kind}, {'of a range' if 'nodes' in shape else 'with a spare'}"


def _efficiency(lines: list[dict[str, Any]], wall: float) -> None:
    """Two readings: the run's own ledger, and the least time its steps can take; both over all time from the first step."""
    seconds: Counter[str] = Counter()
    for line in lines:
        seconds.update(line["seconds"])
        # What came before the first step is not the faults' doing.
        first = line["before_s"]
        seconds["before"] += first
    useful = seconds["useful"]
    print(f"efficiency: {100 * useful / max(wall, 0.1):.1f} % (useful by the ledger), "
          f"{100 * sum(x['steps_s'] for x in lines) / max(wall, 0.1):.1f} % (steps at 0.1 s)")  # fmt: skip
    print("  " + ", ".join(f"{k} {v:.0f} s" for k, v in seconds.most_common() if v >= 0.5))


def _ends(lines: list[dict[str, Any]]) -> int:
    """Print how the runs ended, and what was done for them by hand."""
    bad = [x for x in lines if not x["same"]]
    others = [x for x in lines if x.get("sizes", [WORLD]) != [WORLD]]
    print(
        f"compared bit for bit: {len(lines) - len(others)}; by samples, as they had other numbers of ranks: {len(others)}"
    )
    left = [x for x in lines if x["left"]]
    again = revived(lines)
    print(f"mismatches or other ends: {len(bad)} of {len(lines)}")
    for x in bad:
        print(f"  {x['run']}: {x['state']}, {x['reason']}")
    print(
        f"runs that left something behind: {len(left)}; runs that came back after their end: {len(again)}", flush=True
    )
    for x in left:
        print(f"  {x['run']}: {x['left']}")
    released = [x["released"] for x in lines if x.get("released")]
    print(f"released by hand (SLURM had put the job on hold): {len(released)} runs, {sum(released)} times")
    by_hand = [x for x in lines if x.get("resubmitted_t")]
    lost = [x for x in by_hand if any(not _slurmctld_struck(x["faults"], t) for t in x["resubmitted_t"])]
    print(
        f"resubmitted by hand (SLURM had lost the job): {len(by_hand)} runs; without a fault of slurmctld before: {len(lost)}",
        flush=True,
    )
    for x in lost:
        print(f"  {x['run']}")
    return int(bool(bad or left or again or lost))


def _slurmctld_struck(faults: list[dict[str, Any]], t: float) -> bool:
    return any(f["kind"].startswith("slurmctld") and f["t"] < t for f in faults)


def _quantile(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(len(times) * share))]
