"""Where one cluster keeps its things, and what its hosts and networks are called."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEFAULT_DIR = "/var/lib/launcher-cluster"
HEAD = "head"
HOSTS = ("node1", "node2", "node3", "node4")
CPUS = 8
MEMORY_MB = 16000
GPUS = 4


class ClusterError(Exception):
    """One sentence that says what is wrong."""


@dataclass(frozen=True)
class Layout:
    """Names and paths of the cluster in ``root``; all derived, so a later process finds what an earlier one made."""

    root: Path

    @classmethod
    def from_environ(cls) -> Layout:
        """The cluster of $LAUNCHER_CLUSTER_DIR."""
        return cls(Path(os.path.realpath(os.environ.get("LAUNCHER_CLUSTER_DIR") or DEFAULT_DIR)))

    @property
    def tag(self) -> str:
        """Six characters that tell this cluster's namespaces and links from others' (link names hold 15)."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:6]

    @property
    def run(self) -> Path:
        """Sockets and pid files: a short path, as sockets hold 107 characters; gone after a reboot."""
        return Path("/run") / f"launcher-cluster-{self.tag}"

    @property
    def meta(self) -> Path:
        """Marks the directory as ours and holds subnet and release."""
        return self.root / "cluster.json"

    @property
    def settings(self) -> Path:
        """What `set` changed."""
        return self.root / "settings.json"

    @property
    def etc(self) -> Path:
        """slurm.conf and its kin."""
        return self.root / "etc"

    @property
    def conf(self) -> Path:
        """SLURM_CONF."""
        return self.etc / "slurm.conf"

    @property
    def storage_password(self) -> Path:
        """What slurmdbd shows to mariadbd; only root reads it."""
        return self.etc / "storage.password"

    @property
    def log(self) -> Path:
        """Logs of every daemon."""
        return self.root / "log"

    @property
    def munge_socket(self) -> Path:
        """The cluster's own munged."""
        return self.run / "munge.socket"

    def netns(self, host: str) -> str:
        """The network namespace of a host."""
        return f"lc{self.tag}-{host}"

    def netns_path(self, host: str) -> Path:
        """The file that names it."""
        return Path("/run/netns") / self.netns(host)

    @property
    def root_link(self) -> str:
        """The machine's own end of the cable to the cluster."""
        return f"lc{self.tag}"

    def bridge_port(self, host: str) -> str:
        """The switch's end of a host's cable, inside the head's namespace."""
        return f"port-{host}"

    @property
    def release(self) -> str:
        """The Debian release whose SLURM runs here, "" as long as there is no cluster."""
        return str(self._facts().get("release", ""))

    @property
    def bin(self) -> Path:
        """SLURM's commands of another release, for this machine."""
        return self.root / "bin"

    @property
    def programs(self) -> Path:
        """First on the PATH of the hosts' daemons: what a site has installed there. Empty unless somebody fills it."""
        return self.root / "programs"

    @property
    def subnet(self) -> ipaddress.IPv4Network:
        """The /24 chosen by `claim_subnet`."""
        if "subnet" not in (facts := self._facts()):
            raise ClusterError(f"the cluster in {self.root} is not whole: run slurm/cluster up")
        return ipaddress.IPv4Network(facts["subnet"])

    def _facts(self) -> dict[str, str]:
        """What `write_facts` wrote; nothing where it cannot be read: paths and names do not depend on it."""
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads(self.meta.read_text())
            return facts if isinstance(facts, dict) else {}
        return {}

    def write_facts(self, **facts: str) -> None:
        """Mark the directory as ours, for good: a half-written file would say nothing."""
        write_whole(self.meta, json.dumps(facts))

    def is_ours(self) -> bool:
        """Whether the directory has been made for a cluster. An empty file is what a full disk has left of an older version's."""
        with contextlib.suppress(OSError):
            return self.meta.stat().st_size == 0 or bool({"subnet", "release"} & {*self._facts()})
        return False

    def address(self, host: str) -> str:
        """Address of "head", a host, or "login" (the machine itself)."""
        number = {HEAD: 1, "login": 254}.get(host) or 11 + HOSTS.index(host)
        return str(self.subnet[number])


def check_host(name: str, *, among: tuple[str, ...] = HOSTS) -> str:
    """``name`` if it is a host; raises ClusterError."""
    if name not in among:
        raise ClusterError(f"no host {name!r} here; there are {', '.join(among)}")
    return name


