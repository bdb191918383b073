"""Sites are read from what SLURM prints: recorded from 22.05.8, and as 20.11, 23.11 and 24.05 print it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cluster import Cluster

from launcher.run.spec import SiteSpec
from launcher.slurm.site import JobLimit, Site, SiteTexts, ask_site, find_slurm, parse_site, policy

SITES = Path(__file__).parent / "sites"


def site(name: str) -> Site:
    """A recorded site."""
    parts = re.split(r"^### \w+\n", (SITES / f"{name}.txt").read_text(), flags=re.MULTILINE)[1:]
    return parse_site(SiteTexts(*parts))


@pytest.mark.parametrize(
    ("name", "partition", "qos", "expected"),
    [
        ("debian-22.05", None, None, (20, 10, "REQUEUE", True, False)),
        ("debian-22.05", "high", None, (0, 10, "OFF", True, False)),
        ("cancel-22.05", None, None, (0, 10, "CANCEL", False, False)),
        ("bare-22.05", None, None, (0, 10, "OFF", True, False)),
        ("signal-22.05", "batch", None, (120, 30, "REQUEUE", True, False)),
        ("suspend-22.05", None, None, (20, 10, "SUSPEND", True, False)),
        ("lab-20.11", None, None, (0, 30, "OFF", True, False)),
        ("campus-23.11", "gpu", None, (0, 30, "CANCEL", True, True)),
        ("campus-23.11", "gpu", "free", (120, 30, "REQUEUE", True, True)),
        ("campus-23.11", "gpu", "high", (0, 30, "OFF", True, True)),
        ("center-24.05", "h100-free", None, (120, 60, "REQUEUE", True, True)),
        ("center-24.05", "h100", None, (0, 60, "OFF", True, True)),
    ],
)
def test_what_a_job_has_to_reckon_with(
    name: str, partition: str | None, qos: str | None, expected: tuple[int, int, str, bool, bool]
) -> None:
    """Grace, KillWait, preempt mode, requeueing and epilog of a partition or QOS are the site's."""
    grace, kill, mode, requeue, epilog = expected

    assert policy(site(name), partition, qos) == SiteSpec(
        grace_s=grace,
        kill_wait_s=kill,
        preempt_mode=mode,
        requeue_allowed=requeue,
        has_epilog=epilog,
    )


def test_partitions_know_their_nodes() -> None:
    """Mixed hardware, nodes out of service, typed GPUs with sockets and several kinds in one node are counted."""
    cpu, gpu, debug = site("campus-23.11").partitions

    assert (cpu.default, cpu.nodes, cpu.usable_nodes, cpu.gpus_per_node, cpu.max_time_s) == (True, 200, 195, 0, 604800)
    assert (gpu.nodes, gpu.usable_nodes, gpu.gpus_per_node, gpu.gpu_nodes) == (20, 18, 8, 20)
    assert (gpu.gpu_types, gpu.max_nodes, gpu.allow_accounts, gpu.mem_gb_per_node) == (
        ("a100", "v100"),
        8,
        "vision,lm",
        1000,
    )
    assert (debug.up, debug.gpus_per_node, debug.gpu_types) == (False, 3, ("v100", "t4"))
    assert site("lab-20.11").partitions[0].max_time_s is None


@pytest.mark.parametrize(
    ("gres", "count", "types"),
    [
        ("gpu:3090:4(S:0-1)", 4, ("3090",)),
        ("gpu:4090:8,shard:4090:64", 8, ("4090",)),
        ("gpu:a100:4(S:0,1),gpu:3g.20gb:2", 6, ("a100", "3g.20gb")),
        ("gpu:4", 4, ()),
        ("gpu:h100", 1, ("h100",)),
        ("gpu", 1, ()),
        ("(null)", 0, ()),
    ],
)
def test_a_type_of_gpu_is_any_text(gres: str, count: int, types: tuple[str, ...]) -> None:
    """gres.conf(5): an optional arbitrary string. Types that begin with a digit counted as no GPU, and the job was refused."""
    (part,) = parse_site(SiteTexts("", "PartitionName=gpu\n", f"gpu|up|3|idle|64|257000|{gres}\n")).partitions

    assert (part.gpus_per_node, part.gpu_types) == (count, types)


