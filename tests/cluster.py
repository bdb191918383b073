"""The fixture ``cluster``: a real four-host SLURM, one for each test process, started by the first test that asks.

Where `slurm/cluster check` finds nothing wrong it always runs (missing packages are installed); elsewhere tests that use it are skipped.
After each test, hosts are healed and settings are put back to what they were before it. Jobs are the test's own
business: `Cluster.cancel_all` ends what is left of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
COMMAND = ROOT / "slurm" / "cluster"
HOSTS = ("node1", "node2", "node3", "node4")


class Cluster:
    """A running cluster; every method waits until what it asks for is true, and raises when it does not come."""

    hosts = HOSTS

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._disk = Path(f"{directory}.disk")
        self.settings: dict[str, str] = {}
        self.broken: set[str] = set()
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN", "SQUEUE"))}
        self.env = {
            **keep,
            "LAUNCHER_CLUSTER_DIR": str(directory),
            "SLURM_CONF": str(directory / "etc" / "slurm.conf"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), keep.get("PATH", os.defpath)]),
        }

    def verb(self, *args: str, timeout: float = 300) -> str:
        """Run ``slurm/cluster`` with these arguments."""
        done = subprocess.run(
            [str(COMMAND), *args], env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"slurm/cluster {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stdout

    def run(
        self, command: Sequence[object], *, timeout: float = 120, check: bool = True, **kwargs: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login host, as users do."""
        env = {**self.env, **(kwargs.pop("env", None) or {})}
        done = subprocess.run(
            [str(c) for c in command], env=env, capture_output=True, text=True, timeout=timeout, check=False, **kwargs
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def set(self, **values: object) -> None:
        """Change settings, on top of the present ones: ``set(GraceTime=0, **{"high.MaxTime": 5})``."""
        timeout_s = int(str(values.get("SlurmdTimeout", 20)))
        if timeout_s < 20 and (24, 11, 0) <= self.version < (24, 11, 6):
            values["SlurmdTimeout"] = 20  # those may set every host DOWN when one dies: 1 of 8 times at 10 s
        self.settings |= {k: str(v) for k, v in values.items()}
        self.verb("set", *(f"{k}={v}" for k, v in values.items()))

    @property
    def version(self) -> tuple[int, ...]:
        """SLURM's, such as (24, 11, 5)."""
        return tuple(int(n) for n in re.findall(r"\d+", self.run(["sinfo", "--version"]).stdout))

    def restore(self, settings: dict[str, str]) -> None:
        """Exactly these settings."""
        if settings != self.settings:
            self.verb("set")
            self.settings = {}
            if settings:
                self.set(**settings)

    def kill(self, host: str) -> None:
        """Every process of the host dies, and its network with it."""
        self.broken.add(host)
        self.verb("kill", host)
        self.wait(lambda: not self.daemon("slurmd", host), f"the end of {host}'s slurmd", 30)

    def cut(self, host: str) -> None:
        """The host's network cable is pulled."""
        self.broken.add(host)
        self.verb("cut", host)

    def heal(self, *hosts: str) -> None:
        """Hosts (all that are broken, when none is named) are back in service."""
        for host in hosts or sorted(self.broken):
            self.verb("start" if host == "slurmctld" else "heal", host)
            self.broken.discard(host)

    def stop_slurmctld(self) -> None:
        """The controller dies by SIGKILL; ``heal()`` starts it again."""
        self.broken.add("slurmctld")
        self.verb("stop", "slurmctld")
        self.wait(lambda: not self.daemon("slurmctld"), "slurmctld's end", 30)

    def restart(self, *daemons: str) -> None:
        """Daemons ("slurmctld", "slurmdbd", a host for its slurmd) die by SIGKILL and start again."""
        names = {name: ("slurmd", name) if name in HOSTS else (name, "head") for name in daemons}
        before = {name: self.daemon(*where) for name, where in names.items()}
        self.verb("restart", *daemons)
        for name, where in names.items():

            def anew(name: str = name, where: tuple[str, str] = where) -> bool:
                after = self.daemon(*where)
                return bool(after) and not after & before[name]

            self.wait(anew, f"another {name}", 30, lambda name=name, where=where: (before[name], self.daemon(*where)))

    def daemon(self, name: str, host: str = "head") -> set[int]:
        """Processes of a daemon on a host, by the file that they execute: their names change at a reconfiguration.

        slurmctld's has a second one, slurmscriptd, which sees that the first was killed, and ends, some moments later.
        """
        return {pid for pid in self.all_processes(host) if re.fullmatch(rf"{name}(-wlm)?", _program(pid))}

    def all_processes(self, *hosts: str) -> set[int]:
        """Every process on these hosts ("head" is one), SLURM's own included; zombies are none."""
        tag = hashlib.sha256(str(self.directory).encode()).hexdigest()[:6]
        inodes = set()
        for host in hosts:
            with contextlib.suppress(OSError):
                inodes.add(os.stat(f"/run/netns/lc{tag}-{host}").st_ino)
        out = set()
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                if entry.isdigit() and os.stat(f"/proc/{entry}/ns/net").st_ino in inodes and _program(int(entry)):
                    out.add(int(entry))
        return out

    def mount_disk(self, size_mb: int = 4) -> None:
        """A disk of some megabytes, before the hosts are up: they do not see what is mounted later."""
        self.unmount_disk()
        self._disk.mkdir(parents=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0700", "tmpfs", str(self._disk)]
        subprocess.run(words, check=True)

    def unmount_disk(self) -> None:
        """Take it away; idempotent."""
        if self._disk.is_mount():
            subprocess.run(["umount", "-l", str(self._disk)], check=True)
        if self._disk.exists():
            self._disk.rmdir()

    @contextlib.contextmanager
    def small_disk(self) -> Iterator[Path]:
        """The small disk, empty; what is on it is lost after that."""
        yield self._disk
        for path in self._disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def sbatch(self, *args: object, wrap: str | None = None, **kwargs: Any) -> str:
        """Submit and return the job id. A command (``wrap``) leaves no output unless it is asked for."""
        quiet, extra = ([], []) if wrap is None else (["--output=/dev/null"], [f"--wrap={wrap}"])
        out = self.run(["sbatch", "--parsable", *quiet, *args, *extra], **kwargs).stdout
        return out.strip().split(";")[0]

    def job(self, job_id: str) -> dict[str, str]:
        """What ``scontrol show job`` says, {} when it knows no such job (any more)."""
        out = self.run(["scontrol", "show", "job", "-o", job_id], check=False).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", out))

    def wait_job(self, job_id: str, *states: str, limit_s: float = 120) -> dict[str, str]:
        """Wait until the job is in one of ``states`` and return what SLURM says of it."""
        seen: dict[str, str] = {}

        def there() -> bool:
            nonlocal seen
            seen = self.job(job_id) or seen
            return seen.get("JobState") in states

        self.wait(there, f"job {job_id} in {states}", limit_s, lambda: seen.get("JobState", "unknown"))
        return seen

    def wait(
        self, ready: Callable[[], object], what: str, limit_s: float = 120, now: Callable[[], object] | None = None
    ) -> None:
        """Poll ``ready`` until it is true."""
        end = time.monotonic() + limit_s
        while not ready():
            assert time.monotonic() < end, f"{what} did not come within {limit_s} s{f'; now {now()}' if now else ''}"
            time.sleep(0.1)

    def processes(self) -> dict[int, str]:
        """Processes that jobs have on the hosts, by pid; SLURM's own daemons are left out."""
        out = {}
        for pid in self.all_processes(*HOSTS):
            with contextlib.suppress(OSError):
                words, program = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "), _program(pid)
                if program and not re.fullmatch(r"slurm(step)?d(-wlm)?", program):  # none: it has just ended
                    out[pid] = words or program
        return out

    def release(self, job_id: str) -> None:
        """A job that SLURM put on hold, and the hosts that it drained for the same reason ("Duplicate jobid"), are good again."""
        self.run(["scontrol", "update", f"NodeName={','.join(self.hosts)}", "State=RESUME"], check=False)
        self.run(["scontrol", "release", job_id], check=False)

    def cancel_all(self) -> None:
        """Cancel every job and wait until none is left and the hosts are idle, also where they are reserved for maintenance."""
        self.heal()
        if (24, 11) <= self.version < (26, 5):
            # Of a job that was requeued after it had lost a node, a cancel keeps slurmdbd from hearing of any later job.
            end = time.monotonic() + 60
            while self.run(["squeue", "-h", "--states=COMPLETING"]).stdout and time.monotonic() < end:
                time.sleep(0.2)
        self.run(["scancel", "--state=PENDING"], check=False)
        self.run(["scancel", *self.run(["squeue", "-h", "-o", "%A"]).stdout.split(), "--full"], check=False)
        self.run(["scancel", *self.run(["squeue", "-h", "-o", "%A"]).stdout.split(), "--signal=KILL"], check=False)
        self.wait(lambda: not self.run(["squeue", "-h"]).stdout.strip(), "an empty queue")
        self._undrain()
        self.wait(
            lambda: (
                (states := set(self.run(["sinfo", "-h", "-N", "-o", "%T"]).stdout.split()))
                and states <= {"idle", "maint"}
            ),
            "idle hosts",
            now=lambda: self.run(["sinfo", "-N", "-o", "%N %T %H %E"]).stdout + self.logs(),
        )

    def _undrain(self) -> None:
        """Hosts that SLURM drained are good again, and the output says why it did.

        Nothing here drains a host. A machine that stands still for UnkillableStepTimeout while a job ends makes SLURM do
        it ("Kill task failed"), and no later test would ever find four hosts.
        """
        why = self.run(["sinfo", "-h", "-N", "-t", "drain", "-o", "%N: %E"]).stdout
        if why.strip():
            print(f"SLURM drained hosts: {why}{self.logs()}")
            self.run(["scontrol", "update", f"NodeName={','.join(self.hosts)}", "State=RESUME"], check=False)

    def logs(self, lines: int = 40) -> str:
        """The last lines of the daemons' logs, for a failure's message."""
        parts = []
        for path in sorted((self.directory / "log").glob("slurm*.log")):
            with contextlib.suppress(OSError):
                parts.append(f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:]))
        return "\n".join(parts)


