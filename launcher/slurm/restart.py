"""Let a requeued job start soon: the job's last process sets the right StartTime at the right moment.

What SLURM does (22.05 to 25.05 by source; measured on 22.05.8, docs/benchmarks.md):

- When the last process of a requeued job has ended and its StartTime has passed, SLURM sets it 121 s ahead (cred_expire + 1).
  So StartTime must still lie in the future then; but not far.
- The main scheduler looks through the queue when something has asked for it (any update of a job does), at most every
  batch_sched_delay (3 s). The end of the job is such a look, too, but one that comes before StartTime. On an idle cluster
  nobody asks again: the job then waits for the backfill scheduler's next turn (bf_interval, 30 s).

So the last process asks (an update with a StartTime that is safe), sees the scheduler look (``sdiag`` counts its cycles and
tells slurmctld's clock), asks again at once with the second in which it will look next, and is gone. The look that its last
request has earned comes batch_sched_delay after the one it saw: after the job's end, and not before StartTime.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from launcher.frozen import frozen
from launcher.run import clock as own_clock
from launcher.slurm.commands import ask
from launcher.slurm.jobs import job_facts, parse_time

NET_LEAD_S = 15
"""Lead of a StartTime that holds if nothing else is said: the job's end takes less on any host that can be used."""
EPILOG_LEAD_S = 6
"""An epilog runs after the last process and must be over before StartTime."""
END_S = 1.25
"""From the last request to the job's end as slurmctld sees it: slurmd looks at its processes once a second, and reports."""
_PER_CALL = 3.0
"""The end costs about as much work as so many of SLURM's commands: a slow host is given more time."""
STEP_S = 2.0
"""More where srun did not see its step end: slurmstepd outlives the batch script then, by one or two of slurmd's looks."""
POLLED_S = 9.0
_SELDOM_S = 10.5
"""slurmd looks once a second for the first ten seconds after a requeue, then every ten."""
_OTHERS_S = 2.5
_POLL_S = 0.1
_ASK_S = 5.0


@frozen
class SchedulerState:
    """What slurmctld says of its main scheduler."""

    cycles: int
    """Cycles so far."""
    t: int
    """The second of slurmctld's clock in which it said so."""
    heard: float
    """The same moment by this host's clock."""

    def there(self, here: float) -> float:
        """Return what slurmctld's clock shows when this host's shows ``here``; at most a second too much."""
        least = self.t + (here - self.heard)
        return here if least - 0.2 <= here <= least + 1.2 else least + 1.0


def parse_sdiag(text: str, heard: float) -> SchedulerState | None:
    """Read the output of ``sdiag``; None when it is something else."""
    at = parse_time(text)
    cycles = re.search(r"^Main schedule statistics.*?^\s*Total cycles:\s*(\d{1,18})", text, re.MULTILINE | re.DOTALL)
    return SchedulerState(int(cycles[1]), int(at), heard) if at and cycles else None


def start_time(before: SchedulerState | None, delay_s: int, *, now: float, needed_s: float) -> str:
    """Return the StartTime for the last request. Pure.

    ``before`` is the last look at slurmctld's clock before the scheduler's cycle (None: no cycle was seen), ``delay_s``
    batch_sched_delay, ``now`` this host's clock, ``needed_s`` how long the job's end may take.
    """
    if before is not None and before.t + delay_s - before.there(now) >= needed_s:
        return f"uts{before.t + delay_s}"
    return f"now+{math.ceil(needed_s) + 1}seconds"  # SLURM cuts its clock down to the second


def last_act(
    job_id: str,
    *,
    own_host: str,
    requeued_t: float | None,
    has_epilog: bool,
    srun_killed: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = own_clock.now,
) -> tuple[str, ...]:
    """Prepare the last act of the job's last process; return the command to exec.

    ``own_host`` is SLURM's name of this host, ``requeued_t`` when SLURM began to end the job, as far as that is known.
    ``srun_killed``: the step was left to itself. Takes 1 to 7 s. Never raises.
    """
    delay_s = _batch_sched_delay_s()
    asked_s = [_ask_for_a_cycle(job_id, clock)]
    alone = _others_are_gone(job_id, own_host, sleep, clock)
    before = _see_a_cycle(job_id, delay_s, asked_s, sleep, clock) if alone and delay_s >= 2 and not has_epilog else None
    needed_s = END_S + _PER_CALL * max(asked_s) + (STEP_S if srun_killed else 0.0)
    if not alone:
        needed_s = NET_LEAD_S - 1
    elif requeued_t is not None and clock() - requeued_t > POLLED_S:
        needed_s += _SELDOM_S
    elif has_epilog:
        needed_s = max(needed_s, EPILOG_LEAD_S - 1)
    at = start_time(before, delay_s, now=clock(), needed_s=needed_s)
    return ("scontrol", "update", f"JobId={job_id}", f"StartTime={at}")


def _ask_for_a_cycle(job_id: str, clock: Callable[[], float]) -> float:
    """Set a StartTime that holds, which asks the main scheduler for a cycle, too; return how many seconds that took."""
    began = clock()
    ask("scontrol", "update", f"JobId={job_id}", f"StartTime=now+{NET_LEAD_S}seconds", timeout_s=_ASK_S)
    return clock() - began


def _batch_sched_delay_s() -> int:
    config = ask("scontrol", "show", "config", timeout_s=_ASK_S).out
    found = re.search(r"^SchedulerParameters +=.*\bbatch_sched_delay=(\d{1,9})", config, re.MULTILINE)
    return int(found[1]) if found else 3


def _others_are_gone(job_id: str, own_host: str, sleep: Callable[[float], None], clock: Callable[[], float]) -> bool:
    """Wait until the job has ended on every other host: each one's end starts a cycle of the scheduler, too."""
    end = clock() + _OTHERS_S
    while True:
        facts = job_facts(job_id, timeout_s=_ASK_S)
        if facts is not None and facts.nodes in ("", own_host):
            return True
        if clock() >= end:
            return False
        sleep(_POLL_S)


def _see_a_cycle(
    job_id: str, delay_s: int, asked_s: list[float], sleep: Callable[[float], None], clock: Callable[[], float]
) -> SchedulerState | None:
    """Ask for a cycle of the main scheduler and wait for it; return its state before, None when no cycle was seen."""
    before = parse_sdiag(ask("sdiag", timeout_s=_ASK_S).out, clock())
    if before is None:
        return None
    asked_s.append(_ask_for_a_cycle(job_id, clock))
    end = clock() + delay_s + 2.5
    while clock() < end:
        sleep(_POLL_S)
        now = parse_sdiag(ask("sdiag", timeout_s=_ASK_S).out, clock())
        if now is None or now.cycles != before.cycles:
            return before if now else None
        before = now
    return None
