"""Another number of ranks: every sample once per epoch, and the same curve within rounding."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
import torch
from crew import Crew, make_spec, run
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, DdpSpec
from launcher.training.checkpoint.read import load_shared
from launcher.training.ddp import data
from launcher.training.ddp.data import Plan, derive_seed, split

EVERY = CheckpointSpec(interval_steps=1, keep_last=1000)
SELDOM = CheckpointSpec(interval_min=1000)


@given(total=st.integers(0, 200), parts=st.integers(1, 17))
def test_shares_cover_everything_once_and_differ_by_one_at_most(total: int, parts: int) -> None:
    """Shares are contiguous, disjoint and as even as whole numbers allow."""
    shares = [split(total, parts, i) for i in range(parts)]

    assert [n for start, n in shares for n in range(start, start + n)] == list(range(total))
    assert max(n for _, n in shares) - min(n for _, n in shares) <= 1


@examples(200)
@given(
    length=st.integers(1, 120),
    batch=st.integers(1, 9),
    first_ranks=st.integers(1, 8),
    ranks=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    accumulate=st.integers(1, 3),
    elastic=st.booleans(),
)
def test_every_sample_is_met_once_however_the_world_changes(
    length: int, batch: int, first_ranks: int, ranks: list[int], accumulate: int, elastic: bool
) -> None:
    """Units handed to changing numbers of ranks: each sample once, weights sum to one, micro-batches fit and match."""
    global_batch = batch * accumulate * first_ranks
    consumed, number, met = 0, 0, Counter[int]()
    while consumed < length:
        size = ranks[number % len(ranks)]
        plans = [
            Plan(
                length=length,
                global_batch=global_batch,
                batch_size=batch,
                accumulate=accumulate if elastic else 1,
                elastic_micros=elastic,
                rank=rank,
                world_size=size,
            )
            for rank in range(size)
        ]
        units = [next(plan.units(3, consumed, 4)) for plan in plans]
        micros = [micro for unit in units for micro in unit.micros]
        met.update(i for micro in micros for i in micro.indices[: micro.size])

        assert len({len(unit.micros) for unit in units}) == 1
        assert sum(micro.weight for micro in micros) / size == pytest.approx(1.0)
        assert all(micro.indices for micro in micros)
        assert not elastic or all(micro.size <= batch for micro in micros)
        consumed, number = consumed + units[0].size, number + 1

    assert met == Counter(range(length))


def test_drop_last_drops_what_is_left_of_an_epoch_whose_batch_size_has_changed() -> None:
    """12 of 25 samples were used in other steps: one whole step of 10 fits behind them, and the next epoch has two."""
    plan = Plan(length=25, global_batch=10, batch_size=10, drop_last=True)

    assert [(unit.epoch, unit.start, unit.size, unit.last) for unit in plan.units(0, 12, 2)] == [
        (0, 12, 10, True),
        (1, 0, 10, False),
        (1, 10, 10, True),
    ]
    assert list(plan.units(0, 22, 1)) == []


@pytest.mark.parametrize("at_once", [1, 20, 4096])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_resume_meets_the_units_of_the_run(monkeypatch: pytest.MonkeyPatch, accumulate: int, at_once: int) -> None:
    """A unit is the same whether it is read as the first one or with those before it, in an uneven last batch and without shares, too."""
    monkeypatch.setattr(data, "_AT_ONCE", at_once)
    plan = Plan(length=103, global_batch=10, batch_size=2, accumulate=accumulate, rank=3, world_size=4)
    units = list(plan.units(0, 0, 2))

    assert [next(plan.units(unit.epoch, unit.start, 2)) for unit in units] == units
    assert len(units) == 22
    assert {unit.micros[-1].size for unit in units} == ({0, 1} if accumulate == 1 else {0})


def test_seeds_are_spread() -> None:
    """Neighbouring ranks, steps and samples have unrelated seeds of 63 bits, all different."""
    seeds = {derive_seed(seed, step, rank) for seed in range(10) for step in range(20) for rank in range(50)}

    assert len(seeds) == 10 * 20 * 50
    assert max(seeds) < 2**63


def samples_met(run_dir: Path) -> Counter[tuple[int, int]]:
    """(epoch, sample) as the workers wrote them down."""
    met: Counter[tuple[int, int]] = Counter()
    for path in run_dir.glob("seen.*"):
        for line in path.read_text().splitlines():
            _, epoch, indices = line.split(" ", 2)
            met.update((int(epoch), i) for i in ast.literal_eval(indices))
    return met


def test_four_three_two_six_ranks_in_one_epoch(tmp_path: Path) -> None:
    """4→3→2→6 ranks within an epoch: every sample once per epoch, and the weights and loss of the run on four ranks."""
    params = {"samples": 88, "batch_size": 3, "dropout": 0.0, "seen": str(tmp_path / "run" / "seen")}
    other = {**params, "seen": ""}
    undisturbed = run(make_spec(tmp_path / "four", "small_jobs:Net", 4, checkpoint=SELDOM, params=other), 4)
    paths = RunPaths(tmp_path / "run")
    resume = None
    for attempt, (ranks, step) in enumerate([(4, 2), (3, 4), (2, 6)]):
        spec = make_spec(tmp_path / "run", "small_jobs:Net", ranks, checkpoint=SELDOM, params=params)
        first = [{"type": "stop", "step": step, "save": True}]
        with Crew(spec, ranks, resume=resume, attempt=attempt, first=first) as crew:
            crew.finish()
            assert set(crew.exit_codes().values()) == {0}, crew.logs()
        resume = paths.checkpoint(step)
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 6, checkpoint=SELDOM, params=params)
    end = run(spec, 6, resume=resume, attempt=3)

    assert samples_met(tmp_path / "run") == Counter({(epoch, i): 1 for epoch in (0, 1) for i in range(88)})
    one, two = (load_shared(crew.committed[-1])["objects"]["model"] for crew in (undisturbed, end))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)
    losses = [[m["loss"] for m in crew.messages("epoch", 0)] for crew in (undisturbed, end)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_more_ranks_than_samples_in_a_batch(tmp_path: Path) -> None:
    """A global batch of two on five ranks: three ranks have empty shares, and the weights are those of one rank."""
    params = {"samples": 9, "batch_size": 2, "dropout": 0.0, "epochs": 2, "seen": str(tmp_path / "run" / "seen")}
    alone = run(make_spec(tmp_path / "one", "small_jobs:Net", 1, checkpoint=SELDOM, params={**params, "seen": ""}), 1)
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 1, checkpoint=SELDOM, params=params)
    paths = RunPaths(tmp_path / "run")
    with Crew(spec, 1, first=[{"type": "stop", "step": 1, "save": True}]) as crew:
        crew.finish()
    five = make_spec(tmp_path / "run", "small_jobs:Net", 5, checkpoint=SELDOM, params=params)
    end = run(five, 5, resume=paths.checkpoint(1), attempt=1)

    assert samples_met(tmp_path / "run") == Counter({(epoch, i): 1 for epoch in (0, 1) for i in range(9)})
    one, two = (load_shared(crew.committed[-1])["objects"]["model"] for crew in (alone, end))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)


def test_a_static_graph_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    """Each rank then accumulates over two micro-batches: the weights of the run on four ranks."""
    values = {"params": {"samples": 48, "batch_size": 3, "dropout": 0.0}, "ddp": DdpSpec(static_graph=True)}
    full = run(make_spec(tmp_path / "four", "small_jobs:Net", 4, checkpoint=EVERY, **values), 4)
    two = make_spec(tmp_path / "two", "small_jobs:Net", 2, checkpoint=SELDOM, **values)
    end = run(two, 2, resume=full.paths.checkpoint(2))

    expected, got = (load_shared(crew.committed[-1])["objects"]["model"] for crew in (full, end))
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_evaluation_counts_every_sample_once(tmp_path: Path, world_size: int) -> None:
    """33, 3 and 9 samples in batches of 4: last batches are smaller, shares uneven or empty, and every mean is exact."""
    sizes = [33, 3, 9]
    spec = make_spec(tmp_path / "run", "small_jobs:evaluates", world_size, kind="function", params={"sizes": sizes})
    told = [m["metrics"] for m in run(spec, world_size).messages("evaluated", 0)]

    means = [sum(i * i for i in range(size)) / size for size in sizes]
    assert told == [{"mean": pytest.approx(mean, rel=1e-12), "each": pytest.approx(mean, rel=1e-12)} for mean in means]
