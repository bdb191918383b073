"""Start and end the cluster's daemons, each inside its host's namespaces."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

from layout import HEAD, HOSTS, ClusterError, Layout, sh, wait_for
from network import pids

NAMES = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd")


def inside(layout: Layout, host: str, *args: str, log: Path | None = None, limit_s: float = 60) -> None:
    """Run a command on a host, to its end or until it has become a daemon. Raises ClusterError.

    ``ip netns exec`` would remount /sys and hide the cgroups from slurmd. The mount namespace has an /etc/hosts of its own,
    so that host names of several clusters do not meet; as a slave it shows what the machine mounts later.
    """
    script = (
        f"hostname {shlex.quote(host)} && mount --bind {shlex.quote(str(layout.etc / 'hosts'))} /etc/hosts"
        ' && ulimit -c 0 && exec "$@"'
    )
    command = [
        "nsenter", f"--net={layout.netns_path(host)}", "--",
        "unshare", "--uts", "--mount", "--propagation", "slave", "--",
        "sh", "-c", script, "sh", *args,
    ]  # fmt: skip
    path = f"{layout.programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {"PATH": path, "LANG": "C.UTF-8"}
    env |= {"SLURM_CONF": str(layout.conf), "HOME": "/root", "SHELL": "/bin/sh", "USER": "root"}
    said = log or layout.log / f"{Path(args[0]).name}-start.log"
    with open(said, "ab") as out:
        try:
            done = subprocess.run(
                command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                timeout=limit_s, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{args[0]} on {host} did not start within {limit_s:g} s; see {said}") from None
    if done.returncode:
        raise ClusterError(f"{' '.join(args)} on {host} failed: {tail(said)}")


def background(layout: Layout, host: str, *args: str, log: Path) -> None:
    """Start a command that does not become a daemon by itself."""
    inside(layout, host, "sh", "-c", 'setsid "$@" </dev/null & exit 0', "sh", *args, log=log)


def tail(path: Path, size: int = 1500) -> str:
    """The last words of a log."""
    with contextlib.suppress(OSError):
        return path.read_bytes()[-size:].decode(errors="replace").strip()
    return ""


def last_words(layout: Layout, daemon: str) -> str:
    """The last line that a daemon of the head logged."""
    return tail(layout.log / f"{daemon}.log").rpartition("\n")[2]


def find(layout: Layout, daemon: str, host: str = HEAD) -> list[int]:
    """Processes of a daemon in a host's namespace (slurmd's steps are called slurmstepd).

    Since 23.11 `scontrol reconfigure` makes a daemon execute its own file again: Debian's slurmd is then slurmd-wlm.
    A process that becomes a daemon forks: its child may be born behind the place where a listing of /proc is, and it may end before
    it is looked at (2 of 40 starts of slurmdbd). So "none" is said after a second look.
    """
    return _find(layout, daemon, host) or _find(layout, daemon, host)


def _find(layout: Layout, daemon: str, host: str) -> list[int]:
    out = []
    for pid in pids([layout.netns(host)]):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() in (daemon, f"{daemon}-wlm"):
                out.append(pid)
    return out


def stop(layout: Layout, daemon: str, host: str = HEAD, sig: signal.Signals = signal.SIGKILL) -> None:
    """End a daemon; the steps of a slurmd live on, as they do when one crashes.

    SIGTERM lets slurmctld write its state; SIGKILL makes it forget what changed in the last 5 s.
    """
    sent: set[int] = set()

    def ended() -> bool:
        """One that forks while it is looked for leaves a child: each is killed, none is sent the signal twice."""
        found = find(layout, daemon, host)
        for pid in {*found} - sent:
            sent.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
        return not found

    if sig != signal.SIGKILL:
        with contextlib.suppress(ClusterError):
            wait_for(f"end of {daemon} on {host}", ended, 30)
            return
        stop(layout, daemon, host)
    wait_for(f"end of {daemon} on {host}", ended, 30)


def start_munged(layout: Layout) -> None:
    """The cluster's own munged, with a key of its own."""
    key = layout.etc / "munge.key"
    fd = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, os.urandom(128))
    os.close(fd)
    inside(
        layout, HEAD, "munged", "--force", f"--socket={layout.munge_socket}", f"--key-file={key}",
        f"--log-file={layout.log / 'munged.log'}", f"--pid-file={layout.run / 'munged.pid'}",
        f"--seed-file={layout.root / 'munge.seed'}", "--num-threads=4",
    )  # fmt: skip
    wait_for("munged's socket", layout.munge_socket.exists, 30)


