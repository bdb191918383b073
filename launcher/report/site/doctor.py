"""What a site allows and what it means for this user's runs: from facts to findings, pure."""

from __future__ import annotations

import textwrap
from dataclasses import field
from typing import Any

from launcher.frozen import frozen
from launcher.node.allocation.allocation import usable_s
from launcher.node.wire.messages import SILENCE_S
from launcher.report.formats import duration
from launcher.run.spec import SiteSpec
from launcher.run.units import size
from launcher.slurm.probe import Look, ProbeResult
from launcher.slurm.site import Partition, Presence, Site, policy

__all__ = ["Diagnosis", "Facts", "Finding", "Place", "Saves", "examine", "render"]

OLDEST = (20, 11)
_MOST_PARTITIONS = 10
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "ramfs")


@frozen
class Finding:
    """One line: ``level`` is "ok", "note", "warning" or "problem" (jobs will not work)."""

    level: str
    topic: str
    text: str


@frozen(kw_only=True)
class Saves:
    """How long this user's runs took to save, seconds."""

    count: int
    typical_s: float
    worst_s: float
    worst_run: str = ""


@frozen(kw_only=True)
class Place:
    """Where runs will lie."""

    shown: str
    writable: bool = True
    free_bytes: int | None = None
    filesystem: str = ""
    """As mount calls it, e.g. nfs4, ext4."""


@frozen(kw_only=True)
class Facts:
    """Everything a diagnosis depends on."""

    presence: Presence
    site: Site | None = None
    silence: str = ""
    """Why `site` is None although SLURM is here."""
    partition: str | None = None
    """The one asked for, or the site profile's; None: the default one."""
    qos: str | None = None
    gpu_request: str = "gpus-per-node"
    """The site profile's."""
    python: str = ""
    python_origin: str = ""
    look: Look = field(default_factory=Look)
    place: Place = field(default_factory=lambda: Place(shown="runs"))
    saves: Saves | None = None
    probe: ProbeResult | None = None
    signal_lead_s: int = 120
    """The site profile's."""
    debug_detail: bool = False


@frozen(kw_only=True)
class Diagnosis:
    """What was found."""

    headline: str
    works: bool
    findings: tuple[Finding, ...]
    policy: SiteSpec = field(default_factory=SiteSpec)

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        findings = [{"level": f.level, "topic": f.topic, "text": f.text} for f in self.findings]
        return {"works": self.works, "headline": self.headline, "findings": findings}


def examine(facts: Facts) -> Diagnosis:
    """All findings, in the order in which they are read."""
    findings = [_presence(facts)]
    spec = SiteSpec()
    site, part = facts.site, None
    if site is not None:
        part = site.partition(facts.partition)
        spec = policy(site, facts.partition, facts.qos)
        findings += [*_version(site), *_partitions(site, facts, part), *_gpus(site, facts, part)]
        where = f"QOS {facts.qos or 'normal'}" if site.preempt_type == "qos" else part.name if part else "this cluster"
        findings += [*_preemption(site, where, spec), *_saves(facts, spec), *_requeue(site, spec), *_limits(site)]
    findings += [*_python(facts, part), *_place(facts), *_probe(facts)]
    bad = [f for f in findings if f.level == "problem"]
    return Diagnosis(headline=_headline(facts, bad), works=not bad, findings=tuple(findings), policy=spec)


def _headline(facts: Facts, bad: list[Finding]) -> str:
    if facts.presence.state == "none":
        return "no SLURM here: " + ("jobs run on this machine" if not bad else "and jobs will not run here either")
    name = f"SLURM {facts.site.version} on {facts.site.cluster}" if facts.site else "SLURM"
    return f"{name}: " + (
        "jobs will work" if not bad else f"jobs will not work ({len(bad)} problem{'s' * (len(bad) > 1)})"
    )


def _presence(facts: Facts) -> Finding:
    if facts.presence.state == "traces":
        return Finding("problem", "slurm", facts.presence.reason)
    if facts.presence.state == "ready" and facts.site is None:
        return Finding("problem", "slurm", facts.silence or "SLURM does not answer.")
    return Finding("ok", "slurm", facts.presence.reason)


def _version(site: Site) -> list[Finding]:
    if site.numbers < OLDEST:
        return [
            Finding(
                "warning", "version", f"SLURM {site.version} is older than {OLDEST[0]}.{OLDEST[1]}, the oldest tried."
            )
        ]
    if site.numbers >= (22, 5):
        text = "srun does not inherit --cpus-per-task here (22.05 and later): the launcher passes it."
    else:
        text = "srun inherits --cpus-per-task; the launcher passes it all the same."
    return [Finding("ok", "srun", text)]


