"""The text of a site profile, from what SLURM said. Pure."""

from __future__ import annotations

import json

from launcher.report.site.findings import Saves
from launcher.slurm.site import Site

_DEBUG_NAMES = ("debug", "test", "dev", "devel", "interactive", "short")


def site_profile(site: Site, partition: str | None, saves: Saves | None) -> str:
    """YAML that `launcher.config.load.site_profile` reads; comments say where each line comes from."""
    lines = [
        f"# Site profile of {site.cluster or 'this cluster'} (SLURM {site.version}), written by launcher doctor --write-site.",
        "# Defaults of every job; a job file and the command line override them.",
        "",
        f"# select/{site.select_type}",
        f"gpu_request: {site.gpu_request}",
    ]
    if debug := _debug_partition(site):
        lines += ["# for launcher dry-run --slurm", f"debug_partition: {json.dumps(debug)}"]
    lines += ["# where runs are kept, on a file system that compute nodes see", "# runs_dir: $HOME/runs"]
    chosen = site.partition(partition) or site.partition(None) or next((p for p in site.partitions if p.up), None)
    if chosen and (chosen.name == partition or not chosen.default):
        lines += ["slurm:", f"  partition: {json.dumps(chosen.name)}"]
    if saves and saves.worst_s > 60:
        lines += [f"# saves took up to {saves.worst_s:.0f} s", "restart:", f"  signal_lead_s: {saves.lead_s}"]
    return "\n".join(lines) + "\n"


def _debug_partition(site: Site) -> str | None:
    """Return the partition for tests: by its name, and the one with the shortest time limit."""
    named = [p for p in site.partitions if p.up and p.name.lower().startswith(_DEBUG_NAMES)]
    return min(named, key=lambda p: p.max_time_s or float("inf")).name if named else None
