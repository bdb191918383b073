"""Chooses the CPUs of each worker: whole cores of one NUMA node, where they fit, and of the one at which its GPU is."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from launcher.run.units import whole_number

_CPUS = Path("/sys/devices/system/cpu")
Place = tuple[int, int, int, int]
"""NUMA node, socket, core and number of a CPU."""


@functools.cache
def cpu_place(cpu: int, cpus: Path = _CPUS) -> Place:
    """Return where a CPU is. Linux numbers the second threads of all cores after the first ones: by number, they are cores far apart."""
    folder = cpus / f"cpu{cpu}"
    socket, core = (_number(folder / "topology" / name) for name in ("physical_package_id", "core_id"))
    nodes = [int(entry.name[4:]) for entry in folder.glob("node[0-9]*")]
    return min(nodes, default=0), socket or 0, cpu if core is None else core, cpu


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def cpu_shares(
    allowed: Collection[int],
    online: int,
    environ: Mapping[str, str],
    *,
    workers: int,
    cpus_per_task: int,
    gpu_nodes: Sequence[int] = (),
    place: Callable[[int], Place] = cpu_place,
) -> list[list[int]] | None:
    """Return the CPUs of each worker; None: the kernel chooses.

    Workers are bound only inside what is certainly this job's: SLURM confined this task to fewer CPUs than there are, or
    gave it the whole node. Without task/affinity or task/cgroup every job sees all CPUs, and two jobs that both bound
    themselves to the first ones would share them. ``gpu_nodes``: the NUMA node of each GPU, -1 where it is not known; workers get
    CPUs in the order of their GPUs' nodes (``torchrun --numa-binding`` chooses by the same; it gains 1 to 10 %, say torch's pages).
    """
    granted = environ.get("SLURM_CPUS_ON_NODE", "")
    ours = len(allowed) < online or whole_number(granted) == online
    if not ours or workers * cpus_per_task > len(allowed):
        return None
    each = len(allowed) // workers
    ordered = sorted(allowed, key=place)
    near = [gpu_nodes[worker % len(gpu_nodes)] if gpu_nodes else -1 for worker in range(workers)]
    served = sorted(range(workers), key=lambda worker: near[worker] if min(near) >= 0 else 0)
    shares = {worker: ordered[i * each : (i + 1) * each] for i, worker in enumerate(served)}
    return [shares[worker] for worker in range(workers)]
