"""The text of slurm.conf and its kin, from the layout and what `set` changed. Pure."""

from __future__ import annotations

from layout import CPUS, GPUS, HEAD, HOSTS, MEMORY_MB, ClusterError, Layout

_PARTITION_KEYS = """
    AllowAccounts AllowGroups AllowQos DefaultTime DefCpuPerGPU DefMemPerCPU DefMemPerNode DisableRootJobs
    ExclusiveUser GraceTime Hidden MaxCPUsPerNode MaxNodes MaxTime MinNodes OverSubscribe OverTimeLimit
    PreemptMode PriorityTier QOS State TRESBillingWeights
"""
PARTITION_KEYS = {key.lower(): key for key in _PARTITION_KEYS.split()}
PARTITIONS = {
    "batch": {
        "Nodes": "ALL", "Default": "YES", "PriorityTier": "1", "PreemptMode": "REQUEUE", "GraceTime": "20",
        "MaxTime": "2-00:00:00", "DefaultTime": "60", "State": "UP",
    },
    "high": {
        "Nodes": "ALL", "PriorityTier": "10", "PreemptMode": "OFF", "GraceTime": "0",
        "MaxTime": "1-00:00:00", "DefaultTime": "60", "State": "UP",
    },
}  # fmt: skip


def parse_settings(words: list[str]) -> dict[str, str]:
    """KEY=VALUE words as a table; raises ClusterError."""
    out = {}
    for word in words:
        key, eq, value = word.partition("=")
        if not eq or not key or any(c in word for c in "\n\r#"):
            raise ClusterError(f"expected KEY=VALUE, got {word!r}")
        part, dot, _ = key.partition(".")
        if dot and part not in PARTITIONS:
            raise ClusterError(f"{key}: no partition {part!r}; there are {', '.join(PARTITIONS)}")
        out[key] = value
    return out


def slurm_conf(layout: Layout, settings: dict[str, str], version: tuple[int, ...]) -> str:
    """slurm.conf for SLURM of that version."""
    values = _defaults(layout)
    partitions = {name: dict(options) for name, options in PARTITIONS.items()}
    for key, value in settings.items():
        _apply(values, partitions, key, value, version)
    lines = [f"{k}={v}" for k, v in values.items() if v != ""]
    for host in HOSTS:
        lines.append(
            f"NodeName={host} NodeAddr={layout.address(host)} CPUs={CPUS} Boards=1 SocketsPerBoard=1 "
            f"CoresPerSocket={CPUS} ThreadsPerCore=1 RealMemory={MEMORY_MB} Gres=gpu:{GPUS} State=UNKNOWN"
        )
    for name, options in partitions.items():
        lines.append(" ".join([f"PartitionName={name}", *(f"{k}={v}" for k, v in options.items())]))
    return "\n".join(lines) + "\n"


def _defaults(layout: Layout) -> dict[str, str]:
    return {
        "ClusterName": "launcher",
        "SlurmctldHost": f"{HEAD}({layout.address(HEAD)})",
        "SlurmUser": "root",
        "SlurmdUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "CredType": "cred/munge",
        "MpiDefault": "none",
        # No cgroups: they belong to the machine, not to its pretended hosts.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/linux",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": "1000",
        "GresTypes": "gpu",
        "SlurmdParameters": "config_overrides",
        "StateSaveLocation": str(layout.root / "state"),
        "SlurmdSpoolDir": str(layout.root / "spool/%n"),
        "SlurmctldPidFile": str(layout.run / "slurmctld.pid"),
        "SlurmdPidFile": str(layout.run / "slurmd-%n.pid"),
        "SlurmctldLogFile": str(layout.log / "slurmctld.log"),
        "SlurmdLogFile": str(layout.log / "slurmd-%n.log"),
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": layout.address(HEAD),
        # Not a password: where the munge socket is, for connections to slurmdbd (AuthInfo is not used for those).
        "AccountingStoragePass": str(layout.munge_socket),
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "bf_interval=1,batch_sched_delay=0,sched_interval=2,bf_continue",
        "PriorityType": "priority/basic",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "JobRequeue": "1",
        "ReturnToService": "2",
        # Quick for tests; users live with 300, 30 and 300.
        "MinJobAge": "10",
        "KillWait": "10",
        "SlurmdTimeout": "20",
        # A busy machine is slower than a cluster: these only keep it from being taken for a broken one.
        "BatchStartTimeout": "60",
        "UnkillableStepTimeout": "300",
        "InactiveLimit": "0",
    }


def _apply(
    values: dict[str, str], partitions: dict[str, dict[str, str]], key: str, value: str, version: tuple[int, ...]
) -> None:
    part, dot, option = key.partition(".")
    lower = key.lower()
    if dot:
        partitions[part][option] = value
    elif lower == "send_user_signal":
        # 23.02 made a PreemptParameters of it, a key that 22.05 does not know.
        new = version >= (23, 2)
        name, word = ("PreemptParameters", "") if new else ("SlurmctldParameters", "preempt_")
        values[name] = f"{word}send_user_signal" if _yes(key, value) else ""
    elif lower == "accounting":
        values["AccountingStorageType"] = "accounting_storage/" + ("slurmdbd" if _yes(key, value) else "none")
    elif lower == "preemptmode":
        partitions["batch"]["PreemptMode"] = value
        gang, off = value.upper() in ("SUSPEND", "GANG"), value.upper() == "OFF"
        values["PreemptMode"] = "SUSPEND,GANG" if gang else value
        values["PreemptType"] = "preempt/none" if off else "preempt/partition_prio"
    elif lower in PARTITION_KEYS:
        partitions["batch"][PARTITION_KEYS[lower]] = value
    else:
        name = next((k for k in values if k.lower() == lower), key)
        values[name] = value


def _yes(key: str, value: str) -> bool:
    if value.lower() in ("1", "yes", "on", "true"):
        return True
    if value.lower() in ("0", "no", "off", "false"):
        return False
    raise ClusterError(f"{key}: expected on or off, got {value!r}")


def slurmdbd_conf(layout: Layout) -> str:
    """slurmdbd.conf."""
    return (
        f"AuthType=auth/munge\nAuthInfo=socket={layout.munge_socket}\n"
        f"DbdHost={HEAD}\nDbdAddr={layout.address(HEAD)}\nSlurmUser=root\n"
        f"LogFile={layout.log / 'slurmdbd.log'}\nPidFile={layout.run / 'slurmdbd.pid'}\n"
        "StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort=3306\n"
        f"StorageUser=slurm\nStoragePass={layout.storage_password.read_text()}\nStorageLoc=slurm_acct_db\n"
    )


def gres_conf(layout: Layout) -> str:
    """gres.conf: character devices that are no GPUs; SLURM schedules and masks them as if they were."""
    return f"AutoDetect=off\nNodeName={','.join(HOSTS)} Name=gpu File={layout.root}/dev/fakegpu[0-{GPUS - 1}]\n"


def cgroup_conf(version: tuple[int, ...]) -> str:
    """cgroup.conf: cgroups are not used. v1 does nothing until asked, also where only v2 is; v2 asks systemd at its start."""
    plugin = "disabled" if version >= (24, 5) else "cgroup/v1"  # newer ones can be told so, and warn of v1
    return f"CgroupPlugin={plugin}\nConstrainCores=no\nConstrainRAMSpace=no\n"


def hosts_file(layout: Layout) -> str:
    """/etc/hosts as the hosts of the cluster see it."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{layout.address(name)} {name}" for name in (HEAD, *HOSTS, "login")]
    return "\n".join(lines) + "\n"
