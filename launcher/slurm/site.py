"""Find this site's SLURM, ask for its configuration and read that into frozen values. Parsing is pure.

Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import field

from launcher.frozen import frozen
from launcher.run.spec import SiteSpec
from launcher.slurm.commands import ask_patiently
from launcher.slurm.jobs import duration_s, table_rows

_CONFIG_PLACES = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/opt/slurm/etc/slurm.conf")
_NEEDED = ("sbatch", "srun", "squeue", "scancel", "scontrol")


@frozen
class Presence:
    """Whether SLURM can be used from here."""

    state: str
    """"none": no trace of it; "traces": it is here but not usable; "ready": its commands are on the PATH."""
    reason: str
    """One sentence."""
    traces: tuple[str, ...] = ()


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
    commands = " and ".join([", ".join(lacking[:-1]), lacking[-1]] if len(lacking) > 1 else lacking)
    verb = "are" if len(lacking) > 1 else "is"
    return Presence(
        "traces",
        f"SLURM is here ({'; '.join(traces)}) but {commands} {verb} not on the PATH: load its module.",
        tuple(traces),
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
    min_nodes: int = 0
    grace_s: int = 0
    preempt_mode: str = "OFF"
    """What happens to jobs here when others need the nodes: OFF, CANCEL, REQUEUE, SUSPEND or GANG."""
    priority_tier: int = 1
    allow_groups: str = "ALL"
    allow_accounts: str = "ALL"
    allow_qos: str = "ALL"
    qos: str = ""
    exclusive: bool = False


@frozen(kw_only=True)
class Qos:
    """A quality of service, as far as preemption goes."""

    name: str
    grace_s: int = 0
    preempt_mode: str = ""
    """"" and "cluster": the cluster's."""
    preempts: tuple[str, ...] = ()
    max_wall_s: float | None = None


@frozen(kw_only=True)
class Site:
    """A cluster's configuration, as far as jobs feel it."""

    version: str
    cluster: str = ""
    partitions: tuple[Partition, ...] = ()
    qos: tuple[Qos, ...] = ()
    preempt_type: str = "none"
    """none, partition_prio or qos."""
    preempt_mode: str = "OFF"
    send_user_signal: bool = False
    """Preemption sends the job's --signal, and that instead of TERM."""
    kill_wait_s: int = 30
    job_requeue: bool = True
    max_array_size: int = 1001
    max_job_count: int = 10000
    accounting: str = "none"
    """none, slurmdbd, mysql, filetxt."""
    enforces: str = "none"
    """AccountingStorageEnforce."""
    cred_expire_s: int = 120
    requeue_delay_s: int = 121
    """How long a requeued job is not eligible, unless its StartTime is pulled forward."""
    has_epilog: bool = False
    has_prolog: bool = False
    slurmd_timeout_s: int = 300
    min_job_age_s: int = 300
    kill_on_bad_exit: bool = False
    wait_time_s: int = 0
    select_type: str = "cons_tres"
    memory_is_allocated: bool = False
    """Memory is a resource that jobs must ask for (or get the default of)."""
    has_gpus: bool = False
    gpu_request: str = "gpus-per-node"
    """gpus-per-node, or gres where select/cons_tres is not in use."""
    cgroups: bool = False
    """Processes are tracked and memory is limited by cgroups."""
    submit_plugins: str = ""
    """JobSubmitPlugins: a site script that may change or refuse jobs."""
    time_format: str = ""
    numbers: tuple[int, int] = field(default=(0, 0))
    """Version as (year, month)."""

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
    """sacctmgr -nP show qos format=QOS_FIELDS; "" without accounting."""


SINFO_FORMAT = "%R|%a|%D|%T|%c|%m|%G"
QOS_FIELDS = "name,gracetime,preemptmode,preempt,maxwall"


def ask_site(*, tries: int = 4, all_qos: bool = True) -> SiteTexts | str:
    """Ask SLURM for its configuration, in three or four commands; return a sentence when it does not answer.

    ``all_qos=False`` asks for QOS only where preemption depends on them.
    """
    texts = []
    sinfo = ("sinfo", "--noheader", f"--format={SINFO_FORMAT}")
    for words in (("scontrol", "show", "config"), ("scontrol", "show", "partition"), sinfo):
        answer = ask_patiently(*words, tries=tries)
        if not answer.ok:
            return f"SLURM does not answer: {answer.problem}."
        texts.append(answer.out)
    qos, config = "", texts[0]
    if "accounting_storage/none" not in config and (all_qos or "preempt/qos" in config):
        qos = ask_patiently("sacctmgr", "-n", "-P", "show", "qos", f"format={QOS_FIELDS}", tries=2).out
    return SiteTexts(texts[0], texts[1], texts[2], qos)