def start_mariadb(layout: Layout) -> None:
    """A small mariadbd on the head's 127.0.0.1, as a user of its own, in folders that nobody else enters.

    Its data lie under the cluster's directory, whose parents that user may not enter (pytest's folders are root's): they are
    mounted beside the socket, for the host's processes alone.
    """
    data, own = layout.root / "mysql", layout.run / "mysql"
    place, temporary, socket, log = own / "data", own / "tmp", own / "socket", layout.log / "mariadbd.log"
    for folder in (data, own, place, temporary):
        folder.mkdir(mode=0o700, exist_ok=True)
        shutil.chown(folder, "mysql", "mysql")
    mounted = ("sh", "-c", f'mount --bind {shlex.quote(str(data))} {shlex.quote(str(place))} && exec "$@"', "sh")
    # A mariadbd that starts removes every temporary table in its tmpdir, also those of another cluster's that is starting.
    common = (
        "--no-defaults", "--user=mysql", f"--datadir={place}", f"--tmpdir={temporary}", "--innodb-log-file-size=16M",
    )  # fmt: skip
    if not (data / "mysql").exists():
        inside(layout, HEAD, *mounted, "mariadb-install-db", *common, "--skip-test-db", log=log)
    options = [
        *common, f"--socket={socket}", f"--pid-file={own / 'pid'}", "--bind-address=127.0.0.1", "--port=3306",
        "--skip-name-resolve", "--skip-log-bin", "--innodb-buffer-pool-size=64M",
        "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--innodb-lock-wait-timeout=900",
        # What slurmdbd asks for; MariaDB before 11.6.2 has no such variable.
        "--loose-innodb-snapshot-isolation=OFF",
        "--aria-pagecache-buffer-size=8M", "--key-buffer-size=1M", "--performance-schema=OFF", "--max-connections=40",
    ]  # fmt: skip
    background(layout, HEAD, *mounted, "mariadbd", *options, log=log)
    # slurmdbd would make its database itself, but libmariadb 3.4 forgets its column limit when a connection fails, and
    # slurmdbd's first one does ("Unknown database"): every query after that fails with error 5027.
    sql = (
        f"create database if not exists slurm_acct_db; create or replace user slurm@127.0.0.1 identified by "
        f"'{layout.storage_password.read_text()}'; grant all on slurm_acct_db.* to slurm@127.0.0.1; select 7"
    )

    def answers() -> bool:
        if not find(layout, "mariadbd") and "ERROR" in tail(log):
            raise ClusterError(f"mariadbd did not start: {tail(log)}")
        # root is known by its uid at the socket's other end; a password on a command line could be read by everybody
        return sh("mariadb", "--no-defaults", f"--socket={socket}", "-N", check=False, stdin=sql).strip() == "7"

    wait_for("mariadbd", answers, 90, 0.2)


def start_slurmdbd(layout: Layout) -> None:
    """slurmdbd; returns when it answers and knows the cluster."""
    inside(layout, HEAD, "slurmdbd")

    def answers() -> bool:
        if not find(layout, "slurmdbd"):
            raise ClusterError(f"slurmdbd has ended: {last_words(layout, 'slurmdbd')}")
        return "launcher" in sacctmgr(layout, "-n", "-P", "list", "cluster", "format=cluster")

    def added() -> bool:
        sacctmgr(layout, "-i", "add", "cluster", "launcher")
        return answers()

    wait_for("slurmdbd", lambda: answers() or added(), 90, 0.2)


def sacctmgr(layout: Layout, *args: str) -> str:
    """What sacctmgr says, or nothing."""
    return client(layout, "sacctmgr", *args)


def client(layout: Layout, *args: str, check: bool = False, timeout: float = 60) -> str:
    """One of SLURM's commands, from the machine itself."""
    return sh("env", f"SLURM_CONF={layout.conf}", *args, check=check, timeout=timeout)


def start_slurmctld(layout: Layout) -> None:
    """slurmctld; returns when it answers."""
    inside(layout, HEAD, "slurmctld", "-f", str(layout.conf))
    wait_for("slurmctld", lambda: "is UP" in client(layout, "scontrol", "ping"), 90)


def start_slurmd(layout: Layout, host: str) -> None:
    """The slurmd of a host."""
    inside(layout, host, "slurmd", "-N", host, "-f", str(layout.conf), log=layout.log / f"slurmd-{host}-start.log")


def node_states(layout: Layout) -> dict[str, str]:
    """State of every host in SLURM's words, "" for all when slurmctld does not answer."""
    out = client(layout, "sinfo", "-h", "-N", "-o", "%N %T")
    states = dict(line.split(None, 1) for line in out.splitlines() if " " in line)
    return {host: states.get(host, "").strip() for host in HOSTS}


READY = ("idle", "mixed", "allocated", "reserved", "planned")


def wait_ready(layout: Layout, hosts: tuple[str, ...] = HOSTS, *, idle: bool = False, limit_s: float = 120) -> None:
    """Until SLURM would start a job on each of ``hosts``; ``idle``: until nothing runs there either."""

    def ready() -> bool:
        states = node_states(layout)
        return all(states[h] == "idle" if idle else states[h] in READY for h in hosts)

    try:
        wait_for("hosts that are ready", ready, limit_s, 0.2)
    except ClusterError as error:
        raise ClusterError(f"{error}: {node_states(layout)}") from None
