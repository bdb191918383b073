"""Systems of other Debian releases: made once by debootstrap, kept, and entered by the cluster and by commands.

A release's system is a directory. Entering it makes a mount namespace whose root it is. The machine's processes, networks,
devices, /run and every top-level directory that is not the operating system's own (/home, /root, /tmp, /opt ...) are seen
inside under the same names, so paths, files and clusters are the same on both sides.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from install import install
from layout import ClusterError, lock_file, sh

RELEASES = ("bookworm", "trixie", "forky", "sid")
CACHE = Path("/var/cache/launcher-cluster")
_MARK = Path("/etc/launcher-release")  # in our systems: base-files of sid gives testing's codename
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PACKAGES = "ca-certificates,git,iproute2,make,python3,python3-venv"
_OF_THE_SYSTEM = re.compile(r"bin|sbin|lib.*|usr|etc|var|boot|dev|proc|sys|run|lost\+found|\..*")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Propagation: / is made private so that what is mounted below the new root stays here; /run/netns stays shared, as `ip netns`
# makes it, so that a host's network made on one side exists on the other. The old root becomes a slave before it is taken
# away: unmounting would otherwise reach the machine.
_ENTER = """
set -e
root=$1; here=$2; shared=$3; shift 3
mount --make-private / 2>/dev/null || true
mount --make-private "$(stat -c %m "$root")" 2>/dev/null || true
mount --bind "$root" "$root"
for dir in proc sys dev run $shared; do
    mkdir -p "$root/$dir"
    mount --rbind "/$dir" "$root/$dir"
done
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
    with lock_file(Path("/run/lock") / f"launcher-cluster-release-{name}.lock"):
        if not root.exists():
            _bootstrap(name, root)
    return root


def _bootstrap(name: str, root: Path) -> None:
    install(["debootstrap", "debian-archive-keyring"])
    part = root.with_suffix(".part")
    if part.exists():
        shutil.rmtree(part)
    part.mkdir(parents=True)
    # An older debootstrap does not know the newer names; one script builds every release since sid's of today.
    scripts = Path("/usr/share/debootstrap/scripts")
    script = scripts / (name if (scripts / name).exists() else "sid")
    command = ["debootstrap", "--variant=minbase", f"--keyring={_KEYS}", f"--include={_PACKAGES}"]
    print(f"making a system of {name} in {root} (a minute, once)", flush=True)
    done = subprocess.run([*command, name, str(part), _mirror(), str(script)], capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"debootstrap of {name} failed: {done.stdout.strip()[-1500:]}")
    (part / _MARK.relative_to("/")).write_text(f"{name}\n")
    # A mirror that stands still is older than testing's lists may be; signatures are checked all the same.
    (part / "etc/apt/apt.conf.d/50launcher").write_text('Acquire::Check-Valid-Until "false";\n')
    part.rename(root)


def _mirror() -> str:
    """Where this machine has its own Debian packages from."""
    targets = sh("apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian", check=False)
    return (targets.split() or ["http://deb.debian.org/debian"])[0]


def enter(name: str, command: list[str], also: tuple[Path, ...] = ()) -> int:
    """Run a command in the release's system and return its exit code; ``also`` are directories that it sees too."""
    if name == own():
        return subprocess.run(command).returncode
    root = make(name)
    # This machine's names, and the certificate of its proxy if it has one.
    for file in ("hosts", "hostname", "resolv.conf", "ssl/certs/ca-certificates.crt"):
        if (Path("/etc") / file).exists():
            (root / "etc" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path("/etc") / file, root / "etc" / file)
    tops = [d.name for d in Path("/").iterdir() if d.is_dir() and not d.is_symlink()]
    shared = [d for d in sorted(tops) if not _OF_THE_SYSTEM.fullmatch(d)]
    shared += [str(p)[1:] for p in dict.fromkeys((*also, CACHE)) if len(p.parts) < 2 or p.parts[1] not in shared]
    _share_networks()
    words = ["unshare", "--mount", "--propagation", "unchanged", "--", "sh", "-c", _ENTER, "sh"]
    words += [str(root), os.getcwd(), " ".join(shared), *command]
    return subprocess.run(words, env={**os.environ, "PATH": _PATH}).returncode


def _share_networks() -> None:
    netns = Path("/run/netns")
    netns.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["mountpoint", "-q", str(netns)]).returncode:
        sh("mount", "--bind", str(netns), str(netns))
    sh("mount", "--make-shared", str(netns))


def settings() -> dict[str, str]:
    """slurm.conf's part for commands outside: where the plugins lie as both sides see them."""
    if not _MARK.exists():
        return {}
    (plugins,) = Path("/usr/lib").glob("*-linux-gnu*/slurm-wlm")
    return {"PluginDir": f"{CACHE / own()}{plugins}"}


def write_commands(name: str, folder: Path) -> None:
    """The release's SLURM commands as the machine can run them: by the C library that they were built for."""
    root = CACHE / name
    (plugins,) = (root / "usr/lib").glob("*-linux-gnu*/slurm-wlm")
    (loader,) = plugins.parent.glob("ld-linux-*")
    folder.mkdir(exist_ok=True)
    listed = (root / "var/lib/dpkg/info/slurm-client.list").read_text().split()
    for path in (Path(p) for p in listed if re.fullmatch(r"/usr/bin/s\w+", p)):
        words = [loader, "--inhibit-rpath", "", "--argv0", path.name, "--library-path", f"{plugins}:{plugins.parent}"]
        command = " ".join(shlex.quote(str(w)) for w in [*words, f"{root}{path}"])
        (folder / path.name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / path.name).chmod(0o755)
