"""Find this site's SLURM, ask for its configuration and read that into frozen values. Parsing is pure.

Standard library only.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping

from launcher.frozen import frozen
from launcher.gres import read_gpus
from launcher.run.spec import SiteSpec
from launcher.run.units import whole_number
from launcher.slurm.commands import ask, ask_patiently
from launcher.slurm.jobs import duration_s, table_rows
from launcher.slurm.versions import has_requeue_delay, numbers

_CONFIG_PLACES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/opt/slurm/etc/slurm.conf")
_SACCTMGR = ("sacctmgr", "-n", "-P", "show")
_NEEDED = ("sbatch", "srun", "squeue", "scancel", "scontrol")


@frozen
class Presence:
    """Whether SLURM can be used from here."""

    state: str
    """"none": no trace of it; "traces": it is here but not usable; "ready": its commands are on the PATH."""
    reason: str
    """One sentence."""


def find_slurm(environ: Mapping[str, str] = os.environ) -> Presence:
    """Look for SLURM's commands and other traces of it, without asking it anything."""
    path = environ.get("PATH", os.defpath)
    there = [c for c in (*_NEEDED, "sinfo") if shutil.which(c, path=path)]
    lacking = [c for c in _NEEDED if c not in there]
    if not lacking:
        return Presence("ready", f"sbatch is {shutil.which('sbatch', path=path)}.")
    traces = [f"${name} is set" for name in ("SLURM_CONF", "SLURM_JOB_ID") if environ.get(name)]
    traces += [f"{place} exists" for place in _CONFIG_PLACES if os.path.exists(place)]
    traces += [f"{c} is on the PATH" for c in there]
    if "slurm" in environ.get("LOADEDMODULES", "").lower():
        traces.append("a slurm module is loaded")
    if not traces:
        return Presence("none", "There is no trace of SLURM on this machine.")
    commands = " and ".join(filter(None, (", ".join(lacking[:-1]), lacking[-1])))
    verb = "are" if len(lacking) > 1 else "is"
    return Presence(
        "traces", f"SLURM is here ({'; '.join(traces)}) but {commands} {verb} not on the PATH: load its module."
    )


@frozen(kw_only=True)
class Partition:
    """A partition; None is unlimited or unknown."""

    name: str
    default: bool = False
    up: bool = True
    nodes: int = 0
    usable_nodes: int = 0
    """Nodes that are not down, drained or failing."""
    cpus_per_node: int = 0
    """The most that a node of it has."""
    mem_gb_per_node: float = 0.0
    gpus_per_node: int = 0
    gpu_types: tuple[str, ...] = ()
    gpu_nodes: int = 0
    max_time_s: float | None = None
    default_time_s: float | None = None
    max_nodes: int | None = None
    grace_s: int = 0
    preempt_mode: str = "OFF"
    """What happens to jobs here when others need the nodes: OFF, CANCEL, REQUEUE, SUSPEND or GANG."""
    allow_groups: str = "ALL"
    allow_accounts: str = "ALL"
    allow_qos: str = "ALL"
    alloc_nodes: str = "ALL"
    """Hosts from which jobs may be submitted."""
    qos: str = ""
    """The QOS whose limits hold for every job here."""


@frozen(kw_only=True)
class Qos:
    """A quality of service, as far as preemption goes."""

    name: str
    grace_s: int = 0
    preempt_mode: str = ""
    """"" and "cluster": the cluster's."""
    preempts: tuple[str, ...] = ()


@frozen(kw_only=True)
class JobLimit:
    """How many jobs of this user one account or QOS allows at the same time; None: any number."""

    kind: str
    """"Account" or "QOS"."""
    name: str
    running: int | None = None
    queued: int | None = None
    """In the queue, those that run included."""


