"""What SLURM, the user and accidents do to runs on the real cluster: `why` says who did it and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import HOSTS, Cluster
from harness import Run
from planting import Verbs, chosen_of, misses, plant


class Bench:
    """The cluster as acts know it: `run` returns what the command printed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def run(self, command: list[Any]) -> str:
        """Run a command on the login host."""
        return self._cluster.run(command).stdout


def after(act: Any, cluster: Cluster, directory: Path) -> list[str]:
    """Do an act to a run; what ``why`` then lacks."""
    bench, undo = Bench(cluster), None
    try:
        if act.before:
            undo = act.how(bench, None)
        job = {"distributed": {"init_timeout_min": 0.9}, **act.job}
        job["checkpoint"] = {"enabled": True, "interval_steps": 100, **act.job.get("checkpoint", {})}
        job["restart"] = {"hang_floor_s": 10.0, "max_restarts": 5, "requeue": True, **act.job.get("restart", {})}
        run = plant(cluster, directory, "function", ["steady"] * 9, **job)
        if not act.before:
            run.wait_step(5)
            undo = act.how(bench, run)
        return _wrong_after(act, Verbs(cluster, directory / "runs"), run)
    finally:
        try:
            cluster.cancel_all()
        finally:
            if callable(undo):
                undo()


def _wrong_after(act: Any, verbs: Verbs, run: Run) -> list[str]:
    hosts = run.state().get("nodes") or HOSTS
    deadline = time.monotonic() + max(act.soon_s, 180.0 if act.state == "ended" else 0.0)
    while True:
        why, text = verbs.why(run)
        found = misses(act, why, 0.0, hosts)
        if act.state == "ended" and why.state in ("pending", "running"):
            found.append(f"it is {why.state}")
        if (
            not found
            or time.monotonic() > deadline
            or (act.state == "ended" and why.state not in ("pending", "running"))
        ):
            return [f"{'; '.join(found)}\n{text}"] if found else []
        time.sleep(1)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_what_happens_from_outside_is_told(
    cluster: Cluster, cases: dict[str, Any], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """SLURM's acts, the user's and accidents: who did it, whether the run comes back, and what ends a wait."""
    import acts
    import blind_acts  # noqa: F401

    acts.act.verb = lambda bench, *words: Verbs(cluster, newest(tmp_path) / "runs")(*words)
    chosen, wrong, unfit = chosen_of(acts.ACTS), {}, {}
    for number, name in enumerate(chosen):
        try:
            found = after(acts.ACTS[name], cluster, tmp_path / f"{number:02}")
        except Exception as error:
            if str(error).startswith("precondition"):
                unfit[name] = str(error)
                record_property(name, str(error))  # docs/versions.md lists it as skipped
                continue
            found = [f"{type(error).__name__}: {error}"]
        finally:
            cluster.heal()
            cluster.restore({})
        print(f"{'wrong' if found else 'right'}: {name}", *found, flush=True)
        if found:
            wrong[name] = found
    print(f"{len(chosen) - len(wrong) - len(unfit)} of {len(chosen) - len(unfit)} right; not tried: {unfit}")
    assert not wrong, f"{len(wrong)} of {len(chosen)} wrong"


def newest(directory: Path) -> Path:
    """The folder of the act under way."""
    return max(directory.iterdir())
