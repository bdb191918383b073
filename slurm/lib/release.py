"""Systems of other Debian releases: made once by debootstrap, kept, and entered by the cluster and by commands.

A release's system is a directory. Entering it makes a mount namespace whose root it is. The machine's processes, networks,
devices, /run and every top-level directory that is not the operating system's own (/home, /root, /tmp, /opt ...) are seen
inside under the same names, so paths, files and clusters are the same on both sides.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from install import install
from layout import ClusterError, lock_file, remove_tree, run_held, sh

RELEASES = ("bookworm", "trixie", "forky", "sid")
CACHE = Path(os.environ.get("LAUNCHER_CLUSTER_CACHE") or "/var/cache/launcher-cluster")
_MARK = Path("/etc/launcher-release")  # in our systems: base-files of sid gives testing's codename
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PACKAGES = "ca-certificates,git,iproute2,make,python3,python3-venv"
_ROOM_BYTES = 2 << 30  # with SLURM, its database and a compiler
_OF_THE_SYSTEM = re.compile(r"bin|sbin|lib.*|usr|etc|var|boot|dev|proc|sys|run|lost\+found|\..*")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Propagation: / is made private so that what is mounted below the new root stays here; /run/netns stays shared, as `ip netns`
# makes it, so that a host's network made on one side exists on the other. The old root becomes a slave before it is taken
# away: unmounting would otherwise reach the machine.
_ENTER = """
set -e
root=$1 here=$2
shift 2
mount --make-private / 2>/dev/null || true
mount --make-private "$(stat -c %m "$root")" 2>/dev/null || true
mount --bind "$root" "$root"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
    shift
done
shift
cd "$root"
mkdir -p .machine
pivot_root . .machine
mount --make-rslave /.machine
umount -l /.machine
cd "$here" 2>/dev/null || cd /
exec "$@"
"""


def own() -> str:
    """The codename of the release this process runs in, "" where it is none of Debian's."""
    if _MARK.exists():
        return _MARK.read_text().strip()
    text = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    names = re.findall(r"^VERSION_CODENAME=(\w+)", text, re.M)
    return names[0] if names else ""


def check(name: str) -> str:
    """``name`` if it is a release; raises ClusterError."""
    if name not in (*RELEASES, own()):
        raise ClusterError(f"no release {name!r}; there are {', '.join(RELEASES)}")
    return name


def make(name: str) -> Path:
    """The system of that release, made where it is missing; raises ClusterError."""
    root = CACHE / name
    with lock_file(Path("/run/lock") / f"launcher-cluster-release-{name}.lock") as lock:
        if not root.exists():
            _bootstrap(name, root, lock)
    return root


def _bootstrap(name: str, root: Path, lock: int) -> None:
    install(["debootstrap", "debian-archive-keyring"])
    CACHE.mkdir(parents=True, exist_ok=True)
    for left in CACHE.glob(f"{name}.part*"):  # of one that was killed; while its debootstrap lives, that has the lock
        remove_tree(left)
    if (free := shutil.disk_usage(CACHE).free) < _ROOM_BYTES:
        raise ClusterError(f"{CACHE} has {free >> 20} MB free; a release's system needs {_ROOM_BYTES >> 20}")
    part = CACHE / f"{name}.part-{os.getpid()}"
    try:
        _fill(name, part, lock)
        part.rename(root)
    finally:
        remove_tree(part)


def _fill(name: str, part: Path, lock: int) -> None:
    part.mkdir()
    # An older debootstrap does not know the newer names; one script builds every release since sid's of today.
    scripts = Path("/usr/share/debootstrap/scripts")
    script = scripts / (name if (scripts / name).exists() else "sid")
    # In a namespace of its own: what it mounts in there goes with it, however it ends.
    command = ["unshare", "--mount", "--propagation", "private", "--", "debootstrap", "--variant=minbase"]
    command += [f"--keyring={_KEYS}", f"--include={_PACKAGES}", name, str(part), _mirror(), str(script)]
    print(f"making a system of {name} in {CACHE} (a minute, once)", flush=True)
    done = run_held(command, lock)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise ClusterError(f"debootstrap of {name} failed: {' '.join(said)[-600:]}")
    (part / _MARK.relative_to("/")).write_text(f"{name}\n")
    # A mirror that stands still is older than testing's lists may be; signatures are checked all the same.
    (part / "etc/apt/apt.conf.d/50launcher").write_text('Acquire::Check-Valid-Until "false";\n')