def _partitions(site: Site, facts: Facts, part: Partition | None) -> list[Finding]:
    shown = [p for p in site.partitions if p == part]
    shown += [p for p in site.partitions if p != part][: _MOST_PARTITIONS - len(shown)]
    out = [Finding("ok", "partition", _in_words(p)) for p in shown]
    if len(shown) < len(site.partitions):
        out.append(Finding("ok", "partition", f"and {len(site.partitions) - len(shown)} more"))
    if not site.partitions:
        return [Finding("problem", "partition", "No partition is open to you.")]
    if part is None and facts.partition:
        names = ", ".join(p.name for p in site.partitions)
        return [*out, Finding("problem", "partition", f"There is no partition {facts.partition}; there are {names}.")]
    if part is None:
        return [*out, Finding("warning", "partition", "There is no default partition: jobs must say slurm.partition.")]
    if not part.up:
        out.append(Finding("problem", "partition", f"{part.name} does not start jobs: its state is not UP."))
    elif not part.usable_nodes:
        out.append(Finding("problem", "partition", f"No node of {part.name} is in service."))
    elif part.usable_nodes < part.nodes:
        down = part.nodes - part.usable_nodes
        out.append(Finding("note", "nodes", f"{down} of {part.name}'s {part.nodes} nodes {_are(down)} out of service."))
    for key, value in (("accounts", part.allow_accounts), ("groups", part.allow_groups), ("QOS", part.allow_qos)):
        if value not in ("ALL", "", "(null)"):
            out.append(Finding("note", "access", f"{part.name} is for {key} {value.replace(',', ', ')} alone."))
    if part.default_time_s and part.max_time_s and part.default_time_s < part.max_time_s:
        out.append(
            Finding(
                "ok", "limit", f"{part.name} ends jobs after {duration(part.max_time_s)} at the latest; runs go on."
            )
        )
    return out


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _in_words(p: Partition) -> str:
    gpus = ""
    if p.gpus_per_node:
        kind = f" {'/'.join(p.gpu_types)}" if p.gpu_types else ""
        some = f" on {p.gpu_nodes} of them" if p.gpu_nodes < p.nodes else ""
        gpus = f", {p.gpus_per_node}{kind} GPU{'s' * (p.gpus_per_node > 1)}{some}"
    nodes = f"{p.nodes} node{'s' * (p.nodes != 1)}"
    limit = duration(p.max_time_s) if p.max_time_s else "none"
    most = f", at most {p.max_nodes} node{'s' * (p.max_nodes != 1)} a job" if p.max_nodes else ""
    mark = " (default)" if p.default else ""
    return (
        f"{p.name}{mark}: {nodes} of {p.cpus_per_node} CPUs, {p.mem_gb_per_node:g} GB{gpus}; time limit {limit}{most}"
    )


def _gpus(site: Site, facts: Facts, part: Partition | None) -> list[Finding]:
    out = []
    if not any(p.gpus_per_node for p in site.partitions):
        out.append(Finding("note", "gpus", "SLURM knows of no GPUs here: jobs train on CPUs, with gloo."))
    else:
        how = "--gpus-per-node" if site.gpu_request == "gpus-per-node" else f"--gres=gpu:N (select/{site.select_type})"
        out.append(Finding("ok", "gpus", f"GPUs are asked for by {how}."))
        if site.gpu_request == "gres" != facts.gpu_request:
            out.append(Finding("warning", "gpus", "Set gpu_request: gres in the site profile (--write-site does)."))
        if part and not part.gpus_per_node:
            names = ", ".join(p.name for p in site.partitions if p.gpus_per_node)
            out.append(
                Finding("note", "gpus", f"{part.name} has none; {names} {_are(names.count(',') + 1)} where they are.")
            )
    if site.memory_is_allocated:
        out.append(Finding("ok", "memory", "Memory is allocated: resources.mem_gb, or the site's default per CPU."))
    return out


def _preemption(site: Site, where: str, spec: SiteSpec) -> list[Finding]:
    kill = f"KILL follows {spec.kill_wait_s} s after TERM"
    if spec.preempt_mode == "OFF":
        return [Finding("ok", "preemption", f"Jobs of {where} are not preempted; at the time limit {kill}.")]
    if spec.preempt_mode in ("SUSPEND", "GANG"):
        text = (
            f"Preempted jobs of {where} are suspended, memory and all, not ended. A suspension longer than "
            "distributed.collective_timeout_min ends the workers' round; they start again from the last checkpoint."
        )
        return [Finding("warning", "preemption", text)]
    first = "USR2" if site.send_user_signal else "TERM"
    grace = (
        f"{first}, {spec.grace_s} s of grace, then TERM; {kill}"
        if spec.grace_s
        else f"{first} without grace; {kill}, and that is all the warning there is"
    )
    out = [Finding("ok", "preemption", f"Preempted jobs of {where} get {grace}.")]
    if spec.preempt_mode == "CANCEL":
        how = "requeues them itself" if spec.requeue_allowed else "submits a continuation"
        text = f"Preempted jobs are cancelled, not requeued: the launcher {how}."
        out.append(Finding("note", "preemption", text))
    if site.send_user_signal:
        out.append(Finding("ok", "signal", "Preemption sends USR2 instead of TERM (send_user_signal): understood."))
    return out


