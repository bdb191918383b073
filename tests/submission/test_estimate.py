"""Facts about estimates: what sbatch --test-only says is read, and the first to finish comes first."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from planning import facts

from launcher.config.load import LoadedJob
from launcher.run import index, rehearsals
from launcher.run.paths import RunPaths
from launcher.submission import estimate
from launcher.submission.plan import plan

SAYS = "sbatch: Job 3 to start at {} using 8 processors on nodes node[1-4] in partition main\n"


@pytest.mark.parametrize(("when", "t"), [("1795310000", 1795310000.0), ("2026-11-22T02:00:00", None)])
def test_the_start_is_read(when: str, t: float | None) -> None:
    """Epoch seconds (SLURM_TIME_FORMAT=%s) or a local time."""
    found = estimate.parse_start(SAYS.format(when))

    assert found is not None
    assert t is None or found == t


def test_a_refusal_has_no_start() -> None:
    """allocation failure: Requested node configuration is not available."""
    assert estimate.parse_start("allocation failure: Requested node configuration is not available") is None


def test_the_first_to_finish_comes_first() -> None:
    """A later start on more ranks may finish earlier; what never starts is last."""
    few = estimate.Estimate("main", 1, 4, 1000.0, "", 4000.0)
    many = estimate.Estimate("main", 4, 16, 2000.0, "", 1000.0)
    never = estimate.Estimate("main", 9, 36, None, "too many", 400.0)

    assert estimate.order([never, few, many]) == [many, few, never]


def test_speed_scales_with_ranks() -> None:
    """Twice the ranks, half the time: perfect scaling, as the table says."""
    speed = estimate.Speed("r", steps_per_s=2.0, ranks=4, total_steps=800)

    assert (speed.seconds(4), speed.seconds(8)) == (400.0, 200.0)


def test_the_speed_at_that_number_of_ranks_counts_else_the_nearest() -> None:
    """Four ranks were measured themselves; six are reckoned from eight, one from four."""
    four, eight = (estimate.Speed(f"r{n}", 1.0, n, 100) for n in (4, 8))

    assert [estimate.nearest([eight, four], n) for n in (4, 6, 8, 1)] == [four, eight, eight, four]
    assert estimate.nearest([], 4) is None


def test_a_rehearsal_on_real_nodes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One on this machine says nothing of a cluster's speed; the newest of the others does."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    for real, rate in ((True, 1.0), (True, 2.0), (False, 3.0)):
        rehearsals.note("net", real=real, ranks=2, steps_per_s=rate, total_steps=100, save_s=None)

    assert estimate.measured("net") == [estimate.Speed("a rehearsal", 2.0, 2, 100)]


def test_the_newest_run_that_measured_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other jobs, and runs without a speed, are passed over."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    states = {"net-1120-0842-aaa": 1.0, "net-1121-0842-bbb": 2.0, "net-1122-0842-ccc": None, "lm-1122-0842-ddd": 9.0}
    for t, (run_id, rate) in enumerate(states.items()):
        paths = RunPaths(tmp_path / "runs" / run_id)
        paths.root.mkdir(parents=True)
        paths.spec.write_text("{}")
        paths.state.write_text(json.dumps({"rate": rate, "world_size": 4, "total_steps": 100}))
        index.register(paths.root)
        os.utime(index.links_dir() / run_id, (t, t), follow_symlinks=False)

    (found,) = estimate.measured("net")
    assert (found.run_id, found.steps_per_s) == ("net-1121-0842-bbb", 2.0)
    assert estimate.measured("other") == []


def test_the_script_that_is_tested_is_the_plans(
    job: Callable[..., LoadedJob], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch --test-only reads exactly what would be submitted; nothing of it is left."""
    (tmp_path / "sbatch").write_text(
        f'#!/bin/sh\ncp "$2" {tmp_path}/seen; echo "$2" > {tmp_path}/where\necho "{SAYS.format(1795310000).strip()}" >&2\n'
    )
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = plan(job(), facts())

    assert estimate.ask_start(made) == (1795310000.0, "")
    assert (tmp_path / "seen").read_text() == made.sbatch
    assert not Path((tmp_path / "where").read_text().strip()).exists()
