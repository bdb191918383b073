"""A pending run that SLURM finds no hosts for, while the launcher excludes some."""

from __future__ import annotations

import re

from launcher.frozen import frozen
from launcher.node.allocation.exclusions import excluded_before
from launcher.report.model.history import History, as_text
from launcher.report.model.summary import RunSummary
from launcher.run.events import Excluded, Requeued, RunSubmitted
from launcher.run.units import short_list

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
    """None where the run does not wait for hosts, or the launcher excludes none."""
    requeued = h.last(Requeued, RunSubmitted)
    if s.state != "pending" or not _NO_HOSTS.search(s.reason) or not isinstance(requeued, Requeued):
        return None
    hosts = [host for host, counts in excluded_before(h.events, requeued.t).items() if counts]
    if not hosts:
        return None
    whys = {host: e.why or "" for e in h.of(Excluded) for host in e.hosts}
    named = short_list([f"{host} ({whys[host]})" for host in hosts])
    sentence = f"SLURM finds no hosts for the job ({s.reason}), and the launcher excludes {named}."
    return KeptOff(sentence, f"scontrol update JobId={s.job_id} ExcNodeList={job_option(h, 'exclude')}")


def job_option(h: History, name: str) -> str:
    """A text of the ``slurm`` section of the run's job file; "" where there is none."""
    from launcher.config.load.site_profile import read_document

    slurm = (read_document(h.paths.job).data or {}).get("slurm")
    return as_text(slurm.get(name)) if isinstance(slurm, dict) else ""
