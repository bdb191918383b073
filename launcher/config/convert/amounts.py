"""Convert what an sbatch script requests: nodes, workers, GPUs, CPUs, memory and time."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass

from launcher.config.convert.directives import node_range, smallest_count
from launcher.config.convert.draft import Draft
from launcher.config.convert.launch import Launch
from launcher.config.document.clock_times import minutes
from launcher.config.document.schema import Restart
from launcher.gres import read_gpus
from launcher.hosts import hosts_or_none


@dataclass
class Amounts:
    """Amounts per node, as far as the directives tell."""

    nodes: int = 1
    """Of a range the smallest."""
    node_range: str = ""
    """``2-4``; "" for a number."""
    slurm_tasks: int = 1
    """SLURM's tasks per node; they are workers only where srun starts one each."""
    gpus: int = 0
    gres: str = ""
    """All that --gres requests, or the type of GPU in its form; "" for a number of GPUs alone."""
    cpus_per_slurm_task: int | None = None


def read_amounts(given: dict[str, str]) -> Amounts:
    """Read ``--nodes``, ``--ntasks`` and the options that request GPUs."""
    per_node, total = smallest_count(given.get("ntasks-per-node")), smallest_count(given.get("ntasks"))
    nodes = smallest_count(given.get("nodes")) or len(hosts_or_none(given.get("nodelist", "")) or [])
    if not nodes:
        nodes = math.ceil(total / per_node) if total and per_node else 1
    result = Amounts(nodes, node_range(given.get("nodes", "")), _tasks(given, nodes) or 1)
    result.cpus_per_slurm_task = smallest_count(given.get("cpus-per-task"))
    scales = {"gpus-per-node": 1.0, "gres": 1.0, "gpus-per-task": float(result.slurm_tasks), "gpus": 1 / nodes}
    kind = ""
    for option, scale in scales.items():
        kind, count = next(iter(read_gpus(given.get(option, ""), named=option == "gres")), ("", 0))
        if count:
            result.gpus = math.ceil(count * scale)
            break
    entry = f"gpu:{kind}:{result.gpus}" if kind else f"gpu:{result.gpus}" if result.gpus else ""
    others = [part for part in given.get("gres", "").split(",") if part and not read_gpus(part)]
    result.gres = ",".join([entry, *others] if entry else others) if others or kind else ""
    return result


def _tasks(given: dict[str, str], nodes: int) -> int | None:
    """Return SLURM's tasks per node; None where the options do not tell."""
    total = smallest_count(given.get("ntasks"))
    return smallest_count(given.get("ntasks-per-node")) or (math.ceil(total / nodes) if total else None)


def put_resources(draft: Draft, given: dict[str, str], launch: Launch | None, has: Amounts) -> None:
    """Write the ``resources`` section, and ``slurm.gres`` where the script requests more than a number of GPUs."""
    workers = _workers(launch, has)
    draft.put("resources.nodes", has.node_range or has.nodes)
    if has.gpus:
        draft.put("resources.gpus_per_node", has.gpus)
    if has.gres:
        draft.put("slurm.gres", has.gres)
    if workers != max(has.gpus, 1):
        said = "the default is one per GPU" if has.gpus else ""
        if workers > has.gpus > 0:
            draft.put("distributed.backend", "gloo", "there are more workers than GPUs, which NCCL refuses")
        draft.put("resources.tasks_per_node", workers, said)
    per_gpu = smallest_count(given.get("cpus-per-gpu"))
    cpus = (has.cpus_per_slurm_task or 0) * has.slurm_tasks or (per_gpu or 0) * has.gpus
    if not cpus and has.slurm_tasks > workers:  # SLURM gives a task one CPU
        cpus = has.slurm_tasks
    if cpus:
        draft.put("resources.cpus_per_task", max(cpus // workers, 1))
    put_memory(draft, given, has, cpus)
    put_time_limit(draft, given.get("time", ""))


def _workers(launch: Launch | None, has: Amounts) -> int:
    """Return the workers per node."""
    if launch is None:
        return max(has.gpus, has.slurm_tasks, 1)
    if launch.kind == "srun":
        return _tasks(launch.srun, has.nodes) or has.slurm_tasks
    if launch.kind == "python":
        return 1
    settings = launch.settings
    if launch.kind == "accelerate":
        total = smallest_count(settings.get("num-processes"))
        wanted = total and max(total // has.nodes, 1)
    else:
        wanted = smallest_count(
            settings.get("nproc-per-node", "1") if launch.kind == "torchrun" else settings.get("num-gpus")
        )
    return wanted or max(has.gpus, 1)


_UNITS = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0}


def put_memory(draft: Draft, given: dict[str, str], has: Amounts, cpus: int) -> None:
    """Convert ``--mem`` and its kin."""
    scales = {"mem": 1, "mem-per-cpu": cpus or has.slurm_tasks, "mem-per-gpu": has.gpus}
    for option, scale in scales.items():
        found = re.fullmatch(r"(\d{1,12})([KMGT])?B?", given.get(option, "").upper())
        if not found:
            if given.get(option):
                draft.leave(f"--{option}={given[option]}: set resources.mem_gb.")
            continue
        value = int(found[1]) * _UNITS[found[2] or "M"] * scale
        if value:  # never more than was asked for: that may be all that a node has
            draft.put(
                "resources.mem_gb", int(value) if value == int(value) else max(math.floor(value * 100) / 100, 0.01)
            )
        else:
            draft.leave(f"--{option}=0 (all memory of a node): set resources.mem_gb, or slurm.exclusive: true.")


def put_time_limit(draft: Draft, text: str) -> None:
    """Convert ``--time``: a clock time stays as it is written, ``minutes:seconds`` becomes minutes."""
    if found := re.fullmatch(r"(\d{1,9}):(\d{1,9})", text):
        draft.put("resources.timeout_min", max(int(found[1]) + (int(found[2]) > 0), 1))
        put_total(draft)
        return
    try:
        value = minutes(text)
    except ValueError:
        if text:
            draft.leave(f"--time={text}: set resources.timeout_min.")
        return
    if text.isdigit():
        draft.put("resources.timeout_min", int(text))
    else:
        draft.put("resources.timeout_min", text, f"{value} minutes")
    put_total(draft)


def put_total(draft: Draft) -> None:
    """Set the limit of all attempts where the time limit of one is above its default."""
    with contextlib.suppress(ValueError):
        limit_min = minutes(draft.values.get("resources.timeout_min"))
        if isinstance(limit_min, int) and limit_min > Restart().max_total_hours * 60:
            draft.put("restart.max_total_hours", math.ceil(limit_min / 60), "of all attempts together")