def _saves(facts: Facts, spec: SiteSpec) -> list[Finding]:
    saves = facts.saves
    if saves is None:
        return [Finding("note", "saving", "No save of yours has been measured yet: launcher dry-run measures one.")]
    took = f"Your saves took {duration(saves.typical_s)}, at worst {duration(saves.worst_s)} ({saves.count} measured)"
    out = []
    if spec.preempt_mode not in ("OFF", "SUSPEND", "GANG"):
        whole = float(spec.grace_s + spec.kill_wait_s)
        room = usable_s(whole)
        named = f"a {spec.grace_s} s grace" if spec.grace_s else f"the {spec.kill_wait_s} s between TERM and KILL"
        if saves.worst_s > room:
            text = (
                f"Your {duration(saves.worst_s)} save does not fit {named}: a preemption costs the work since the last "
                "checkpoint. Save more often (checkpoint.interval_min), or less state."
            )
            out.append(Finding("warning", "saving", text))
        else:
            out.append(Finding("ok", "saving", f"{took}: that fits the {duration(whole)} between TERM and KILL."))
    else:
        out.append(Finding("ok", "saving", f"{took}."))
    if saves.worst_s > 0.5 * facts.signal_lead_s:
        lead = int(-(-2 * saves.worst_s // 30) * 30)
        text = f"Set restart.signal_lead_s to {lead}: at the time limit saving begins {facts.signal_lead_s} s before the end."
        out.append(Finding("warning", "saving", text))
    return out


def _requeue(site: Site, spec: SiteSpec) -> list[Finding]:
    if not spec.requeue_allowed:
        text = "Requeueing is off (JobRequeue=0): a run goes on as another job, with another job id."
        return [Finding("note", "requeue", text)]
    lead = "6 s, as there is an epilog" if spec.has_epilog else "2 s"
    text = f"A requeued job waits {site.requeue_delay_s} s; the launcher pulls its start forward to {lead}."
    return [Finding("ok", "requeue", text)]


def _limits(site: Site) -> list[Finding]:
    out = [
        Finding(
            "ok", "dead nodes", f"SLURM notices after {site.slurmd_timeout_s} s, the launcher after {SILENCE_S:.0f} s."
        ),
        Finding("ok", "arrays", f"Sweeps of more than {site.max_array_size:,} points are split (MaxArraySize)."),
    ]
    if site.accounting == "none":
        text = (
            f"There is none: SLURM forgets how a job ended {site.min_job_age_s} s later; the run's own files remember."
        )
        out.append(Finding("note", "accounting", text))
    else:
        out.append(Finding("ok", "accounting", f"sacct answers ({site.accounting})."))
    if any(word in site.enforces for word in ("associations", "limits", "qos", "safe")):
        out.append(Finding("note", "accounting", "Jobs need a valid account: slurm.account, or your default one."))
    if site.submit_plugins:
        text = f"A script of the site's ({site.submit_plugins}) may change or refuse jobs when they are submitted."
        out.append(Finding("note", "plugins", text))
    return out


def _python(facts: Facts, part: Partition | None) -> list[Finding]:
    look, who = facts.look, facts.python
    if look.error:
        return [Finding("problem", "python", f"{who} cannot be used: {look.error}")]
    if not look.torch:
        text = f"{who} ({look.python}) has no torch: activate your environment, or name it in environment.python."
        return [Finding("problem", "python", text)]
    built = f"CUDA {look.cuda}" if look.cuda else "no CUDA"
    nccl = f", NCCL {look.nccl}" if look.nccl else ""
    out = [Finding("ok", "python", f"{who} ({look.python}, torch {look.torch}, {built}{nccl})")]
    if part and part.gpus_per_node and not look.cuda and "rocm" not in look.torch:
        text = f"{part.name} has GPUs, and this torch is built without CUDA: it would train on CPUs."
        out.append(Finding("warning", "torch", text))
    out += [*_driver(look, "this machine"), *_nccl(look)]
    if facts.debug_detail:
        text = "TORCH_DISTRIBUTED_DEBUG=DETAIL is set here: with gloo and DDP torch crashes under it. Unset it."
        out.append(Finding("warning", "torch", text))
    return out


def _driver(look: Look, where: str) -> list[Finding]:
    if not look.driver_cuda or not look.cuda:
        return []
    if int(look.driver_cuda.split(".")[0]) < int(look.cuda.split(".")[0]):
        text = (
            f"torch is built for CUDA {look.cuda}, and the driver of {where} ({look.driver or 'of unknown version'}) serves "
            f"CUDA {look.driver_cuda} at most: GPUs cannot be used. Install a torch for CUDA {look.driver_cuda}."
        )
        return [Finding("problem", "driver", text)]
    named = f" ({look.driver})" if look.driver else ""
    return [Finding("ok", "driver", f"The driver of {where}{named} serves CUDA {look.driver_cuda}: fits torch.")]


def _nccl(look: Look) -> list[Finding]:
    """NCCL's packages for CUDA 11, 12 and 13 share a folder, so that torch loads whichever there is."""
    if not look.cuda or not look.nccl_cuda or look.cuda.split(".")[0] == look.nccl_cuda:
        return []
    where = f" on {look.host}" if look.host else ""
    text = (
        f"torch is built for CUDA {look.cuda}, and the NCCL{where} ({look.nccl}) for CUDA {look.nccl_cuda}: install "
        f"nvidia-nccl-cu{look.cuda.split('.')[0]} instead of nvidia-nccl-cu{look.nccl_cuda}."
    )
    return [Finding("warning", "nccl", text)]


def _place(facts: Facts) -> list[Finding]:
    place = facts.place
    if not place.writable:
        return [Finding("problem", "runs", f"{place.shown} cannot be written.")]
    free = f", {size(place.free_bytes)} free" if place.free_bytes is not None else ""
    kind = f" on {place.filesystem}" if place.filesystem else ""
    out = [Finding("ok", "runs", f"{place.shown}{kind}{free}")]
    if facts.site is not None and facts.probe is None:
        if place.filesystem in _LOCAL:
            text = f"{place.shown} is on a local disk ({place.filesystem}): compute nodes may not see it. --probe finds out."
            out.append(Finding("warning", "runs", text))
        else:
            out.append(Finding("note", "runs", "--probe submits a tiny job that looks whether compute nodes see it."))
    return out


def _probe(facts: Facts) -> list[Finding]:
    probe = facts.probe
    if probe is None:
        return []
    if not probe.ok:
        return [Finding("problem", "probe", f"{probe.why[:1].upper()}{probe.why[1:].rstrip('.')}.")]
    look = probe.look
    out = [
        Finding("ok", "probe", f"{look.host} ran a job within {duration(probe.seconds)} and sees {facts.place.shown}.")
    ]
    if not look.torch:
        text = f"On {look.host} {facts.python} has no torch, although it has here: is the environment on a shared disk?"
        out.append(Finding("problem", "probe", text))
    elif differ := _differences(look, facts.look):
        out.append(Finding("warning", "probe", f"{look.host} has {differ} under the same path."))
    out += _driver(look, look.host)
    return out + (_nccl(look) if (look.nccl_cuda, look.cuda) != (facts.look.nccl_cuda, facts.look.cuda) else [])


def _differences(there: Look, here: Look) -> str:
    """What a node has otherwise than this machine, "" for nothing: ranks with different NCCLs or torches do not meet."""
    rows = [
        ("Python", there.python, here.python), ("torch", there.torch, here.torch), ("CUDA", there.cuda, here.cuda),
        ("NCCL", there.nccl, here.nccl),
    ]  # fmt: skip
    return ", ".join(f"{name} {at or 'none'} (here {own or 'none'})" for name, at, own in rows if at != own)


def render(diagnosis: Diagnosis, width: int = 80) -> list[str]:
    """Lines of at most ``width`` columns: the headline, what is, then what to mind."""
    lines = textwrap.wrap(diagnosis.headline, width)
    previous = ""
    order = {"ok": 0, "note": 0, "warning": 1, "problem": 2}
    for f in sorted(diagnosis.findings, key=lambda f: order[f.level]):
        head = f.topic if order[f.level] == 0 else f.level
        text = f.text if order[f.level] == 0 else f"{f.topic}: {f.text}"
        shown = "" if head == previous and order[f.level] == 0 else head
        previous = head
        wrapped = textwrap.wrap(text, width - 13, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"  {shown:<11}{wrapped[0]}")
        lines += [f"  {'':<11}{more}" for more in wrapped[1:]]
    return lines
