"""The verdict of `benchmarks/chaos.py`: what it compares, what it forgives, and what it strikes with. No cluster is needed."""

from __future__ import annotations

import importlib
import os
import random
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = ("chaos", "chaos_faults", "chaos_figures")


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """The campaign's modules, which are no package: they are run by path."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    yield types.SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
    for name in NAMES:
        sys.modules.pop(name)


class FakeRun:
    """The history of a run, by the number of ranks of each round."""

    def __init__(self, *ranks: int, step: int = 20) -> None:
        self.events = [{"type": "round_started", "ranks": [{}] * count} for count in ranks]
        self.step = step
        self.leader_pid = os.getpid()

    def told(self, type_: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == type_]

    def history(self) -> list[dict[str, Any]]:
        return self.events

    def outcome(self) -> dict[str, Any]:
        return {"step": self.step}

    def state(self) -> dict[str, Any]:
        return {"leader_pid": self.leader_pid}


def ranged(campaign: types.SimpleNamespace, folder: Path, *, leave_out: int | None = None) -> dict[str, Any]:
    """A run of one epoch: three ranks do ten steps, of which two are lost; two ranks do those again, and the rest."""
    rows = iter(range(campaign.chaos.ROWS))
    used = {step: [next(rows) for _ in range(campaign.chaos.SAMPLES)] for step in range(20)}
    lines = [f"0 {row} {step} 0 0" for step in range(10) for row in used[step]]
    lines += [f"0 {row} {step} 0 1" for step in range(8, 20) for row in used[step] if row != leave_out]
    (folder / "seen.0").write_text("\n".join(lines) + "\n")
    return {"task": "ledger:Ledger", "params": {"epochs": 1, "seen": str(folder / "seen")}}


def line(**changes: Any) -> dict[str, Any]:
    """A run that ended as it should."""
    return {
        "run": "r1", "root": "/nowhere", "state": "completed", "reason": "", "same": True, "steps": 20, "wall_s": 9.0, "steps_s": 2.0,
        "seconds": {"useful": 2.0}, "before_s": 1.0, "lost_steps": 0, "attempts": 1, "rounds": 1, "sizes": [3], "faults": [], "shape": {},
        "left": [], "released": 0, "resubmitted_t": [], **changes,
    }  # fmt: skip


def fault(kind: str, t: float = 0.0, recovery_s: float | None = None) -> dict[str, Any]:
    return {"kind": kind, "t": t, "step": 1, "load": 1.0, "recovery_s": recovery_s}


@pytest.mark.parametrize(("ranks", "is_compared"), [((3, 3), True), ((3, 2), False)])
def test_a_range_whose_size_never_changed_is_compared_bit_for_bit(
    campaign: types.SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: tuple[int, ...],
    is_compared: bool,
) -> None:
    """Every sample was used once, but the weights differ: that counts where all rounds had the reference's number of ranks."""
    monkeypatch.setattr(campaign.chaos, "digest", lambda run: "other weights")
    monkeypatch.setattr(campaign.chaos, "reference", lambda place, work: "the weights")

    assert campaign.chaos.ends_the_same(FakeRun(*ranks), ranged(campaign, tmp_path), tmp_path) is not is_compared


def test_each_sample_counts_once_within_committed_steps(campaign: types.SimpleNamespace, tmp_path: Path) -> None:
    """A step that was done again counts as the latest round did it: a sample that only the lost try had met is missing."""
    assert campaign.chaos.ends_the_same(FakeRun(3, 2), ranged(campaign, tmp_path), tmp_path)

    assert not campaign.chaos.ends_the_same(FakeRun(3, 2), ranged(campaign, tmp_path, leave_out=80), tmp_path)


def test_a_sample_that_was_used_twice_is_a_mismatch(campaign: types.SimpleNamespace, tmp_path: Path) -> None:
    """Within two committed steps."""
    work = ranged(campaign, tmp_path)
    (tmp_path / "seen.1").write_text("0 3 19 0 1\n")

    assert not campaign.chaos.ends_the_same(FakeRun(3, 2), work, tmp_path)


