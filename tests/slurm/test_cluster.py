"""slurm/cluster gives a real cluster: hosts that differ, accounting, GPUs, faults and preemption."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from cluster import COMMAND, Cluster


def cluster_pids(cluster: Cluster) -> set[int]:
    """Every process of the cluster, daemons included."""
    return cluster.all_processes("head", *cluster.hosts)


def daemons(cluster: Cluster) -> dict[str, int]:
    """The process of each daemon, by the name of the file it wrote its id into: what it forks, for a moment, is none of them."""
    conf = Path(cluster.env["SLURM_CONF"]).read_text()
    written = re.search(r"^SlurmctldPidFile=(\S+)", conf, re.MULTILINE)
    assert written is not None, conf
    return {path.stem: int(path.read_text()) for path in Path(written[1]).parent.glob("*.pid")}


def sleepers(cluster: Cluster, seconds: int) -> list[int]:
    """Processes on the hosts that are `sleep SECONDS` themselves."""
    argv = {pid: command.split() for pid, command in cluster.processes().items()}
    return [pid for pid, a in argv.items() if a and a[0].endswith("sleep") and a[1:] == [str(seconds)]]


def own_tag(cluster: Cluster) -> str:
    """What the names of this cluster's namespaces begin with."""
    return "lc" + hashlib.sha256(str(cluster.directory).encode()).hexdigest()[:6]


def test_jobs_run_on_four_hosts_that_know_each_other_by_name(cluster: Cluster) -> None:
    """Four tasks see four host names and resolve each other's to four addresses."""
    out = cluster.run(
        ["srun", "-N4", "sh", "-c", "echo $(hostname) $(getent hosts node1 node2 node3 node4 | wc -l) $(hostname -i)"]
    ).stdout
    rows = sorted(line.split() for line in out.splitlines())

    assert [r[0] for r in rows] == list(cluster.hosts)
    assert {r[1] for r in rows} == {"4"}
    assert len({r[2] for r in rows}) == 4


def test_up_leaves_a_healthy_cluster_alone(cluster: Cluster) -> None:
    """`up` on a running cluster starts nothing anew: its processes stay, and so does a running job."""
    job = cluster.sbatch("-N1", wrap="sleep 600", cwd="/")
    cluster.wait_job(job, "RUNNING")
    before = daemons(cluster)

    cluster.verb("up")

    assert {"munged", "slurmctld", "slurmdbd", *(f"slurmd-{host}" for host in cluster.hosts)} == before.keys()
    assert daemons(cluster) == before
    assert set(before.values()) <= cluster_pids(cluster)
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.cancel_all()


def test_accounting_remembers_how_a_job_ended(cluster: Cluster, tmp_path: Path) -> None:
    """sacct tells state and exit code of a failed job."""
    job = cluster.sbatch("-N2", f"--output={tmp_path}/out", wrap="exit 3")

    def ended() -> bool:
        return cluster.run(["sacct", "-nPX", "-j", job, "-o", "state,exitcode"]).stdout.strip() == "FAILED|3:0"

    cluster.wait(ended, "the job in sacct")


def _options(pid: int) -> dict[str, str]:
    return dict(word.lstrip("-").partition("=")[::2] for word in psutil.Process(pid).cmdline())


def test_other_users_of_the_machine_get_at_no_accounting(cluster: Cluster) -> None:
    """MariaDB is no root process, nobody else enters its folders or reads its password, and without that it lets nobody in."""
    (pid,) = cluster.daemon("mariadbd")
    words = _options(pid)
    looks = [
        ["ls", str(Path(words["socket"]).parent)],
        ["ls", str(cluster.directory / "mysql")],
        ["cat", str(cluster.directory / "etc" / "slurmdbd.conf")],
        ["cat", str(cluster.directory / "etc" / "storage.password")],
        ["mariadb", "--no-defaults", f"--socket={words['socket']}", "--user=root", "-e", "select 1"],
    ]
    dial = ["nsenter", f"--net=/proc/{pid}/ns/net", "mariadb", "--no-defaults", "--host=127.0.0.1"]
    dials = [[*dial, f"--user={name}", "-e", "select 1"] for name in ("root", "slurm", "mysql", "nobody")]

    assert psutil.Process(pid).uids().effective == pwd.getpwnam("mysql").pw_uid
    for as_whom, attempts in ((65534, looks), (0, dials)):
        for words_ in attempts:
            done = subprocess.run(words_, user=as_whom, group=as_whom, extra_groups=[], capture_output=True, text=True)
            assert done.returncode != 0, (words_, done.stdout)
            assert re.search(r"denied|2002|13", done.stderr), (words_, done.stderr)


