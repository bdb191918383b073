"""When the scheduler will look, and the StartTime that fits it."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.slurm import restart
from launcher.slurm.commands import Answer
from launcher.slurm.restart import SchedulerState, parse_sdiag, start_time

SDIAG = """*******************************************************
sdiag output at Sun Nov 22 05:00:00 2026 (1795323600)
Data since      Sun Nov 22 00:00:00 2026 (1795305600)
*******************************************************
Jobs started:   4

Main schedule statistics (microseconds):
\tLast cycle:   44
\tMax cycle:    1210
\tTotal cycles: %d
\tCycles per minute: 2

Backfilling stats
\tTotal backfilled jobs (since last slurm start): 0
\tTotal cycles: 977
"""


def test_sdiag_is_read() -> None:
    """The main scheduler's cycles, not the backfill's, and slurmctld's clock."""
    assert parse_sdiag(SDIAG % 12, 5.0) == SchedulerState(12, 1795323600, 5.0)
    assert parse_sdiag("sdiag: error: no answer", 5.0) is None


@pytest.mark.parametrize(
    ("here", "heard", "t", "there"),
    [(100.5, 100.2, 100, 100.5), (100.5, 100.2, 140, 141.3), (100.5, 100.2, 60, 61.3)],
    ids=["in step", "slurmctld ahead", "slurmctld behind"],
)
def test_slurmctlds_clock_is_the_one_that_counts(here: float, heard: float, t: int, there: float) -> None:
    """Clocks that agree are trusted to the fraction of a second; of others the latest that slurmctld's may show is taken."""
    assert SchedulerState(1, t, heard).there(here) == pytest.approx(there)


def test_start_time_lies_between_the_jobs_end_and_the_schedulers_next_look() -> None:
    """The second of the last cycle plus batch_sched_delay, if the job can have ended by then; a safe lead otherwise."""
    before = SchedulerState(7, 1000, 1000.4)

    assert start_time(before, 3, now=1001.2, needed_s=1.3) == "uts1003"
    assert start_time(before, 3, now=1002.2, needed_s=1.3) == "now+3seconds"
    assert start_time(before, 5, now=1001.2, needed_s=3.0) == "uts1005"
    assert start_time(None, 3, now=1001.2, needed_s=1.3) == "now+3seconds"
    assert start_time(before, 3, now=1001.2, needed_s=4.2) == "now+6seconds"


class Slurm:
    """slurmctld with batch_sched_delay 3 and a slurmd that looks once a second, on a clock of its own."""

    def __init__(self, *, others_s: float = 0.0, call_s: float = 0.02, last_cycle: float = -60.0, sdiag: bool = True):
        self.now, self.cycles, self.said = 1000.3, 5, []
        self._others_until, self._call_s, self._sdiag = self.now + others_s, call_s, sdiag
        self._last, self._wanted, self._tick = self.now + last_cycle, False, 1000.9

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self._tick <= end:
            if self._wanted and int(self._tick) - int(self._last) >= 3:
                self._last, self._wanted, self.cycles = self._tick, False, self.cycles + 1
            self._tick += 1.0
        self.now = end

    def clock(self) -> float:
        return self.now

    def ask(self, *words: str, timeout_s: float = 0.0) -> Answer:
        self.sleep(self._call_s)
        if words[0] == "sdiag":
            text = (SDIAG % self.cycles).replace("1795323600", str(int(self.now)))
            return Answer(words, 0, text) if self._sdiag else Answer(words, 1, err="no")
        if words[1] == "update":
            self._wanted = True
            self.said.append(words[3])
            return Answer(words, 0)
        return Answer(words, 0, "SchedulerParameters      = bf_continue\n")

    def next_look(self) -> float:
        """When a request made now is looked at."""
        self._wanted, cycles = True, self.cycles
        while self.cycles == cycles:
            self.sleep(0.1)
        return self._last


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch):
    def call(slurm: Slurm, **arguments: Any) -> str:
        monkeypatch.setattr(restart, "ask", slurm.ask)
        monkeypatch.setattr(
            restart, "_others_are_gone", lambda *_: slurm.sleep(min(2.5, slurm._others_until - slurm.now)) or
            slurm.now >= slurm._others_until,
        )  # fmt: skip
        told = {"requeued_t": None, "has_epilog": False, **arguments}
        words = restart.last_act("7", own_host="n0", sleep=slurm.sleep, clock=slurm.clock, **told)
        assert words[:3] == ("scontrol", "update", "JobId=7")
        return words[3].removeprefix("StartTime=")

    return call


@pytest.mark.parametrize("last_cycle", [-60.0, -3.0, -2.2, -1.1, -0.1])
def test_the_last_request_earns_a_look_after_the_jobs_end(act, last_cycle: float) -> None:
    """Whenever the scheduler has looked before: the job has time to end, and is found to be due at the next look."""
    slurm = Slurm(last_cycle=last_cycle)

    at = act(slurm)

    assert at.startswith("uts")
    start = int(at[3:])
    assert start - slurm.now >= restart.END_S
    assert slurm.next_look() >= start
    assert slurm.next_look() - start < 5


@pytest.mark.parametrize(
    ("slurm", "arguments", "at"),
    [
        (Slurm(call_s=0.4), {}, "now+4seconds"),
        (Slurm(sdiag=False), {}, "now+3seconds"),
        (Slurm(sdiag=False), {"srun_killed": True}, "now+5seconds"),
        (Slurm(others_s=60), {}, "now+15seconds"),
        (Slurm(), {"requeued_t": 980.0}, "now+13seconds"),
        (Slurm(), {"has_epilog": True}, "now+6seconds"),
    ],
    ids=["slow host", "no sdiag", "a step left alone", "another host is slow", "slurmd looks seldom", "epilog"],
)
def test_where_it_may_take_longer_the_lead_is_safe(act, slurm: Slurm, arguments: dict[str, object], at: str) -> None:
    """A StartTime in the past at the job's end costs 121 s, one that comes late at most bf_interval."""
    assert act(slurm, **arguments) == at
    assert slurm.said[0] == "StartTime=now+15seconds"
