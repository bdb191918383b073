"""What differs between versions of SLURM and is felt by jobs: the only place that compares version numbers.

Where the running SLURM can be asked, it is asked instead. Sources: SLURM's changelogs and source code; "measured" means by
the tests of tests/slurm on that release (`make slurm RELEASE=...`).
"""

from __future__ import annotations

import re

from launcher.frozen import frozen

TESTED = ((22, 5), (24, 11), (26, 5))
"""The versions on which the tests of tests/slurm were run. One that is newer is taken for the newest."""
_REQUEUE_DELAY = (25, 11)
_BLOCKS_ACCOUNTING = (24, 11), (26, 5)
"""Since the first and before the second; between 24.11.5, which does, and 26.05.5, which does not, none was tried."""


@frozen(kw_only=True)
class Difference:
    """Something that is true of some versions."""

    topic: str
    text: str
    since: tuple[int, ...] = ()
    before: tuple[int, ...] = (99,)
    warns: bool = False
    """A fault of those versions."""


DIFFERENCES = (
    # Measured on 22.05.8.
    Difference(
        topic="srun", since=(22, 5), before=(23, 11),
        text="srun does not inherit --cpus-per-task from sbatch (22.05 to 23.02). The launcher passes it.",
    ),
    # Measured on 24.11.5 and 26.05.5.
    Difference(
        topic="srun", since=(23, 11),
        text="srun inherits --cpus-per-task from sbatch. The launcher passes it anyway.",
    ),
    # Measured on 22.05.8.
    Difference(
        topic="run folder", before=(23, 2),
        text="SLURM does not start a task whose node does not see runs_dir.",
    ),
    # Measured on 24.11.5 and 26.05.5.
    Difference(
        topic="run folder", since=(23, 2),
        text="SLURM starts tasks on nodes that do not see runs_dir. The launcher then excludes such a node after 5 s.",
    ),
    # Measured on 22.05.8.
    Difference(
        topic="grace", before=(24, 5),
        text="SLURM does not requeue a job that ends within its grace time. The launcher requeues it.",
    ),
    # SLURM's commit a689104d1552; measured on 24.11.5.
    Difference(
        topic="grace", since=(24, 5),
        text="SLURM may record the end of a job that was once in its grace time as PREEMPTED, even if its run has completed.",
    ),
    # SLURM's commits 21f8670eaf and f5541fc35d; measured on 24.11.5: 1 of 8 killed nodes.
    Difference(
        topic="dead nodes", since=(23, 11), before=(24, 11, 6), warns=True,
        text="SLURM 23.11 to 24.11.5 may set all nodes DOWN when one node dies: SLURM then requeues your runs. Update to 24.11.6.",
    ),
    # SLURM's commits a9685cd277 and bfef7ee71c (step_terminate_monitor.c); measured on 22.05.8: 2 of 71 ends of a step that its tasks
    # left as they were killed, on a busy machine.
    Difference(
        topic="drains", before=(25, 5, 1),
        text='SLURM before 25.05.1 may drain a host ("Kill task failed") minutes after a step was killed just as it ended. The host is well.',
    ),
    # slurmctld adds two minutes to a requeued job's begin time (job_mgr.c); measured on 24.11.5.
    Difference(
        topic="requeue", before=(25, 11),
        text="SLURM holds back a requeued job for 2 min. The launcher asks for 2 s.",
    ),
    # Measured on 26.05.5.
    Difference(
        topic="requeue", since=(25, 11),
        text="SchedulerParameters=requeue_delay says how long SLURM holds back a requeued job. The launcher asks for 2 s.",
    ),
    # slurmctld forgets at a requeue that slurmdbd has the job (`db_flags = 0` in job_mgr.c), sends it anew with the time of its
    # submission, and slurmdbd refuses that ("Duplicate entry"), ever again; measured on 24.11.5.
    Difference(
        topic="accounting", since=_BLOCKS_ACCOUNTING[0], before=_BLOCKS_ACCOUNTING[1], warns=True,
        text="An update of a requeued job that has lost a node blocks SLURM's accounting (24.11 to 25.11). The launcher updates no such "
             "job: SLURM then holds it back for 2 min.",
    ),
    # Measured on 26.05.5.
    Difference(
        topic="expedite", since=(25, 11),
        text="The launcher does not use --requeue=expedite: SLURM would keep each failed run in the queue.",
    ),
    # Measured on 26.05.5.
    Difference(
        topic="task order", since=(26, 5),
        text="srun may number tasks in the order of the network topology. The launcher asks for the order of the node list.",
    ),
)  # fmt: skip


def numbers(version: str) -> tuple[int, ...]:
    """Read ``24.11.5``, also with other words around it, as (24, 11, 5)."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version)[:3])


def differences(version: tuple[int, ...]) -> list[Difference]:
    """Return what is true of a version, such as (24, 11, 5)."""
    return [d for d in DIFFERENCES if d.since <= version < d.before]


def untested(version: tuple[int, ...]) -> str:
    """Return "older", "newer" or "between" of a version that was not tested, "" of one that was."""
    if version[:2] in TESTED:
        return ""
    return "older" if version < TESTED[0] else "newer" if version > TESTED[-1] else "between"


def blocks_accounting(version: str) -> bool:
    """Return whether an update of a requeued job that has lost a node (`JobFacts.resized`) blocks the accounting of a version ("24.11.5")."""
    return _BLOCKS_ACCOUNTING[0] <= numbers(version) < _BLOCKS_ACCOUNTING[1]


def has_requeue_delay(version: tuple[int, ...]) -> bool:
    """Return whether SchedulerParameters=requeue_delay counts; earlier versions ignore it."""
    return version >= _REQUEUE_DELAY
