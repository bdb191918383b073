"""Planted hangs, and what is wrong or slow while a run lives, on the real cluster: `why` and `status` name them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster import HOSTS, Cluster
from harness import Run
from planting import AT_ONCE, Told, Verbs, absent, chosen_of, judge, misses, plant, planted


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_hangs_are_named(cluster: Cluster, cases: dict[str, Any], tmp_path: Path) -> None:
    """The same, a run each: a hang makes the rest of its run more patient."""
    chosen = chosen_of(name for name, case in cases.items() if case.late)
    told: dict[str, Told] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for found in pool.map(
            lambda name: planted(cluster, tmp_path / str(chosen.index(name)), "function", [name]), chosen
        ):
            told |= found
    judge(cases, told)


def wrong_in_life(case: Any, verbs: Verbs, run: Run) -> list[str]:
    """What ``why`` and ``status`` lack or have too much of while the run lives; a healthy case is looked at for as long."""
    expects = bool(case.says or case.must)
    deadline = time.monotonic() + case.soon_s
    while True:
        why, text = verbs.why(run)
        status = verbs("status", run.paths.id)
        found = [f"why: {m}" for m in misses(case, why, 0.0, run.state().get("nodes") or HOSTS)]
        found += [f"status lacks {w!r}" for w in absent(case.must, status.lower())]
        found += [f"status has {w!r}" for w in case.never if w.lower() in status.lower()]
        over = time.monotonic() > deadline
        if over or (expects and not found) or (not expects and found):
            return [f"{'; '.join(found)}\n{text}\n{status}"] if found else []
        time.sleep(1)


def live(cluster: Cluster, directory: Path, case: Any) -> list[str]:
    """Run a live case and look at it."""
    extra = {"checkpoint": {"enabled": True, "interval_steps": 200}, "restart": {"hang_floor_s": 60.0}}
    run = plant(cluster, directory, case.loop, [case.name], case.world, **extra)
    try:
        run.wait("the first step", lambda: run.told("first_step") or run.outcome() or case.loop == "script")
        return wrong_in_life(case, Verbs(cluster, run.paths.root.parent), run)
    finally:
        cluster.run(["scancel", run.job_id], check=False)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_what_is_wrong_or_slow_is_told_while_a_run_lives(
    cluster: Cluster, cases: dict[str, Any], tmp_path: Path
) -> None:
    """NaN, slow ranks, hosts, loaders and saves are named by ``why`` and ``status``; nothing is said of healthy runs."""
    chosen = chosen_of(name for name, case in cases.items() if case.live)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda n: live(cluster, tmp_path / str(chosen.index(n)), cases[n]), chosen))
    wrong = {name: lines for name, lines in zip(chosen, found, strict=True) if lines}
    shown = "\n\n".join(f"{name}: {lines[0]}" for name, lines in wrong.items())
    print(shown, f"{len(chosen) - len(wrong)} of {len(chosen)} right", sep="\n")
    assert not wrong, f"{len(wrong)} of {len(chosen)} wrong"