def parse_site(texts: SiteTexts) -> Site:
    """Read what SLURM printed; what this version of SLURM does not print keeps its default."""
    c = _config(texts.config)
    version = c.get("SLURM_VERSION", "")
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    select = _word(c, "SelectType", "select/cons_tres")
    parameters = f"{c.get('SlurmctldParameters', '')},{c.get('PreemptParameters', '')}"
    expire = re.search(r"cred_expire=(\d+)", c.get("AuthInfo", ""))
    delay = re.search(r"requeue_delay=(\d+)", f"{c.get('SchedulerParameters', '')},{parameters}")
    cred_expire = int(expire[1]) if expire else 120
    preempt_type = _word(c, "PreemptType", "preempt/none")
    return Site(
        version=version, numbers=(numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0),
        cluster=c.get("ClusterName", ""),
        partitions=_partitions(texts.partitions, texts.nodes, "" if preempt_type == "none" else c.get("PreemptMode", "OFF")),
        qos=_qos(texts.qos), preempt_type=preempt_type, preempt_mode=c.get("PreemptMode", "OFF"),
        send_user_signal="send_user_signal" in parameters, kill_wait_s=_int(c, "KillWait", 30),
        job_requeue=_int(c, "JobRequeue", 1) != 0, max_array_size=_int(c, "MaxArraySize", 1001),
        max_job_count=_int(c, "MaxJobCount", 10000), accounting=_word(c, "AccountingStorageType", "accounting_storage/none"),
        enforces=c.get("AccountingStorageEnforce", "none"), cred_expire_s=cred_expire,
        requeue_delay_s=int(delay[1]) if delay else cred_expire + 1,
        has_epilog=_set(c, "Epilog") or _set(c, "EpilogSlurmctld"), has_prolog=_set(c, "Prolog") or _set(c, "PrologSlurmctld"),
        slurmd_timeout_s=_int(c, "SlurmdTimeout", 300), min_job_age_s=_int(c, "MinJobAge", 300),
        kill_on_bad_exit=_int(c, "KillOnBadExit", 0) != 0, wait_time_s=_int(c, "WaitTime", 0), select_type=select,
        memory_is_allocated="MEMORY" in c.get("SelectTypeParameters", "").upper(),
        has_gpus="gpu" in c.get("GresTypes", ""), gpu_request="gpus-per-node" if "cons_tres" in
        (select + c.get("SelectTypeParameters", "").lower()) else "gres",
        cgroups="cgroup" in c.get("ProctrackType", ""), submit_plugins=c.get("JobSubmitPlugins", "") if _set(c, "JobSubmitPlugins")
        else "",
    )  # fmt: skip


def _config(text: str) -> dict[str, str]:
    """Read the ``Key = value`` lines of ``scontrol show config``; later sections repeat keys and are skipped."""
    out: dict[str, str] = {}
    for line in text.splitlines():
        key, eq, value = line.partition("=")
        if eq and key.strip() and not key.startswith((" ", "\t")):
            out.setdefault(key.strip(), value.strip())
    return out


def _word(config: Mapping[str, str], key: str, default: str) -> str:
    value = config.get(key, default)
    return (value if value not in ("(null)", "") else default).rpartition("/")[2]


def _int(config: Mapping[str, str], key: str, default: int) -> int:
    found = re.match(r"\d+", config.get(key, ""))
    return int(found[0]) if found else default


def _set(config: Mapping[str, str], key: str) -> bool:
    """Return whether a key has a value; newer versions number these keys: ``Epilog[0]``."""
    values = [v for k, v in config.items() if k == key or k.startswith(f"{key}[")]
    return any(v not in ("", "(null)", "none") for v in values)


def _partitions(text: str, nodes: str, cluster_mode: str) -> tuple[Partition, ...]:
    found: dict[str, list[list[str]]] = {}
    for parts in table_rows(nodes, 7):
        found.setdefault(parts[0], []).append(parts)
    out = []
    for record in re.split(r"\n\s*\n", text):
        k = dict(re.findall(r"(\S+?)=(\S*)", record))
        if "PartitionName" in k:
            out.append(_partition(k, found.get(k["PartitionName"], []), cluster_mode))
    return tuple(out)