def claim_subnet(layout: Layout) -> None:
    """Choose a /24 that nothing on this machine routes to, starting at one derived from the directory."""
    with lock_file(Path("/run/lock/launcher-cluster.lock")):
        taken = _routes()
        start = int(layout.tag, 16)
        for i in range(64 * 256):
            n = (start + i) % (64 * 256)
            net = ipaddress.IPv4Network(f"10.{128 + n // 256}.{n % 256}.0/24")
            if not any(net.overlaps(t) for t in taken):
                break
        else:
            raise ClusterError("no free subnet below 10.128.0.0/10 on this machine")
        # The claim is the route itself, so that it cannot outlive a reboot or a `down`.
        sh("ip", "link", "add", layout.root_link, "type", "veth", "peer", "name", "uplink",
           "netns", layout.netns(HEAD))  # fmt: skip
        sh("ip", "addr", "add", f"{net[254]}/24", "dev", layout.root_link)
        sh("ip", "link", "set", layout.root_link, "up")
    layout.write_facts(subnet=str(net), release=layout.release)


def _routes() -> list[ipaddress.IPv4Network]:
    out = sh("ip", "-4", "-o", "route", "show", "table", "all")
    nets = []
    for line in out.splitlines():
        words = line.split()
        word = words[1] if words[0] in ("local", "broadcast", "unreachable", "blackhole") else words[0]
        with contextlib.suppress(ValueError):
            net = ipaddress.IPv4Network(word, strict=False)
            if net.prefixlen >= 16:
                nets.append(net)
    return nets


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file that is found whole or as it was."""
    fresh = path.with_suffix(".new")
    fresh.touch(0o600)
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.rename(path)


def mount_points() -> list[Path]:
    """Where something is mounted, as this process sees it."""
    table = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    return [Path(re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4])) for line in table.splitlines()]


def remove_tree(path: Path) -> None:
    """Remove what is at ``path``, if anything; raises ClusterError where something is mounted there, whose files it would remove."""
    if mounted := [point for point in mount_points() if point.is_relative_to(path)]:
        raise ClusterError(f"{path} is not removed: something is mounted on {mounted[0]}")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_file(path: Path, *, wait: bool = True) -> Iterator[int]:
    """Hold an exclusive lock on ``path``, which is removed afterwards; its descriptor. Who waits for long says for whom.

    Raises BlockingIOError where somebody else has it and ``wait`` is false.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(fd, path, wait=wait)
        except BaseException:
            os.close(fd)
            raise
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                break
        os.close(fd)  # the holder before us removed this very file
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"`{' '.join(sys.argv[1:])}` (process {os.getpid()})".encode(), 0)
    try:
        yield fd
    finally:
        os.unlink(path)
        os.close(fd)


def _lock(fd: int, path: Path, *, wait: bool, silent_s: float = 2) -> None:
    end = time.monotonic() + silent_s
    while time.monotonic() < end:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not wait:
                raise
        time.sleep(0.05)
    holder = os.pread(fd, 200, 0).decode(errors="replace") or "another process"
    print(f"cluster: waiting for {holder}, which holds {path}", file=sys.stderr)
    fcntl.flock(fd, fcntl.LOCK_EX)


def sh(*args: str, check: bool = True, timeout: float = 60, stdin: str = "") -> str:
    """Output of a command that reads ``stdin``; raises ClusterError with what it said."""
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=timeout, input=stdin)
    except FileNotFoundError:
        raise ClusterError(f"{args[0]} is not installed: run slurm/cluster install") from None
    except subprocess.TimeoutExpired:
        if not check:
            return ""
        raise ClusterError(f"{' '.join(args)} did not end within {timeout:g} s") from None
    if check and done.returncode:
        raise ClusterError(f"{' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Signals act after the block: an exception while a process is being started would leave it without anybody who knows it."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def run_held(command: list[str], lock: int, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that holds ``lock`` as long as it lives, which may be longer than this process does.

    Where this process is interrupted the command ends first, with all that it has started: they share its standard output.
    """
    process = None
    try:
        with _signals_later():
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                pass_fds=(lock,), start_new_session=True,
            )  # fmt: skip
        out, err = process.communicate()
    except BaseException:
        if process:
            process.terminate()
            process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def wait_for(what: str, ready: object, limit_s: float, every_s: float = 0.1) -> None:
    """Call ``ready()`` until it is true; raises ClusterError naming ``what`` after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not ready():  # type: ignore[operator]
        if time.monotonic() > end:
            raise ClusterError(f"{what} did not come within {limit_s:g} s")
        time.sleep(every_s)