def test_of_several_partitions_the_shortest_grace_is_sure() -> None:
    """SLURM chooses among `partition: a,b` later; one that is never preempted shortens nothing."""
    shown = "\n\n".join(
        f"PartitionName={name}\n   GraceTime={grace} PreemptMode={mode}\n"
        for name, grace, mode in (("a", 300, "REQUEUE"), ("b", 60, "CANCEL"), ("c", 0, "OFF"))
    )
    found = parse_site(SiteTexts("PreemptType = preempt/partition_prio\n", shown, ""))

    assert [(policy(found, names).grace_s, policy(found, names).preempt_mode) for names in ("a", "a,b", "c,a", "c")] == [
        (300, "REQUEUE"), (60, "CANCEL"), (300, "REQUEUE"), (0, "OFF"),
    ]  # fmt: skip


def test_a_qos_may_preempt_within_itself() -> None:
    """PreemptMode=WITHIN: no other QOS names it, and its jobs are preempted all the same."""
    texts = SiteTexts("PreemptType = preempt/qos\nPreemptMode = REQUEUE\n", "", "", "scav|00:05:00|within,requeue|\n")
    said = policy(parse_site(texts), None, "scav")

    assert (said.grace_s, said.preempt_mode) == (300, "REQUEUE")


@pytest.mark.parametrize(("said", "hosts"), [("ALL", "ALL"), ("login[1-2]", "login[1-2]")])
def test_from_where_jobs_may_be_submitted(said: str, hosts: str) -> None:
    """AllocNodes names them; nodes that are not among them cannot ask for a replacement."""
    shown = f"PartitionName=batch\n   AllocNodes={said} Default=YES QoS=N/A\n   State=UP TotalNodes=4\n"

    (part,) = parse_site(SiteTexts("", shown, "")).partitions

    assert part.alloc_nodes == hosts


@pytest.mark.parametrize(
    ("flags", "ages"), [("ACCRUE_ALWAYS,NO_FAIR_TREE", True), ("CALCULATE_RUNNING", False), ("", False)]
)
def test_whether_held_jobs_age(flags: str, ages: bool) -> None:
    """Only with ACCRUE_ALWAYS does age count for jobs that cannot run yet."""
    assert parse_site(SiteTexts(f"SLURM_VERSION = 24.11.5\nPriorityFlags = {flags}\n", "", "")).ages_held_jobs is ages


def test_the_form_in_which_gpus_are_asked_for() -> None:
    """--gpus-per-node exists with select/cons_tres alone."""
    assert {n: site(n).gpu_request for n in ("lab-20.11", "campus-23.11", "debian-22.05")} == {
        "lab-20.11": "gres", "campus-23.11": "gpus-per-node", "debian-22.05": "gpus-per-node",
    }  # fmt: skip


def test_the_rest_of_a_configuration() -> None:
    """Requeue delay, user signal, arrays, accounting and plugins are read; both spellings of the signal."""
    center, campus, bare = site("center-24.05"), site("campus-23.11"), site("bare-22.05")

    assert (center.requeue_delay_s, center.send_user_signal, center.max_array_size) == (61, True, 75001)
    assert (campus.requeue_delay_s, campus.submit_plugins, campus.enforces) == (121, "lua", "associations,limits,qos")
    assert (bare.accounting, bare.preempt_type, center.numbers) == ("none", "none", (24, 5, 4))
    assert site("signal-22.05").send_user_signal


@pytest.mark.parametrize(
    ("version", "parameters", "expected_s"),
    [
        ("24.11.5", "requeue_delay=7", 121),
        ("25.11.0", "requeue_delay=7", 8),
        ("26.05.5", "requeue_delay=0", 1),
        ("27.11.1", "x", 121),
    ],
)
def test_the_requeue_delay_is_a_parameter_since_25_11(version: str, parameters: str, expected_s: int) -> None:
    """Before, the parameter counts nowhere; since then a requeued job waits one second more than it says (measured on 26.05.5)."""
    config = f"SLURM_VERSION = {version}\nSchedulerParameters = bf_continue,{parameters}\n"

    assert parse_site(SiteTexts(config, "", "")).requeue_delay_s == expected_s


def test_an_empty_answer_is_a_site_of_defaults() -> None:
    """Nothing that a version does not say makes reading fail."""
    empty = parse_site(SiteTexts("", "", "", ""))

    assert (empty.version, empty.partitions, empty.kill_wait_s, empty.requeue_delay_s) == ("", (), 30, 121)