@frozen(kw_only=True)
class Site:
    """A cluster's configuration, as far as jobs feel it."""

    version: str
    cluster: str = ""
    partitions: tuple[Partition, ...] = ()
    qos: tuple[Qos, ...] = ()
    job_limits: tuple[JobLimit, ...] = ()
    """Where SLURM enforces limits: those of this user's accounts, and of every QOS."""
    preempt_type: str = "none"
    """none, partition_prio or qos."""
    preempt_mode: str = "OFF"
    send_user_signal: bool = False
    """Preemption sends the job's --signal, and that instead of TERM."""
    kill_wait_s: int = 30
    job_requeue: bool = True
    max_array_size: int = 1001
    accounting: str = "none"
    """none, slurmdbd, mysql, filetxt."""
    accounting_backlog: int = 0
    """Messages that slurmctld keeps because slurmdbd has not taken them."""
    enforces: str = "none"
    """AccountingStorageEnforce."""
    requeue_delay_s: int = 121
    """How long a requeued job is not eligible, unless its StartTime is pulled forward."""
    has_epilog: bool = False
    ages_held_jobs: bool = False
    """PriorityFlags=ACCRUE_ALWAYS: jobs that are held, or wait for others, gain priority by age."""
    slurmd_timeout_s: int = 300
    min_job_age_s: int = 300
    select_type: str = "cons_tres"
    memory_is_allocated: bool = False
    """Memory is a resource that jobs must ask for (or get the default of)."""
    gpu_request: str = "gpus-per-node"
    """gpus-per-node, or gres where select/cons_tres is not in use."""
    submit_plugins: str = ""
    """JobSubmitPlugins: a site script that may change or refuse jobs."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version as (year, month, patch)."""
        return numbers(self.version)

    def partition(self, name: str | None) -> Partition | None:
        """Return the partition of that name; None: the default one."""
        return next((p for p in self.partitions if p.name == name or (name is None and p.default)), None)


@frozen
class SiteTexts:
    """What the site's SLURM printed: enough to read it again without it (tests, bug reports)."""

    config: str
    """scontrol show config"""
    partitions: str
    """scontrol show partition"""
    nodes: str
    """sinfo -h -o SINFO_FORMAT"""
    qos: str = ""
    """sacctmgr -nP show qos format=QOS_FIELDS; "" without accounting, and where slurmdbd does not answer."""
    statistics: str = ""
    """sdiag; "" where it was not asked."""
    account_limits: str = ""
    """sacctmgr -nP show associations user=ME format=ACCOUNT_LIMITS; "" where limits are not enforced, or were not asked for."""
    qos_limits: str = ""
    """sacctmgr -nP show qos format=QOS_LIMITS; "" as above."""


SINFO_FORMAT = "%R|%a|%D|%T|%c|%m|%G"
QOS_FIELDS = "name,gracetime,preemptmode,preempt"
ACCOUNT_LIMITS = "account,maxjobs,maxsubmitjobs"
QOS_LIMITS = "name,maxjobspu,maxsubmitjobspu"


def ask_site(*, tries: int = 4, all_qos: bool = True) -> Site | str:
    """Ask SLURM for its configuration, in three to seven commands; return a sentence when it does not answer.

    ``all_qos=False`` asks for QOS only where preemption depends on them, and neither how accounting keeps up nor for limits.
    """
    texts = []
    # Without --exact, nodes of one state share a row, with the fewest CPUs and the least memory of them.
    sinfo = ("sinfo", "--noheader", "--exact", f"--format={SINFO_FORMAT}")
    for words in (("scontrol", "show", "config"), ("scontrol", "show", "partition"), sinfo):
        answer = ask_patiently(*words, tries=tries)
        if not answer.ok:
            return f"SLURM does not answer: {answer.problem}."
        texts.append(answer.out)
    config = texts[0]
    if "accounting_storage/none" not in config and (all_qos or "preempt/qos" in config):
        texts.append(ask_patiently(*_SACCTMGR, "qos", f"format={QOS_FIELDS}", tries=2).out)
        texts += [ask("sdiag").out] if all_qos else []
        if all_qos and re.search(r"^AccountingStorageEnforce *=.*\b(limits|safe)\b", config, re.MULTILINE):
            texts.append(ask(*_SACCTMGR, "associations", f"user={_own_name()}", f"format={ACCOUNT_LIMITS}").out)
            texts.append(ask(*_SACCTMGR, "qos", f"format={QOS_LIMITS}").out)
    return parse_site(SiteTexts(*texts))


