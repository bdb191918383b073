"""Counts the processes that the kernel killed for memory. Only root may read its log, so counters are read."""

from __future__ import annotations

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


def _counters(root: Path) -> list[Path]:
    found = []
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        groups = []
    for line in groups:
        number, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if number == "0":
            found += [root / mount / inside / "memory.events" for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified")]
        elif "memory" in controllers.split(","):
            found.append(root / "sys/fs/cgroup/memory" / inside / "memory.oom_control")
    return [*found, root / "proc/vmstat"]