def commands(folder: Path, *names: str) -> dict[str, str]:
    """An environment whose PATH holds these commands alone."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def test_slurm_is_found_half_found_or_absent(tmp_path: Path) -> None:
    """All commands: ready. A configuration or some commands: traces, and the sentence names what is missing."""
    for name in ("all", "some", "none"):
        (tmp_path / name).mkdir()
    ready = find_slurm(commands(tmp_path / "all", "sbatch", "srun", "squeue", "scancel", "scontrol"))
    some = find_slurm({**commands(tmp_path / "some", "squeue", "scontrol"), "SLURM_CONF": "/x"})
    none = find_slurm(commands(tmp_path / "none"))

    assert (ready.state, some.state) == ("ready", "traces")
    assert none.state == ("traces" if Path("/etc/slurm/slurm.conf").exists() else "none")
    assert "sbatch, srun and scancel are not on the PATH: load its module" in some.reason
    assert "$SLURM_CONF is set" in some.reason


def test_the_clusters_own_words(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real cluster is read as what it is, and what `set` changes is seen."""
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    cluster.set(GraceTime=7, JobRequeue=0)
    here = ask_site()
    assert isinstance(here, Site)
    batch = here.partition(None)

    assert batch is not None
    assert (batch.name, batch.nodes, batch.usable_nodes, batch.gpus_per_node, batch.cpus_per_node) == (
        "batch",
        4,
        4,
        4,
        8,
    )
    assert policy(here) == SiteSpec(grace_s=7, kill_wait_s=10, preempt_mode="REQUEUE", requeue_allowed=False)
    assert (here.accounting, [q.name for q in here.qos]) == ("slurmdbd", ["normal"])


def test_limits_of_jobs_are_those_that_slurm_enforces(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of this user's account and of QOS: asked for where they are enforced, and a second job is refused or waits by them."""
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])

    def limits() -> set[JobLimit]:
        found = ask_site()
        assert isinstance(found, Site)
        return set(found.job_limits)

    def change(*words: str) -> None:
        cluster.run(["sacctmgr", "-i", "modify", *words])

    def second() -> str:
        return cluster.run(["sbatch", "--wrap=true", "-D", "/", "-o", "/dev/null"], check=False).stderr

    try:
        change("user", "where", "name=root", "set", "MaxSubmitJobs=1")
        change("qos", "normal", "set", "MaxJobsPerUser=1")
        assert limits() == set()
        cluster.set(AccountingStorageEnforce="limits")
        assert limits() == {
            JobLimit(kind="Account", name="root", queued=1),
            JobLimit(kind="QOS", name="normal", running=1),
        }
        first = cluster.sbatch(wrap="sleep 600", cwd="/")
        cluster.wait_job(first, "RUNNING")
        assert "AssocMaxSubmitJobLimit" in second()
        change("user", "where", "name=root", "set", "MaxSubmitJobs=-1")
        assert second() == ""
        reasons = ["squeue", "-h", "-t", "PD", "-o", "%r"]
        cluster.wait(lambda: "QOSMaxJobsPerUserLimit" in cluster.run(reasons).stdout, "the second job's reason")
    finally:
        change("user", "where", "name=root", "set", "MaxSubmitJobs=-1")
        change("qos", "normal", "set", "MaxJobsPerUser=-1")
        cluster.cancel_all()


def test_messages_that_wait_for_slurmdbd_are_counted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without slurmdbd a job's messages wait at slurmctld, as sdiag says, and no QOS is told; with it both are back."""
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    cluster.verb("stop", "slurmdbd")
    try:
        cluster.sbatch(wrap="true", cwd="/")
        cluster.wait(lambda: "DBD Agent queue size: 0\n" not in cluster.run(["sdiag"]).stdout, "messages that wait")
        without = ask_site()
    finally:
        cluster.verb("start", "slurmdbd")
    cluster.wait(lambda: "DBD Agent queue size: 0\n" in cluster.run(["sdiag"]).stdout, "slurmdbd to have them")
    again = ask_site()

    assert isinstance(without, Site)
    assert isinstance(again, Site)
    assert (without.accounting_backlog > 0, without.qos) == (True, ())
    assert (again.accounting_backlog, [q.name for q in again.qos]) == (0, ["normal"])


def test_a_silent_slurm_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer there is a sentence instead of a site."""
    monkeypatch.setenv("PATH", "/nonexistent")

    assert ask_site() == "SLURM does not answer: scontrol is not on the PATH."


def test_the_example_of_a_site_profile_is_one() -> None:
    """slurm/site.yaml is accepted as a profile."""
    from launcher.config.load.site_profile import load_site

    profile = load_site([SITES.parents[2] / "slurm" / "site.yaml"])

    assert (profile.debug_partition, profile.locked) == ("high", ("restart.max_total_hours",))