def test_a_database_that_starts_leaves_the_temporary_tables_of_other_clusters(cluster: Cluster) -> None:
    """MariaDB removes every temporary table in its tmpdir when it starts: in /tmp, also those by which another is just being made."""
    (pid,) = cluster.daemon("mariadbd")
    socket = _options(pid)["socket"]
    asked = ["mariadb", "--no-defaults", f"--socket={socket}", "-N", "-e", "select @@tmpdir"]

    assert Path(cluster.run(asked).stdout.strip()) == Path(socket).parent / "tmp"


def test_a_limit_of_a_user_can_be_set_and_taken_back(cluster: Cluster) -> None:
    """slurmdbd has the procedure of its database by which it reads limits: without it every limit is 0 and none can be changed."""

    def limit(value: str) -> str:
        cluster.run(["sacctmgr", "-i", "modify", "user", "where", "name=root", "set", f"MaxJobs={value}"])
        shown = ["sacctmgr", "-nP", "show", "assoc", "where", "user=root", "format=maxjobs"]
        return cluster.run(shown).stdout.strip()

    assert [limit("9"), limit("-1")] == ["9", ""]


def test_status_says_what_runs_and_env_points_a_shell_at_it(cluster: Cluster) -> None:
    """`env`'s exports lead SLURM's commands to this cluster; `status` names daemons, hosts, and which is cut off."""
    command = Path(__file__).parents[2] / "slurm" / "cluster"
    bare = {**cluster.env, "SLURM_CONF": "/nowhere"}
    shell = f'eval "$({command} env)" && sinfo -hN -p batch -o %N && {command} status'
    hosts, _, status = cluster.run(["sh", "-c", shell], env=bare).stdout.partition("directory")
    daemons = dict(re.findall(r"^(\w+) +(running|not running)$", status, re.M))

    assert hosts.split() == list(cluster.hosts)
    assert daemons == dict.fromkeys(("munged", "mariadbd", "slurmdbd", "slurmctld"), "running")
    assert re.findall(r"^(node\d) +[\d.]+ [a-z]+$", status, re.M) == list(cluster.hosts)
    cluster.cut("node3")
    cut = cluster.run([command, "status"], check=False)
    assert re.findall(r"^(node\d).*, cut off$", cut.stdout, re.M) == ["node3"]


def test_gpus_are_granted_and_masked(cluster: Cluster, tmp_path: Path) -> None:
    """Two jobs of two GPUs on one host see two each, none twice; five on a host of four are refused."""
    ask = ["-w", "node1", "--gpus-per-node=2", "--output=/dev/null"]
    show = f"cd {tmp_path}; echo $CUDA_VISIBLE_DEVICES >$SLURM_JOB_ID.new; mv $SLURM_JOB_ID.new $SLURM_JOB_ID"
    jobs = [cluster.sbatch(*ask, wrap=f"{show}; until test -e go; do sleep 0.1; done") for _ in range(2)]
    cluster.wait(lambda: all((tmp_path / job).exists() for job in jobs), "both jobs")
    masks = [(tmp_path / job).read_text().strip() for job in jobs]
    (tmp_path / "go").touch()
    too_many = cluster.run(["sbatch", "--test-only", "-N1", "--gpus-per-node=5", "--wrap=true"], check=False)

    assert sorted(masks) == ["0,1", "2,3"]
    assert too_many.returncode == 1


def test_a_host_that_is_cut_off_is_silent_and_comes_back(cluster: Cluster) -> None:
    """Packets to a host that is cut off vanish while its processes run on; healed, it runs jobs again."""

    def answers() -> bool:
        try:
            socket.create_connection((address, 6818), timeout=3).close()
        except OSError:
            return False
        return True

    address = cluster.run(["scontrol", "show", "node", "node2", "-o"]).stdout.split("NodeAddr=")[1].split()[0]
    job = cluster.sbatch("-w", "node2", wrap="sleep 603")
    cluster.wait(lambda: len(sleepers(cluster, 603)) == 1, "the job")
    before = answers()
    cluster.cut("node2")
    during = answers()
    running = len(sleepers(cluster, 603))
    cluster.heal("node2")

    assert (before, during, running) == (True, False, 1)
    assert cluster.job(job)["JobState"] == "RUNNING"
    assert cluster.run(["srun", "-w", "node2", "hostname"]).stdout.strip() == "node2"
    cluster.cancel_all()


def test_killing_a_host_ends_its_processes_alone(cluster: Cluster) -> None:
    """`kill` ends every process of one host; with --no-kill the job's other host runs on."""
    job = cluster.sbatch("-N2", "-w", "node1,node2", "--no-kill", wrap="srun --no-kill sleep 601", cwd="/")
    cluster.wait(lambda: len(sleepers(cluster, 601)) == 2, "both tasks")

    cluster.kill("node2")

    assert len(sleepers(cluster, 601)) == 1
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.cancel_all()