def _partition(k: Mapping[str, str], nodes: list[list[str]], cluster_mode: str) -> Partition:
    usable = [r for r in nodes if not re.match(r"down|drain|fail|unknown|maint|power|reboot|no_respond", r[3])]
    gpus = [(_gpus(r[6]), int(r[2])) for r in nodes if r[2].isdigit()]
    types = dict.fromkeys(t for (_, kinds), _ in gpus for t in kinds)
    mode = k.get("PreemptMode", "OFF").upper()
    return Partition(
        name=k["PartitionName"], default=k.get("Default") == "YES", up=k.get("State", "UP") == "UP",
        nodes=sum(int(r[2]) for r in nodes if r[2].isdigit()) or _plain(k.get("TotalNodes", "0")) or 0,
        usable_nodes=sum(int(r[2]) for r in usable if r[2].isdigit()),
        cpus_per_node=max((_plain(r[4]) or 0 for r in nodes), default=0),
        mem_gb_per_node=max((round((_plain(r[5]) or 0) / 1024, 1) for r in nodes), default=0.0),
        gpus_per_node=max((n for (n, _), _ in gpus), default=0), gpu_types=tuple(types),
        gpu_nodes=sum(count for (n, _), count in gpus if n),
        max_time_s=duration_s(k.get("MaxTime", "")), default_time_s=duration_s(k.get("DefaultTime", "")),
        max_nodes=_plain(k.get("MaxNodes", "")), min_nodes=_plain(k.get("MinNodes", "")) or 0,
        grace_s=_plain(k.get("GraceTime", "")) or 0,
        preempt_mode="OFF" if not cluster_mode else mode.split(",")[-1] if mode != "GANG,SUSPEND" else "SUSPEND",
        priority_tier=_plain(k.get("PriorityTier", "")) or 1, allow_groups=k.get("AllowGroups", "ALL"),
        allow_accounts=k.get("AllowAccounts", "ALL"), allow_qos=k.get("AllowQos", "ALL"),
        qos="" if k.get("QoS", "N/A") == "N/A" else k["QoS"], exclusive=k.get("OverSubscribe") == "EXCLUSIVE",
    )  # fmt: skip


def _plain(text: str) -> int | None:
    """Read a number, also with sinfo's "+" for "at least"."""
    found = re.fullmatch(r"(\d+)\+?", text.strip())
    return int(found[1]) if found else None


def _gpus(gres: str) -> tuple[int, tuple[str, ...]]:
    """Read count and types of ``gpu:a100:4(S:0-1),gpu:v100:2``, ``gpu:4``, ``gpu``."""
    total, types = 0, []
    for found in re.finditer(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))?(?=[,(]|$)", gres):
        total += int(found[2] or 1)
        if found[1]:
            types.append(found[1])
    return total, tuple(types)


def _qos(text: str) -> tuple[Qos, ...]:
    return tuple(
        Qos(
            name=name, grace_s=int(duration_s(grace) or 0), preempt_mode=mode.upper(),
            preempts=tuple(p for p in preempts.split(",") if p), max_wall_s=duration_s(wall),
        )
        for name, grace, mode, preempts, wall in table_rows(text, 5)
        if name
    )  # fmt: skip


def policy(site: Site, partition: str | None = None, qos: str | None = None) -> SiteSpec:
    """Return what SLURM may do to a job of that partition and QOS, for `launcher.run.spec.RunSpec`."""
    part = site.partition(partition)
    mode, grace = "OFF", 0
    if site.preempt_type == "qos":
        named = next((q for q in site.qos if q.name == (qos or "normal")), None)
        own = named.preempt_mode if named else ""
        mode = own if own not in ("", "CLUSTER") else site.preempt_mode.split(",")[-1]
        grace = named.grace_s if named else 0
        if named and not any(named.name in q.preempts for q in site.qos):
            mode, grace = "OFF", 0  # nobody may preempt it
    elif site.preempt_type != "none" and part:
        mode, grace = part.preempt_mode, part.grace_s
    return SiteSpec(
        grace_s=grace if mode != "OFF" else 0, kill_wait_s=site.kill_wait_s, preempt_mode=mode,
        requeue_allowed=site.job_requeue, has_epilog=site.has_epilog, slurm_version=site.version,
    )  # fmt: skip
