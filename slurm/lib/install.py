"""Install the Debian packages that the cluster needs, and others that are named, only those that are missing."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from layout import ClusterError, lock_file, run_held, write_whole

PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurmdbd",
    "munge",
    "mariadb-server",
    "iproute2",
    "dataset-fashion-mnist",
)
_POLICY = Path("/usr/sbin/policy-rc.d")
_OURS = "#!/bin/sh\n# slurm/cluster install: packages must not start services of their own\nexit 101\n"
_LOCK = Path("/run/lock/launcher-cluster-install.lock")
_LOCKED = ("Could not get lock", "Unable to acquire", "Unable to lock", "is another process using it")
_NO_APT = "the cluster needs Debian or Ubuntu: there is no apt-get here"
_CAPABILITIES = {"SYS_ADMIN": 21, "NET_ADMIN": 12, "MKNOD": 27}


def why_not() -> str | None:
    """Why no cluster can be made here, or None."""
    if not shutil.which("dpkg-query") or not shutil.which("apt-get"):
        return _NO_APT
    if os.geteuid():
        return f"the cluster needs root (this is user {os.geteuid()})"
    (held,) = re.findall(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.M)
    if not_here := [f"CAP_{name}" for name, bit in _CAPABILITIES.items() if not int(held, 16) >> bit & 1]:
        return f"the cluster needs a privileged container (docker run --privileged): there is no {', '.join(not_here)} here"
    return None


def missing(packages: Sequence[str] = PACKAGES) -> list[str]:
    """Packages that are not installed."""
    out = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages], capture_output=True, text=True
    ).stdout
    there = {line.split()[0] for line in out.splitlines() if line.endswith(" installed")}
    return [p for p in packages if p not in there]


def install(packages: Sequence[str] = PACKAGES, limit_s: float = 900) -> list[str]:
    """Install what is missing and return it; raises ClusterError."""
    if not shutil.which("dpkg-query") or not shutil.which("apt-get"):
        raise ClusterError(_NO_APT)
    if os.geteuid():
        if wanted := missing(packages):
            raise ClusterError(f"only root can install {', '.join(wanted)}")
        return []
    with lock_file(_LOCK) as lock:
        if _POLICY.exists() and _POLICY.read_text() == _OURS:
            _POLICY.unlink()  # of an `install` that was killed: since then no package starts a service
        if not (wanted := missing(packages)):
            return []
        end = time.monotonic() + limit_s
        with _no_services():
            _apt(["update"], end, lock)
            _apt(["install", "-y", "--no-install-recommends", *wanted], end, lock)
    if still := missing(packages):
        raise ClusterError(f"apt-get installed everything but {', '.join(still)}")
    return wanted


def _apt(args: list[str], end: float, lock: int) -> None:
    # DPkg::Lock::Timeout does not cover the lock on package lists: try again as long as somebody else has it.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3", *args]
    while True:
        done = run_held(command, lock, env)
        if done.returncode == 0:
            return
        said = (done.stderr or done.stdout).strip()
        if time.monotonic() > end or not any(word in said for word in _LOCKED):
            raise ClusterError(f"apt-get {args[0]} failed: {said[-2000:]}")
        time.sleep(2)


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    """The packages' own daemons stay down: this cluster runs its own, and must not touch another SLURM."""
    if _POLICY.exists():
        yield  # the machine has a policy: it holds
        return
    try:
        write_whole(_POLICY, _OURS, 0o755)
        yield
    finally:
        _POLICY.unlink(missing_ok=True)
