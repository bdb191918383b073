"""How often to save."""

from __future__ import annotations

import pytest

from launcher.run.intervals import young_daly_s


def test_young_and_daly_agree_with_the_published_example() -> None:
    """w = 0.05 s and a failure a minute: about 2.4 s."""
    assert young_daly_s(0.05, 60) == pytest.approx(2.4, abs=0.05)


def test_the_advised_interval_minimises_the_expected_loss() -> None:
    """No other interval costs less by the first-order model: save share plus half an interval per failure."""
    save, mttf = 4.0, 7200.0

    def cost(interval: float) -> float:
        return save / interval + interval / 2 / mttf

    best = min((i / 10 for i in range(10, 30000)), key=cost)
    assert young_daly_s(save, mttf) == pytest.approx(best, rel=0.03)


def test_a_save_that_takes_longer_than_the_time_to_failure() -> None:
    """Daly's series ends at cost = 2·MTTF; beyond it the interval is the MTTF."""
    assert young_daly_s(130, 60) == 60


def test_what_costs_nothing_has_no_interval() -> None:
    """Without a cost or without failures there is nothing to balance."""
    assert young_daly_s(0, 60) == young_daly_s(5, 0) == 0
