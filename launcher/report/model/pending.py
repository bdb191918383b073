"""What SLURM's Reason of a pending job means, and what ends the wait. Pure.

The words are those of SLURM's ``job_reason`` codes (squeue(1), "JOB REASON CODES", and resource limits, resource_limits.html).
"""

from __future__ import annotations

import re

from launcher.frozen import frozen


@frozen
class PendingReason:
    """Why a job waits although others may start."""

    means: str
    """One clause."""
    ends: str
    """What ends it."""


_LOWER = "launcher cancel {run}, then submit it within the limit"
_TABLE: tuple[tuple[str, str, str], ...] = (
    ("JobHeldUser", "its owner holds it", "scontrol release {job}"),
    ("JobHeldAdmin", "an administrator holds it", "scontrol release {job}, by the administrator who held it"),
    (r"JobHoldMaxRequeue|.*launch.failure.limit", "SLURM has requeued it too often (MaxBatchRequeue), and holds it",
     "an administrator releases it: scontrol release {job}"),
    (r".*user.env.retrieval.failed", "SLURM could not load the environment of its user, and holds it", "scontrol release {job}"),
    (r".*special.exit.state", "it was requeued on hold (RequeueExitHold)", "scontrol release {job}"),
    (r".*launch.failed.requeued.held", "SLURM could not launch it, and holds it", "scontrol release {job}"),
    (r".*requeued.in.held.state", "it was requeued on hold", "scontrol release {job}"),
    (r".*held", "it is held", "scontrol release {job}"),
    ("DependencyNeverSatisfied", "a job that it depends on did not end as it should",
     "launcher cancel {run}, then submit it without that dependency"),
    ("PartitionDown", "its {where} is down", "an administrator sets the partition up, or submit it to another"),
    ("PartitionInactive", "its {where} starts no jobs", "an administrator sets the partition up, or submit it to another"),
    ("PartitionNodeLimit", "it asks for more or fewer nodes than its {where} allows", _LOWER),
    ("PartitionTimeLimit", "it asks for more time than its {where} allows", _LOWER),
    ("BadConstraints", "no node has what it asks for (features, GPUs, memory, hosts)",
     "launcher cancel {run}, then correct the slurm section and submit it again"),
    ("ReqNodeNotAvail|.*(DOWN|DRAINED|UnavailableNodes)", "nodes that it needs{nodes} are down, drained or reserved",
     "an administrator returns them to service (sinfo -R says why), or submit it for other nodes"),
    ("NodeDown", "a node that it needs is down", "an administrator returns it to service (sinfo -R says why)"),
    ("ReservationDeleted", "its reservation was deleted", "launcher cancel {run}, then submit it without the reservation"),
    ("Reservation$", "its reservation{reservation} has not begun", "it starts when that begins: scontrol show reservation{reservation}"),
    ("AccountNotAllowed|InvalidAccount", "its account may not use the partition, or does not exist",
     "launcher cancel {run}, then submit it with another slurm.account"),
    ("QOSNotAllowed|InvalidQOS", "its QOS may not be used there, or does not exist",
     "launcher cancel {run}, then submit it with another slurm.qos"),
    (r"(Assoc|QOS)(Max|Min)\w*(PerJob|WallDuration\w*|PerNode|PerJobLimit|MinCpu\w*|MinGRES)", "it exceeds a limit of {whom} for each job",
     _LOWER),
    (r"(Assoc|QOS)\w*", "{whom} has reached a limit ({reason})",
     "other jobs under this limit end; a limit of 0, or one below this job's size, never lets it start"),
    ("MaxMemPerLimit", "it asks for more memory than the site allows", _LOWER),
)  # fmt: skip
_WHOM = {"A": "its account", "Q": "its QOS"}


def pending_reason(
    reason: str, run: str, job: str, *, partition: str = "", reservation: str = "", nodes: str = ""
) -> PendingReason | None:
    """Return what keeps the job from starting; None where it only waits for its turn, or for a job that is still at work."""
    for pattern, means, ends in _TABLE:
        if re.match(pattern, reason, re.IGNORECASE):
            whom = _WHOM.get(reason[:1], "its account")
            name = f" {reservation}" if reservation else ""
            named = f" ({nodes})" if nodes else ""
            where = f"partition {partition}" if partition else "partition"
            return PendingReason(
                means.format(whom=whom, reason=reason, where=where, reservation=name, nodes=named),
                ends.format(run=run, job=job, reservation=name),
            )
    return None
