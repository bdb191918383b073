"""What NVML says of GPUs at work: use, memory and power in samples, status, watch and report."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from figures import Figure, holds
from machine import Machine, MissingError
from runs import JOBS, Run

from launcher.report.live.feed import LiveFeed
from launcher.report.live.screen import detail_screen
from launcher.run.files import read_lines

BUSY_S = 25.0


def run(machine: Machine) -> Iterator[Figure]:
    """Keep the GPUs busy for some seconds and look at what was recorded."""
    job = {
        "function": "busy:main",
        "params": {"seconds": machine.pick(BUSY_S, 12.0)},
        "code": {"dir": str(JOBS)},
        "resources": machine.resources(),
    }
    one = Run(machine.folder, "busy", job)
    try:
        one.until("a rank's figures", lambda: any(r.get("cpu_percent") for r in one.state().get("ranks", [])))
        watched = "\n".join(line.plain for line in detail_screen(LiveFeed().detail(one.paths, time.time()), 0, 120, 40))
        one.end()
        ranks = [rank for line in read_lines(one.paths.samples) for rank in line["ranks"]]
        yield holds("a rank's use of CPUs is recorded", any(rank.get("cpu_percent") for rank in ranks))
        one.command("report", one.paths.root.name, "-o", "page.html")
        page = (one.home / "page.html").read_text()
        if not machine.gpus:
            raise MissingError("no GPU: what NVML answers is tested with a library in its place")
        for key, unit, goal in (("gpu_percent", "%", 50), ("gpu_mem_bytes", "bytes", 2**30), ("gpu_power_w", "W", 100)):
            values = [rank[key] for rank in ranks if rank.get(key) is not None]
            middle = float(statistics.median(values)) if values else 0.0
            yield Figure(f"{key}, median of {len(values)} samples", middle, unit, f"above {goal}", middle > goal)
        yield holds("watch shows use and memory", "GPU MEM" in watched)
        yield holds(
            "the report draws use, memory and power",
            all(name in page for name in ("GPU use", "GPU memory", "GPU power")),
        )
    finally:
        one.discard()
