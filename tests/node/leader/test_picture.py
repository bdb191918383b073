"""How often everybody's resource use is noted, and what a picture of many nodes costs."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.node.leader.nodes import Node
from launcher.node.leader.picture import sample_every_s
from launcher.run.state import read_state

WEEK_S = 7 * 86400.0
RANK_BYTES = 180


@pytest.mark.parametrize(("ranks", "age_s"), [(1, WEEK_S / 2), (8, 86400.0), (64, 3 * 3600.0), (512, 1700.0)])
def test_samples_are_ten_seconds_apart_at_first(ranks: int, age_s: float) -> None:
    """Few ranks are noted every ten seconds for days, 512 for the first half hour."""
    assert sample_every_s(ranks, age_s, age_s) == 10.0


@pytest.mark.parametrize("ranks", [8, 64, 512])
def test_a_week_of_samples_stays_small(ranks: int) -> None:
    """The file grows with the logarithm of a run's age: 120 MB at most after a week, and no gap is over 1 % of the age."""
    age_s, size = 0.0, 0
    while age_s < WEEK_S:
        size += ranks * RANK_BYTES
        every_s = sample_every_s(ranks, age_s, age_s)
        assert every_s <= max(10.0, 0.01 * age_s)
        age_s += every_s

    assert size <= 120e6


@pytest.mark.parametrize(("round_s", "least"), [(60.0, 5), (600.0, 17), (3600.0, 25)])
def test_a_round_late_in_a_long_run_has_samples_of_its_own(round_s: float, least: int) -> None:
    """512 ranks after a week: an hour's round, which would have two at the run's own distance, has 25 and costs 3 MB."""
    age_s, count = 0.0, 0
    while age_s < round_s:
        count += 1
        age_s += sample_every_s(512, WEEK_S + age_s, age_s)

    assert count >= least
    assert count * 512 * RANK_BYTES <= 3e6


@pytest.mark.parametrize("held_s", [0.0, WEEK_S])
@pytest.mark.parametrize(("ranks", "most"), [(16_000, 250e6), (100_000, 1e9)])
def test_samples_of_many_ranks_are_bounded_by_the_second(ranks: int, most: float, held_s: float) -> None:
    """A first round of a week, and a late one: beyond the first sample 180 kB a second at most, however many ranks there are."""
    age_s, size = 0.0, 0
    while age_s < WEEK_S:
        assert size <= RANK_BYTES * 1000 * age_s
        age_s += sample_every_s(ranks, held_s + age_s, age_s)
        size += ranks * RANK_BYTES

    assert size <= most


def test_looking_for_a_node_among_many_compares_no_fields() -> None:
    """A node equals itself alone. A picture of 512 nodes that compared their fields took 0.3 s of each second of the leader's loop."""
    assert Node(0, "n0", host="n0") != Node(0, "n0", host="n0")


def test_before_its_first_round_an_attempt_has_no_spares(world, virtual) -> None:
    """Nodes that are being checked will train: ``status`` called all of a requeued run's nodes spare, of a job without spares."""
    w = world(nodes=2, preflight=True)
    seen: dict[str, Any] = {}

    async def script() -> None:
        answer, asked = w.nodes[1].on_preflight, []
        w.nodes[1].on_preflight = asked.append
        await w.until(lambda: (read_state(w.paths.state) or {}).get("phase") == "preflight")
        seen.update(read_state(w.paths.state))
        answer(asked[0])

    assert virtual(w.attempt_once(script)).state == "completed"
    assert seen["round"] is None
    assert seen["spares"] == []
