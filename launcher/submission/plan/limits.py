"""What a partition can never give, or will not now: said before the queue. Pure.

What its nodes do not have is an error. A limit on time or nodes is a warning: a QOS may lift it, and SLURM alone knows.
"""

from __future__ import annotations

from launcher.config.document.schema import Job
from launcher.errors import ConfigError
from launcher.run.spec import RunSpec
from launcher.slurm.site import Partition

__all__ = ["check", "warnings"]


def check(job: Job, spec: RunSpec, partition: Partition | None) -> None:
    """Raise ConfigError, all problems at once, when no node of ``partition`` could ever take one of this job's tasks."""
    if partition is None:
        return
    where = f"partition {partition.name}"
    cpus = spec.tasks_per_node * spec.cpus_per_task
    total = spec.nodes + spec.spare_nodes
    problems = []
    if partition.nodes and total > partition.nodes:
        problems.append(
            f"resources.nodes: {total} nodes (spares included) are asked for, {where} has {partition.nodes}"
        )
    if partition.cpus_per_node and cpus > partition.cpus_per_node:
        problems.append(
            f"resources.cpus_per_task: {spec.tasks_per_node} x {spec.cpus_per_task} = {cpus} CPUs a node are asked for, "
            f"the nodes of {where} have at most {partition.cpus_per_node}"
        )
    if partition.nodes and spec.gpus_per_node > partition.gpus_per_node and not job.slurm.gres:
        has = f"at most {partition.gpus_per_node}" if partition.gpus_per_node else "none"
        problems.append(f"resources.gpus_per_node: {spec.gpus_per_node} are asked for, the nodes of {where} have {has}")
    if spec.mem_gb and partition.mem_gb_per_node and spec.mem_gb > partition.mem_gb_per_node:
        problems.append(
            f"resources.mem_gb: {spec.mem_gb:g} GB are asked for, the nodes of {where} have at most "
            f"{partition.mem_gb_per_node:g}"
        )
    if problems:
        raise ConfigError(problems)


def warnings(spec: RunSpec, partition: Partition | None) -> list[str]:
    """What would keep the job waiting unless a QOS or an administrator lifts it."""
    if partition is None:
        return []
    said = []
    if not partition.up:
        said.append(f"partition {partition.name} is not up: the job would wait until it is")
    if partition.max_time_s is not None and spec.timeout_min * 60 > partition.max_time_s:
        most = int(partition.max_time_s // 60)
        said.append(
            f"partition {partition.name} allows {most // 60}:{most % 60:02d}:00, the job asks for more: it may wait for ever"
        )
    total = spec.nodes + spec.spare_nodes
    if partition.max_nodes is not None and total > partition.max_nodes:
        said.append(f"partition {partition.name} allows {partition.max_nodes} nodes a job, this one asks for {total}")
    if total > partition.usable_nodes > 0:
        said.append(f"only {partition.usable_nodes} nodes of partition {partition.name} are usable now")
    return said