def _own_name() -> str:
    """Return this user's name, as SLURM finds it; the uid where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def parse_site(texts: SiteTexts) -> Site:
    """Read what SLURM printed; what this version of SLURM does not print keeps its default."""
    # Later sections repeat keys: the first one holds.
    lines = reversed(re.findall(r"^([^\s=]+)[ \t]*=[ \t]*(.*?)[ \t]*$", texts.config, re.MULTILINE))
    c = defaultdict(str, {key: value for key, value in lines if value not in ("", "(null)")})
    parameters = ",".join((c["SchedulerParameters"], c["SlurmctldParameters"], c["PreemptParameters"]))
    expire = re.search(r"cred_expire=(\d{1,9})", c["AuthInfo"])
    delay = re.search(r"requeue_delay=(\d{1,9})", c["SchedulerParameters"])
    backlog = re.search(r"DBD Agent queue size:\s*(\d{1,9})", texts.statistics)
    waits = delay if delay and has_requeue_delay(numbers(c["SLURM_VERSION"])) else expire
    select, select_parameters = _word(c["SelectType"], "cons_tres"), c["SelectTypeParameters"].upper()
    preempt_type, preempt_mode = _word(c["PreemptType"], "none"), c["PreemptMode"] or "OFF"
    return Site(
        version=c["SLURM_VERSION"], cluster=c["ClusterName"],
        partitions=_partitions(texts.partitions, texts.nodes, can_preempt=preempt_type != "none"),
        qos=_qos(texts.qos),
        job_limits=(*_limits("Account", texts.account_limits), *_limits("QOS", texts.qos_limits)),
        preempt_type=preempt_type, preempt_mode=preempt_mode,
        send_user_signal="send_user_signal" in parameters, kill_wait_s=_int(c["KillWait"], 30),
        job_requeue=c["JobRequeue"] != "0", max_array_size=_int(c["MaxArraySize"], 1001),
        accounting=_word(c["AccountingStorageType"], "none"), accounting_backlog=int(backlog[1]) if backlog else 0,
        enforces=c["AccountingStorageEnforce"] or "none",
        requeue_delay_s=(int(waits[1]) if waits else 120) + 1,
        has_epilog=any(re.match(r"Epilog(Slurmctld)?(\[|$)", key) and c[key] != "none" for key in c),
        ages_held_jobs="ACCRUE_ALWAYS" in c["PriorityFlags"].upper(),
        slurmd_timeout_s=_int(c["SlurmdTimeout"], 300), min_job_age_s=_int(c["MinJobAge"], 300), select_type=select,
        memory_is_allocated="MEMORY" in select_parameters,
        gpu_request="gpus-per-node" if "cons_tres" in select + select_parameters.lower() else "gres",
        submit_plugins=c["JobSubmitPlugins"].removeprefix("none"),
    )  # fmt: skip


def _word(text: str, default: str) -> str:
    return text.rpartition("/")[2] or default


def _int(text: str, default: int) -> int:
    """Read the number that a text begins with, also sinfo's "64+" for "at least" and "30 sec"."""
    found = re.match(r"\d{1,18}", text)
    return int(found[0]) if found else default


def _partitions(text: str, nodes: str, *, can_preempt: bool) -> tuple[Partition, ...]:
    rows = [row for row in table_rows(nodes, 7) if whole_number(row[2]) is not None]
    out = []
    for record in re.split(r"\n\s*\n", text):
        k = defaultdict(str, re.findall(r"(\S+?)=(\S*)", record))
        if name := k["PartitionName"]:
            out.append(_partition(name, k, [row for row in rows if row[0] == name], can_preempt))
    return tuple(out)