def test_preemption_warns_a_step_that_requeues_itself(cluster: Cluster, tmp_path: Path) -> None:
    """A job of `high` preempts one of `batch`: its step is sent TERM, requeues the job from inside, and the other starts."""
    step = tmp_path / "step.sh"
    step.write_text(
        "#!/bin/bash\ntrap 'scontrol show job -o $SLURM_JOB_ID >>$1/facts; scontrol requeue $SLURM_JOB_ID; exit 0' TERM\n"
        "touch $1/ready; while :; do sleep 0.1; done\n"
    )
    step.chmod(0o755)
    low = cluster.sbatch("-N4", "--exclusive", f"--output={tmp_path}/out", wrap=f"srun -n1 -N1 {step} {tmp_path}")
    cluster.wait((tmp_path / "ready").exists, "the first job's step")

    high = cluster.sbatch("-N4", "-p", "high", wrap="true")
    cluster.wait_job(high, "COMPLETED")

    facts = dict(re.findall(r"(\S+?)=(\S*)", (tmp_path / "facts").read_text().splitlines()[0]))
    assert facts["JobState"] in ("RUNNING", "SIGNALING")  # the second as long as slurmctld is still sending
    assert facts["PreemptTime"] != "None"
    assert cluster.wait_job(low, "PENDING")["Restarts"] == "1"
    cluster.cancel_all()


@pytest.mark.parametrize(
    ("word", "expect"),
    [
        ("GraceTime=7", "GraceTime=7 "),
        ("PreemptMode=CANCEL", "PreemptMode=CANCEL"),
        ("high.MaxTime=5", "MaxTime=00:05:00"),
    ],
)
def test_set_changes_a_partition(cluster: Cluster, word: str, expect: str) -> None:
    """`set` reaches the partition that it names, `batch` when it names none."""
    key, _, value = word.partition("=")
    cluster.set(**{key: value})

    assert expect in cluster.run(["scontrol", "show", "partition", "-o"]).stdout


def test_set_changes_the_configuration_and_back(cluster: Cluster) -> None:
    """Settings of slurm.conf take effect, and `set` without values is the default again."""
    cluster.set(JobRequeue=0, send_user_signal="yes", KillWait=3)
    changed = cluster.run(["scontrol", "show", "config"]).stdout
    cluster.restore({})
    back = cluster.run(["scontrol", "show", "config"]).stdout

    assert re.search(r"^JobRequeue +: ?0|^JobRequeue += 0", changed, re.M)
    assert re.search(r"\b(preempt_)?send_user_signal", changed)  # 23.02 took the prefix off
    assert re.search(r"^KillWait += 3 sec", changed, re.M)
    assert re.search(r"^JobRequeue += 1", back, re.M)


def test_a_reader_that_has_seen_enough_is_no_error(cluster: Cluster) -> None:
    """`status | head -1` ends as a command does that SIGPIPE ended: without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [Path(__file__).parents[2] / "slurm" / "cluster", "status"]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=cluster.env, timeout=60)
    finally:
        os.close(writer)

    assert (done.returncode, done.stderr) == (141, "")


def test_wrong_words_are_refused_in_one_sentence(cluster: Cluster) -> None:
    """An unknown host, partition, release or word, or one without a value, changes nothing and is said in one line."""
    for args in (
        ["kill", "node9"],
        ["set", "low.MaxTime=1"],
        ["set", "GraceTime"],
        ["set", "Accounting=maybe"],
        ["up", "--release", "potato"],
        ["up", "--release"],
        ["up", "now"],
        ["down", "--release=sid"],
    ):
        done = cluster.run([Path(__file__).parents[2] / "slurm" / "cluster", *args], check=False)

        assert done.returncode == 1
        assert done.stderr.startswith("cluster: ")
        assert len(done.stderr.splitlines()) == 1


def test_a_daemon_is_found_after_it_was_reconfigured(cluster: Cluster) -> None:
    """Since 23.11 a reconfigured daemon executes itself anew, under another name: `stop` still ends it, `heal` starts another."""
    cluster.set(KillWait=5)
    before = cluster.daemon("slurmd", "node1")
    cluster.stop_slurmctld()
    cluster.verb("stop", "node1")

    assert before
    assert not cluster.daemon("slurmd", "node1")
    cluster.heal("slurmctld", "node1")
    assert cluster.daemon("slurmd", "node1")


def test_a_controller_that_died_comes_back_with_its_jobs(cluster: Cluster) -> None:
    """A job survives SIGKILL of slurmctld and of its host's slurmd."""
    job = cluster.sbatch("-N1", "-w", "node1", wrap="sleep 602", cwd="/")
    cluster.wait_job(job, "RUNNING")
    # slurmctld writes its state within 5 s of a change; what it has not written it forgets.
    saved = cluster.directory / "state" / "job_state"
    now = time.time()
    cluster.run(["scontrol", "update", f"JobId={job}", "Comment=changed"])
    cluster.wait(lambda: saved.exists() and saved.stat().st_mtime > now, "the saved state")
    cluster.restart("slurmctld", "node1")

    assert cluster.wait_job(job, "RUNNING")["NodeList"] == "node1"
    assert len(sleepers(cluster, 602)) == 1
    cluster.cancel_all()