def _mirror() -> str:
    """Where this machine has its own Debian packages from."""
    targets = sh("apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian", check=False)
    return (targets.split() or ["http://deb.debian.org/debian"])[0]


def enter(name: str, command: list[str], also: tuple[Path, ...] = ()) -> NoReturn:
    """Become a command in the release's system; ``also`` are directories that it sees too. Raises ClusterError.

    Signals reach the command itself: nobody stands between who sends them and tests that clean up.
    """
    if name == own():
        _become(command, {})
    if os.geteuid():
        raise ClusterError(f"only root can enter a system of {name}")
    root = make(name)
    if not shutil.which("pivot_root", path=_PATH):
        install(["util-linux-extra"])  # from Debian 14 on it is a package of its own
    copy_names(Path("/"), root)
    seen = [
        d
        for d in sorted(Path("/").iterdir())
        if d.is_dir() and not d.is_symlink() and not _OF_THE_SYSTEM.fullmatch(d.name)
    ]
    seen += [p for p in dict.fromkeys((*also, CACHE)) if not any(p.is_relative_to(d) for d in seen)]
    _share_networks()
    words = ["unshare", "--mount", "--propagation", "unchanged", "--", "sh", "-c", _ENTER, "sh", str(root), os.getcwd()]
    _become([*words, "/proc", "/sys", "/dev", "/run", *map(str, seen), "--", *command], {"PATH": _PATH})


def copy_names(machine: Path, root: Path) -> None:
    """Give the system this machine's names, and the certificate of its proxy if it has one.

    A file is written in place: hosts of running clusters have mounted theirs on it, and would lose it with the file.
    """
    for file in ("hosts", "hostname", "resolv.conf", "ssl/certs/ca-certificates.crt"):
        source, target = machine / "etc" / file, root / "etc" / file
        if target.is_symlink():  # it would lead out of the system
            target.unlink()
        if source.exists() and not (target.exists() and filecmp.cmp(source, target, shallow=False)):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def _become(command: list[str], more: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, {**os.environ, **more})
    except OSError as error:
        raise ClusterError(f"{command[0]}: {error.strerror}") from None


def _share_networks() -> None:
    netns = Path("/run/netns")
    netns.mkdir(parents=True, exist_ok=True)
    fd = os.open(netns, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # `ip netns add` does the same: a second mount would hide the networks of the first.
        fcntl.flock(fd, fcntl.LOCK_EX)
        if subprocess.run(["mountpoint", "-q", str(netns)]).returncode:
            sh("mount", "--bind", str(netns), str(netns))
        sh("mount", "--make-shared", str(netns))
    finally:
        os.close(fd)


def settings() -> dict[str, str]:
    """slurm.conf's part for commands outside: where the plugins lie as both sides see them."""
    return {"PluginDir": f"{CACHE / own()}{_plugins()}"} if _MARK.exists() else {}


def write_commands(folder: Path) -> None:
    """SLURM's commands of this system as the machine can run them: by the C library that they were built for."""
    if not _MARK.exists():
        return
    root, plugins = CACHE / own(), _plugins()
    (loader,) = plugins.parent.glob("ld-linux-*")
    paths = f"{root}{plugins}:{root}{plugins.parent}"
    folder.mkdir(exist_ok=True)
    listed = Path("/var/lib/dpkg/info/slurm-client.list").read_text().split()
    for path in (Path(p) for p in listed if re.fullmatch(r"/usr/bin/s\w+", p)):
        loading = [f"{root}{loader}", "--inhibit-rpath", "", "--argv0", path.name, "--library-path", paths]
        words = [*loading, f"{root}{path}"]
        (folder / path.name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / path.name).chmod(0o755)


def _plugins() -> Path:
    (found,) = Path("/usr/lib").glob("*-linux-gnu*/slurm-wlm")
    return found
