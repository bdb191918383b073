"""The time that one process tells: set clocks do not show in it."""

from __future__ import annotations

import os
import time

import pytest

from launcher.run import clock, processes


@pytest.mark.parametrize("jump", [3600, -3600])
def test_a_clock_that_is_set_does_not_show(monkeypatch: pytest.MonkeyPatch, jump: int) -> None:
    """The time goes on, and a moment that was noted before is as long ago as it is."""
    before, noted, real = clock.now(), clock.stamp(), time.time()
    assert abs(before - real) < 60

    monkeypatch.setattr(time, "time", lambda: real + jump)

    assert 0 <= clock.now() - before < 60
    assert 0 <= (clock.since(noted) or 0.0) < 60


def test_a_moment_of_another_host_or_before_a_boot_is_unknown() -> None:
    """Seconds since a boot mean nothing elsewhere; older versions noted none."""
    assert clock.since({**clock.stamp(), "boot": "another"}) is None
    assert clock.since({"t": time.time()}) is None


def test_one_process_goes_on_with_the_clock_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the leader noted an hour ahead ten seconds ago makes this process an hour ahead; that of another host changes nothing."""
    monkeypatch.setattr(clock, "_base", clock._base)
    noted, real = clock.stamp(), clock.now()

    clock.set_from({**noted, "t": real + 3590, "up_s": noted["up_s"] - 10})
    assert clock.now() == pytest.approx(real + 3600, abs=5)

    clock.set_from({**noted, "t": real, "boot": "another"})
    assert clock.now() == pytest.approx(real + 3600, abs=5)


def test_a_process_is_known_by_boot_and_tick() -> None:
    """Neither the kernel's word on when it booted, which moves with the clock, nor the time of day is in the mark."""
    mine = os.getpid()
    mark = processes.mark_of(mine)

    assert processes.is_alive(mine, mark)
    assert processes.is_alive(mine, None)
    assert not processes.is_alive(mine, f"{mark}0")
    assert 0 < processes.age_s(mine) < 86400