def test_up_recovers_when_every_daemon_was_killed(cluster: Cluster) -> None:
    """After SIGKILL of every daemon, stale pid files and sockets included, `up` gives a cluster that runs jobs."""
    daemons = cluster.daemon("slurmctld") | cluster.daemon("slurmdbd") | cluster.daemon("slurmd", "node3")
    for pid in cluster_pids(cluster):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    cluster.wait(lambda: not cluster_pids(cluster), "the end of every process", 30)

    cluster.verb("up")

    assert len(daemons) >= 3
    assert not daemons & cluster_pids(cluster)
    assert cluster.run(["srun", "-N4", "hostname"]).stdout.count("node") == 4


@pytest.mark.long
def test_up_tries_again_when_a_daemon_ends_while_it_starts(cluster: Cluster) -> None:
    """slurmdbd is killed the moment it appears: `up` says so, builds everything once more, and jobs run."""
    cluster.verb("down")
    words = [str(COMMAND), "up"]
    with subprocess.Popen(words, env=cluster.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        cluster.wait(lambda: kill_slurmdbd(cluster), "slurmdbd")
        _, err = process.communicate(timeout=300)

    assert process.returncode == 0, err
    assert re.search("slurmdbd (has ended|on head failed)", err)  # the second, where it was no daemon yet
    assert cluster.run(["srun", "-N4", "hostname"]).stdout.count("node") == 4


def kill_slurmdbd(cluster: Cluster) -> bool:
    """Kill it as soon as it is there; whether it was, and is no more: while it becomes a daemon it forks."""
    killed = False
    while found := cluster.daemon("slurmdbd"):
        killed = True
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return killed


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_release_is_one_word(cluster: Cluster, tmp_path: Path) -> None:
    """`up --release` gives hosts that are systems of that release, with its SLURM, accounting, faults and commands for this machine.

    They know each other's names also after somebody has entered a login host of that release.
    """
    release, name = ("forky", "forky/sid") if "trixie" in Path("/etc/os-release").read_text() else ("trixie", "trixie")
    other = Cluster(tmp_path / "other")
    shell = 'eval "$("$0" env)"; sinfo --version; srun -N4 sh -c "sinfo --version; grep PRETTY /etc/os-release"; "$0" enter sinfo --version'
    shell += "; srun -N4 getent hosts node4"
    try:
        other.verb("up", "--release", release, timeout=1500)
        said = other.run(["bash", "-c", shell, COMMAND], cwd="/").stdout.splitlines()
        other.env["PATH"] = f"{other.directory}/bin:{other.env['PATH']}"
        job = other.sbatch("-N1", "-w", "node2", wrap="sleep 607", cwd="/")
        other.wait_job(job, "RUNNING")
        other.set(KillWait=5)
        other.restart("slurmctld", "node1")
        other.kill("node2")
        other.heal("node2")
        other.cancel_all()
        account = other.run(["sacct", "-nPX", "-j", job, "-o", "jobid"]).stdout.split()
        status = other.run([COMMAND, "status"]).stdout
    finally:
        other.verb("down")

    versions = {line for line in said if line.startswith("slurm")}
    assert len(versions) == 1
    assert f"slurm-wlm {other_version(status)}" in versions
    assert sum(f'({name})"' in line or f' {name}"' in line for line in said) == 4
    assert f"release    {release}, slurm-wlm" in status
    assert 4 == sum(line.endswith(" node4") for line in said)
    assert account == [job]
    assert not other.directory.exists()


def other_version(status: str) -> str:
    """SLURM's version in what `status` says."""
    return status.partition("slurm-wlm ")[2].split()[0]


def test_down_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """A second cluster lives beside the first, and `down` removes its processes, namespaces, links and directories."""
    other = Cluster(tmp_path / "other")
    tag = own_tag(other)
    try:
        other.verb("up")
        ran = other.run(["srun", "-N2", "hostname"]).stdout.split()
        pids = cluster_pids(other)
    finally:
        other.verb("down")

    assert sorted(ran) == ["node1", "node2"]
    assert pids
    assert not other.directory.exists()
    assert [n for n in os.listdir("/run/netns") if n.startswith(tag)] == []
    assert [n for n in os.listdir("/sys/class/net") if n.startswith(tag)] == []
    assert [n for n in os.listdir("/run") if n.endswith(tag[2:])] == []
    assert [n for n in os.listdir("/run/lock") if tag[2:] in n] == []
    assert cluster.run(["srun", "-N4", "hostname"]).returncode == 0