def _partition(name: str, k: Mapping[str, str], rows: list[list[str]], can_preempt: bool) -> Partition:
    out_of_service = re.compile(r"down|drain|fail|unknown|maint|power|reboot|no_respond|inval")
    gpus = [(read_gpus(row[6]), int(row[2])) for row in rows]
    counts = [(sum(count for _, count in entries), nodes) for entries, nodes in gpus]
    mode = k["PreemptMode"].upper().replace("GANG,SUSPEND", "SUSPEND").rpartition(",")[2]
    return Partition(
        name=name, default=k["Default"] == "YES", up=k["State"] in ("UP", ""),
        nodes=sum(int(row[2]) for row in rows) or _int(k["TotalNodes"], 0),
        usable_nodes=sum(int(row[2]) for row in rows if not out_of_service.match(row[3])),
        cpus_per_node=max((_int(row[4], 0) for row in rows), default=0),
        mem_gb_per_node=max((round(_int(row[5], 0) / 1024, 1) for row in rows), default=0.0),
        gpus_per_node=max((count for count, _ in counts), default=0),
        gpu_types=tuple(dict.fromkeys(kind for entries, _ in gpus for kind, _ in entries if kind)),
        gpu_nodes=sum(nodes for count, nodes in counts if count),
        max_time_s=duration_s(k["MaxTime"]), default_time_s=duration_s(k["DefaultTime"]),
        max_nodes=_int(k["MaxNodes"], 0) or None, grace_s=_int(k["GraceTime"], 0),
        preempt_mode=mode or "OFF" if can_preempt else "OFF", allow_groups=k["AllowGroups"] or "ALL",
        allow_accounts=k["AllowAccounts"] or "ALL", allow_qos=k["AllowQos"] or "ALL",
        alloc_nodes=k["AllocNodes"] or "ALL", qos=k["QoS"].removeprefix("N/A"),
    )  # fmt: skip


def _qos(text: str) -> tuple[Qos, ...]:
    return tuple(
        Qos(
            name=name, grace_s=int(duration_s(grace) or 0), preempt_mode=mode.upper(),
            preempts=tuple(filter(None, preempts.split(","))),
        )
        for name, grace, mode, preempts in table_rows(text, 4)
        if name
    )  # fmt: skip


def _limits(kind: str, text: str) -> Iterator[JobLimit]:
    for row in table_rows(text, 3):
        running, queued = map(whole_number, row[1:])
        if running is not None or queued is not None:
            yield JobLimit(kind=kind, name=row[0], running=running, queued=queued)


def policy(site: Site, partition: str | None = None, qos: str | None = None) -> SiteSpec:
    """Return what SLURM may do to a job of that partition and QOS, for `launcher.run.spec.RunSpec`."""
    mode, grace = "OFF", 0
    if site.preempt_type == "qos":
        named = next((q for q in site.qos if q.name == (qos or "normal")), None)
        own = named.preempt_mode if named else ""
        modes = (own if own not in ("", "CLUSTER") else site.preempt_mode).split(",")
        mode = next((word for word in reversed(modes) if word != "WITHIN"), mode)
        grace = named.grace_s if named else 0
        if named and "WITHIN" not in modes and not any(named.name in q.preempts for q in site.qos):
            mode, grace = "OFF", 0  # nobody may preempt it
    elif site.preempt_type != "none":
        named_parts = filter(None, map(site.partition, partition.split(",") if partition else [None]))
        taken = [(part.grace_s, part.preempt_mode) for part in named_parts if part.preempt_mode != "OFF"]
        grace, mode = min(taken, default=(grace, mode))  # SLURM chooses the partition later: the shortest grace is sure
    return SiteSpec(
        grace_s=grace if mode != "OFF" else 0, kill_wait_s=site.kill_wait_s, preempt_mode=mode,
        requeue_allowed=site.job_requeue, has_epilog=site.has_epilog, ages_held_jobs=site.ages_held_jobs,
    )  # fmt: skip