def test_a_run_that_was_resubmitted_by_hand_counts_against_the_launcher(
    campaign: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless a fault of slurmctld came before; one that was released by hand is counted alone."""
    table = campaign.chaos_figures.table
    ctld, rank = fault("slurmctld killed after a requeue", 50.0), fault("worker killed", 40.0)

    assert table([line(resubmitted_t=[60.0], faults=[rank, ctld]), line(released=2, faults=[rank])]) == 0
    said = capsys.readouterr().out
    assert "released by hand (SLURM had put the job on hold): 1 runs, 2 times" in said
    assert "resubmitted by hand (SLURM had lost the job): 1 runs; without a fault of slurmctld before: 0" in said
    assert "compared bit for bit: 2; by samples, as they had other numbers of ranks: 0" in said
    assert table([line(resubmitted_t=[45.0], faults=[rank, ctld])]) == 1
    assert table([line(resubmitted_t=[60.0], faults=[rank])]) == 1


def test_hosts_that_died_have_rows_by_what_the_run_had_instead(
    campaign: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row has its share, median and 95th percentile; ranks have one row, whatever nodes the run asked for."""
    hosts = [fault("host killed", recovery_s=float(n)) for n in range(1, 21)]
    lines = [
        line(faults=[*hosts, fault("worker killed", recovery_s=1.0)]),
        line(faults=[fault("host killed", recovery_s=2.0)], shape={"spare_nodes": 1}),
        line(
            faults=[fault("host killed"), fault("worker killed", recovery_s=1.0)],
            shape={"nodes": "2-3", "replace": True},
        ),
    ]

    campaign.chaos_figures.table(lines)

    rows = [row.split() for row in capsys.readouterr().out.splitlines() if "killed" in row]
    assert [" ".join(row) for row in rows] == [
        "host killed 20 83.3 % p50 11.00 s, p95 20.00 s, max 20.00 s",
        "worker killed 2 8.3 % p50 1.00 s, p95 1.00 s, max 1.00 s",
        "host killed, with a spare 1 4.2 % p50 2.00 s, p95 2.00 s, max 2.00 s",
        "host killed, of a range 1 4.2 % no recovery needed",
    ]


def recoveries(campaign: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, *, second_finds: bool) -> list[Any]:
    """What many faults within a recovery are told to be; each first one ends the round at once."""
    faults = campaign.chaos_faults
    run = FakeRun(3)
    ends = lambda scene: run.events.append({"type": "round_ended"})  # noqa: E731

    def strikes(scene: Any) -> None:
        if not second_finds:
            raise faults.NotNow

    monkeypatch.setattr(faults, "FAULTS", {kind: (weight, ends) for kind, (weight, _) in faults.FAULTS.items()})
    monkeypatch.setattr(faults, "_SECONDS", dict.fromkeys(faults._SECONDS, strikes))
    monkeypatch.setattr(faults.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(faults.time, "monotonic", iter(range(10**9)).__next__)
    monkeypatch.setattr(faults.Scene, "training", lambda scene: run.state())
    scene = faults.Scene(None, run, random.Random(1), Path(), Path())
    return [faults._recovering(scene) for _ in range(2000)]


def test_the_first_of_two_faults_is_of_any_kind_that_ends_a_round(
    campaign: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts, agents, the leader, a preemption, and so on; not what a run does not notice, nor what is two faults itself."""
    told = recoveries(campaign, monkeypatch, second_finds=True)

    firsts = {it["first"] for it in told}
    assert firsts >= {
        "worker killed",
        "leader killed",
        "leader's host killed",
        "preempted",
        "store killed",
        "flipped byte",
    }
    unnoticed = {
        "slurmctld restarted",
        "slurmd restarted",
        "disk full",
        "folder away",
        "keeper killed",
        "replacement cancelled",
    }
    twofold = {"two in one recovery", "slurmctld killed after a requeue", "slurmctld killed as it starts"}
    assert firsts == {*campaign.chaos_faults.FAULTS} - unnoticed - twofold
    assert {it["second"] for it in told} == {"worker killed", "store killed", "agent killed", "leader killed"}


def test_a_fault_without_a_second_one_counts_as_its_own_kind(
    campaign: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing was there that the second could strike, the first has struck all the same, and is on record."""
    told = recoveries(campaign, monkeypatch, second_finds=False)

    assert {"host killed", "rank 0 killed"} <= {it["kind"] for it in told}
    assert all(it.keys() == {"kind"} for it in told)
