"""What a site's SLURM means for this user's jobs: partitions, GPUs, preemption, requeueing, limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.node.allocation.allocation import usable_s
from launcher.node.wire.messages import SILENCE_S
from launcher.report.formats import duration
from launcher.report.site.findings import Finding, SiteFacts, note, ok, problem, warning
from launcher.run.spec import SiteSpec
from launcher.run.units import plural
from launcher.slurm.site import Partition, Site
from launcher.slurm.versions import TESTED, differences, untested

_MOST_PARTITIONS = 10
_DBD_BATCH = 1000
"""Messages that slurmctld sends to slurmdbd at once (`max_rpcs` in slurmdbd_agent.c): one that is refused stops those beyond so many."""


def slurm_findings(facts: SiteFacts, site: Site, part: Partition | None, spec: SiteSpec) -> Iterator[Finding]:
    """Yield the findings about ``site``, for jobs in the partition ``part``, which preempts them as ``spec`` says."""
    yield from _version(site)
    yield from _partitions(site, facts, part)
    yield from _gpus(site, facts, part)
    where = f"QOS {facts.qos or 'normal'}" if site.preempt_type == "qos" else part.name if part else "this cluster"
    yield from _preemption(site, where, spec)
    yield from _saves(facts, spec)
    yield _requeue(site, spec)
    yield from _limits(site)
    yield from _job_limits(facts, site, part, spec)


def _version(site: Site) -> Iterator[Finding]:
    tested = [f"{year}.{month:02}" for year, month in TESTED]
    oldest, newest = tested[0], tested[-1]
    where = untested(site.numbers)
    if where == "older":
        yield warning("version", f"SLURM {site.version} is older than {oldest}, the oldest version that was tested.")
    elif where == "newer":
        yield warning("version", f"SLURM {site.version} is newer than {newest}, the newest version that was tested: the launcher "
                                 f"expects what {newest} does.")  # fmt: skip
    elif where == "between":
        yield note("version", f"SLURM {site.version} lies between versions that were tested ({', '.join(tested)}).")
    for difference in differences(site.numbers):
        yield (warning if difference.warns else ok)(difference.topic, difference.text)


def _partitions(site: Site, facts: SiteFacts, part: Partition | None) -> Iterator[Finding]:
    if not site.partitions:
        yield problem("partition", "No partition is open to you.")
        return
    shown = sorted(site.partitions, key=lambda p: p != part)[:_MOST_PARTITIONS]
    for p in shown:
        yield ok("partition", _in_words(p))
    if len(shown) < len(site.partitions):
        yield ok("partition", f"and {len(site.partitions) - len(shown)} more")
    if part is not None:
        yield from _partition(part)
    elif facts.partition:
        names = ", ".join(p.name for p in site.partitions)
        yield problem("partition", f"There is no partition {facts.partition}. Available: {names}.")
    else:
        yield warning("partition", "There is no default partition: set slurm.partition in the job file.")


def _in_words(p: Partition) -> str:
    gpus = ""
    if p.gpus_per_node:
        kind = "/".join(p.gpu_types)
        some = f" on {p.gpu_nodes} of them" if p.gpu_nodes < p.nodes else ""
        gpus = f", {plural(p.gpus_per_node, f'{kind} GPU'.strip())}{some}"
    limit = duration(p.max_time_s) if p.max_time_s else "none"
    most = f", at most {plural(p.max_nodes, 'node')} a job" if p.max_nodes else ""
    size = f"{plural(p.nodes, 'node')} of {p.cpus_per_node} CPUs, {p.mem_gb_per_node:g} GB{gpus}"
    return f"{p.name}{' (default)' if p.default else ''}: {size}; time limit {limit}{most}"


def _partition(part: Partition) -> Iterator[Finding]:
    if not part.up:
        yield problem("partition", f"{part.name} does not start jobs: its state is not UP.")
    elif not part.usable_nodes:
        yield problem("partition", f"No node of {part.name} is in service.")
    elif down := part.nodes - part.usable_nodes:
        yield note("nodes", f"Out of service: {down} of the {plural(part.nodes, 'node')} of {part.name}.")
    for key, value in (("accounts", part.allow_accounts), ("groups", part.allow_groups), ("QOS", part.allow_qos)):
        if value not in ("ALL", "", "(null)"):
            yield note("access", f"Only {key} {value.replace(',', ', ')} may use {part.name}.")
    if part.alloc_nodes not in ("ALL", "", "(null)"):
        yield note("access", f"Jobs of {part.name} are accepted from {part.alloc_nodes} only (AllocNodes). resources.replace needs the nodes "
                             "of the job among them.")  # fmt: skip
    if part.default_time_s and part.max_time_s and part.default_time_s < part.max_time_s:
        most = duration(part.max_time_s)
        yield ok("limit", f"{part.name} ends each job after at most {most}. Longer runs continue in another attempt.")


def _gpus(site: Site, facts: SiteFacts, part: Partition | None) -> Iterator[Finding]:
    names = ", ".join(p.name for p in site.partitions if p.gpus_per_node)
    if not names:
        yield note("gpus", "SLURM lists no GPUs: jobs train on CPUs, with gloo.")
    else:
        how = "--gpus-per-node" if site.gpu_request == "gpus-per-node" else f"--gres=gpu:N (select/{site.select_type})"
        yield ok("gpus", f"GPUs are requested with {how}.")
        if site.gpu_request == "gres" != facts.gpu_request:
            yield warning("gpus", "Set gpu_request: gres in the site profile. launcher doctor --write-site does it.")
        if part and not part.gpus_per_node:
            yield note("gpus", f"{part.name} has no GPUs. Partitions with GPUs: {names}.")
    if site.memory_is_allocated:
        yield ok("memory", "SLURM allocates memory: resources.mem_gb, or the site's default per CPU.")


def _preemption(site: Site, where: str, spec: SiteSpec) -> Iterator[Finding]:
    kill = f"and SIGKILL {spec.kill_wait_s} s"
    if spec.preempt_mode == "OFF":
        yield ok("preemption", f"Jobs of {where} are not preempted. At the time limit they get SIGTERM {kill} later.")
        return
    if spec.preempt_mode in ("SUSPEND", "GANG"):
        yield warning("preemption", f"Preempted jobs of {where} are suspended and keep their memory. After a suspension longer "
                                    "than distributed.collective_timeout_min the workers restart from the last checkpoint.")  # fmt: skip
        return
    first = "SIGUSR2" if site.send_user_signal else "SIGTERM"
    again = "" if site.send_user_signal else " again"
    grace = f", SIGTERM{again} after {spec.grace_s} s," if spec.grace_s else " without grace"
    yield ok("preemption", f"Preempted jobs of {where} get {first}{grace} {kill} later.")
    if spec.preempt_mode == "CANCEL":
        how = "requeues them itself" if spec.requeue_allowed else "submits a continuation"
        yield note("preemption", f"Preempted jobs are cancelled, not requeued: the launcher {how}.")
    if site.send_user_signal:
        yield ok("signal", "Preemption sends SIGUSR2 instead of SIGTERM (send_user_signal). The launcher handles it.")


def _saves(facts: SiteFacts, spec: SiteSpec) -> Iterator[Finding]:
    saves = facts.saves
    if saves is None:
        yield note("saving", "None of your saves has been measured yet: launcher dry-run measures one.")
        return
    took = f"Your saves took {duration(saves.typical_s)}, at worst {duration(saves.worst_s)} ({saves.count} measured)."
    whole = float(spec.grace_s + spec.kill_wait_s)
    if spec.preempt_mode in ("OFF", "SUSPEND", "GANG"):
        yield ok("saving", took)
    elif saves.worst_s <= usable_s(whole):
        yield ok("saving", f"{took} That fits the {duration(whole)} from preemption to SIGKILL.")
    else:
        limit = f"a {spec.grace_s} s grace" if spec.grace_s else f"the {spec.kill_wait_s} s from SIGTERM to SIGKILL"
        yield warning("saving", f"Your {duration(saves.worst_s)} save does not fit {limit}: a preemption loses the work since the "
                                "last checkpoint. Save more often (checkpoint.interval_min) or save less.")  # fmt: skip
    if saves.worst_s > 0.5 * facts.signal_lead_s:
        late = f"{facts.signal_lead_s} s before the time limit is too late to save"
        yield warning("saving", f"Set restart.signal_lead_s to {saves.lead_s}: {late}.")


def _requeue(site: Site, spec: SiteSpec) -> Finding:
    if not spec.requeue_allowed:
        return note("requeue", "Requeueing is off (JobRequeue=0): a run continues in a new job with another job id.")
    lead_s, why = (6, " (the site has an epilog)") if spec.has_epilog else (2, "")
    if site.requeue_delay_s <= lead_s:
        return ok("requeue", f"A requeued job waits {site.requeue_delay_s} s.")
    return ok(
        "requeue", f"A requeued job waits {site.requeue_delay_s} s. The launcher shortens that to {lead_s} s{why}."
    )


def _accounting(site: Site) -> Finding:
    if site.accounting == "none":
        return note(
            "accounting",
            f"SLURM keeps none: it forgets a job {site.min_job_age_s} s after its end. The run keeps its outcome.",
        )
    if site.accounting == "slurmdbd" and not site.qos:  # it always has one, "normal"
        return warning("accounting", "slurmdbd does not answer: sacct knows no job. SLURM forgets a job "
                                     f"{site.min_job_age_s} s after its end. The run keeps its outcome.")  # fmt: skip
    if site.accounting_backlog >= _DBD_BATCH:
        return warning("accounting", f"{site.accounting_backlog:,} messages to slurmdbd are waiting: sacct does not know the latest jobs. "
                                     "If the number grows (sdiag, DBD Agent queue size), tell your administrators.")  # fmt: skip
    return ok("accounting", f"sacct answers ({site.accounting}).")


def _limits(site: Site) -> Iterator[Finding]:
    slurm_s = site.slurmd_timeout_s
    yield ok("dead nodes", f"SLURM notices a dead node after {slurm_s} s, the launcher after {SILENCE_S:.0f} s.")
    yield ok("arrays", f"Sweeps of more than {site.max_array_size:,} points are split (MaxArraySize).")
    yield _accounting(site)
    if any(word in site.enforces for word in ("associations", "limits", "qos", "safe")):
        yield note("accounting", "Jobs need a valid account: slurm.account, or your default account.")
    if site.ages_held_jobs:
        yield ok("queue", "Held jobs gain priority by age (ACCRUE_ALWAYS): restart.queue_early can be used.")
    if site.submit_plugins:
        yield note("plugins", f"The site's submit plugin ({site.submit_plugins}) may change or refuse jobs.")


def _job_limits(facts: SiteFacts, site: Site, part: Partition | None, spec: SiteSpec) -> Iterator[Finding]:
    """Yield which accounts and QOS allow this user one job at a time, and what needs a second one."""
    used = {facts.qos or "normal", part.qos if part else ""}
    for limit in dict.fromkeys(site.job_limits):
        if limit.kind == "QOS" and limit.name not in used:
            continue
        who = f"{limit.kind} {limit.name}"
        if 0 in (limit.queued, limit.running):
            yield warning("limits", f"{who} allows you no job.")
        elif limit.queued == 1 and not spec.requeue_allowed:
            yield warning("limits", f"{who} allows you one job in the queue: no run can continue in a new job, and resources.replace "
                                    "has no effect.")  # fmt: skip
        elif limit.queued == 1:
            yield note(
                "limits",
                f"{who} allows you one job in the queue: resources.replace and restart.queue_early have no effect.",
            )
        elif limit.running == 1:
            yield note("limits", f"{who} allows you one running job: resources.replace has no effect.")
