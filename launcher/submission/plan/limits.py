"""Compare a job with its partition before it is queued. Pure.

What the partition's nodes do not have is an error. A limit on time or nodes is a warning: a QOS may lift it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.config.document.schema import Job
from launcher.config.document.validation import suggestion
from launcher.errors import ConfigError
from launcher.run.spec import RunSpec
from launcher.run.units import plural
from launcher.slurm.site import Partition

_ROUNDED_GB = 0.05
"""The most by which a partition's memory differs from that of its nodes: all of a node's memory may be asked for."""


def check_limits(job: Job, spec: RunSpec, partition: Partition | None) -> None:
    """Raise ConfigError, with all problems at once, when no node of ``partition`` could ever take one of this job's tasks."""
    if partition is None:
        return
    cpus, total = spec.tasks_per_node * spec.cpus_per_task, spec.smallest_allocation
    nodes = f"the nodes of partition {partition.name} have"
    most_gpus = f"at most {partition.gpus_per_node}" if partition.gpus_per_node else "none"
    asked = f"{spec.tasks_per_node} x {spec.cpus_per_task} = {cpus} CPUs a node"
    checks = (
        (0 < partition.nodes < total, "nodes", f"{total} nodes (spares included)",
         f"partition {partition.name} has {partition.nodes}"),
        (0 < partition.cpus_per_node < cpus, "cpus_per_task", asked, f"{nodes} at most {partition.cpus_per_node}"),
        (partition.nodes and spec.gpus_per_node > partition.gpus_per_node and not job.slurm.gres, "gpus_per_node",
         f"{spec.gpus_per_node} GPUs a node", f"{nodes} {most_gpus}"),
        (0 < partition.mem_gb_per_node < (spec.mem_gb or 0) - _ROUNDED_GB, "mem_gb", f"{spec.mem_gb:g} GB" if spec.mem_gb else "",
         f"{nodes} at most {partition.mem_gb_per_node:g}"),
    )  # fmt: skip
    problems = [
        f"resources.{key}: the job asks for {wanted}, {there}" for exceeds, key, wanted, there in checks if exceeds
    ]
    if problems:
        raise ConfigError(problems)


def unknown_partitions(wanted: str | None, shown: Sequence[str]) -> Iterator[str]:
    """Yield the names in ``wanted`` that no partition has; a warning, as some sites hide partitions."""
    for name in (wanted or "").split(","):
        if name and shown and name not in shown:
            yield f"SLURM shows no partition {name}{suggestion(name, shown)}"


def limit_warnings(spec: RunSpec, partition: Partition | None) -> Iterator[str]:
    """Yield what would keep the job in the queue unless a QOS or an administrator lifts it."""
    if partition is None:
        return
    where, total = f"partition {partition.name}", spec.smallest_allocation
    if not partition.up:
        yield f"{where} is down: the job waits until it is up"
    if partition.max_time_s is not None and spec.timeout_min * 60 > partition.max_time_s:
        most = int(partition.max_time_s // 60)
        allowed = f"{where} allows {most // 60}:{most % 60:02d}:00 and the job asks for more"
        yield f"{allowed}: lower resources.timeout_min to {most}, or it may never start"
    if partition.max_nodes is not None and total > partition.max_nodes:
        yield f"{where} allows {plural(partition.max_nodes, 'node')} a job and the job asks for {total}: it may never start"
    if total > partition.usable_nodes > 0:
        yield f"only {plural(partition.usable_nodes, 'node')} of {where} can be used now"
