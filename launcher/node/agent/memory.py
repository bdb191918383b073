"""Counts the processes that the kernel killed for memory. Only root may read its log, so counters are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def kills(root: Path = Path("/")) -> int:
    """Return how many processes were killed for memory so far, in this process's cgroup, or else on the machine.

    cgroup v2 counts in ``memory.events``, v1 in ``memory.oom_control``; ``root`` is where proc and sys lie.
    """
    for path in _counters(root):
        try:
            counts = dict(line.partition(" ")[::2] for line in path.read_text().splitlines())
            return int(counts["oom_kill"])
        except (OSError, KeyError, ValueError):
            continue
    return 0


def _counters(root: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            if number == "0":
                yield root / "sys/fs/cgroup" / inside / "memory.events"
                yield root / "sys/fs/cgroup/unified" / inside / "memory.events"
            elif "memory" in controllers.split(","):
                yield root / "sys/fs/cgroup/memory" / inside / "memory.oom_control"
    yield root / "proc/vmstat"