def _program(pid: int) -> str:
    """The name of the file that a process executes, "" when it is gone or a zombie."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.removesuffix(" (deleted)")
    except OSError:
        return ""


def why_not() -> str | None:
    """Why no cluster can be made here, or None."""
    done = subprocess.run([sys.executable, str(COMMAND), "check"], capture_output=True, text=True, check=False)
    return done.stderr.strip().removeprefix("cluster: ") if done.returncode else None


@contextlib.contextmanager
def own_directory() -> Iterator[Path]:
    """A cluster directory that no other test process uses; one of few, so that a killed process leaks none for ever."""
    tag = hashlib.sha256(str(ROOT).encode()).hexdigest()[:6]
    for slot in range(64):
        lock = Path(f"/run/lock/launcher-cluster-tests-{tag}-{slot}")
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = lock.exists() and os.stat(lock).st_ino == os.fstat(fd).st_ino
        except OSError:
            mine = False
        if mine:
            try:
                yield Path(f"/var/lib/launcher-cluster-tests-{tag}-{slot}")
            finally:
                lock.unlink()
                os.close(fd)
            return
        os.close(fd)
    raise RuntimeError("64 test processes at once")


@contextlib.contextmanager
def running(it: Cluster) -> Iterator[Cluster]:
    """It runs as long as the block does; nothing of it is left, also where `up` fails."""
    it.verb("install", timeout=1500)
    it.verb("down")  # whatever a killed process left behind
    try:
        it.mount_disk()
        it.verb("up")
        yield it
    finally:
        try:
            it.verb("down")
        finally:
            it.unmount_disk()


@contextlib.contextmanager
def as_before(it: Cluster) -> Iterator[None]:
    """Hosts are healed behind the block, and settings are what they were before it, also where a host stays broken."""
    settings = dict(it.settings)
    try:
        yield
    finally:
        try:
            it.heal()
        finally:
            it.restore(settings)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster of this test process."""
    if reason := why_not():
        pytest.skip(reason)
    with own_directory() as directory, running(Cluster(directory)) as it:
        yield it


@pytest.fixture(autouse=True)
def _cluster_as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """Settings and hosts of the cluster are after a test what they were before it."""
    with (
        as_before(request.getfixturevalue("cluster")) if "cluster" in request.fixturenames else contextlib.nullcontext()
    ):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the cluster carry the marker `slurm` and may take longer."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slurm)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))
