"""A pending run that SLURM finds no hosts for, while the launcher keeps it off some."""

from __future__ import annotations

import re

from launcher.frozen import frozen
from launcher.node.allocation.exclusions import excluded_before
from launcher.report import formats
from launcher.report.model.history import History, as_list, as_text
from launcher.report.model.summary import RunSummary

__all__ = ["KeptOff", "kept_off"]

_NO_HOSTS = re.compile(r"BadConstraints|ReqNodeNotAvail|Nodes.required.for.job", re.IGNORECASE)
"""SLURM's Reasons for a job that the hosts it may use cannot start."""


@frozen
class KeptOff:
    """The launcher's part in a job's waiting."""

    sentence: str
    """Which hosts the job is kept off, and why."""
    command: str
    """What lets SLURM use them."""


def kept_off(h: History, s: RunSummary) -> KeptOff | None:
    """None where the run does not wait for hosts, or the launcher keeps it off none."""
    requeued = h.last("requeued", "submitted") or {}
    if s.state != "pending" or not _NO_HOSTS.search(s.reason) or requeued.get("type") != "requeued":
        return None
    hosts = [host for host, counts in excluded_before(h.events, requeued["t"]).items() if counts]
    if not hosts:
        return None
    whys = {str(host): as_text(e.get("why")) for e in h.of("excluded") for host in as_list(e.get("hosts"))}
    named = formats.short_list([f"{host} ({whys[host]})" for host in hosts])
    sentence = f"SLURM finds no hosts for the job ({s.reason}), and the launcher keeps it off {named}."
    return KeptOff(sentence, f"scontrol update JobId={s.job_id} ExcNodeList={_users(h)}")


def _users(h: History) -> str:
    """What the user excludes."""
    from launcher.config.load.site_profile import read_document

    slurm = (read_document(h.paths.job).data or {}).get("slurm")
    return as_text(slurm.get("exclude")) if isinstance(slurm, dict) else ""
