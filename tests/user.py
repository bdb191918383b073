"""An ordinary user of the test cluster, as every real one is: no root, a home of his own, an interpreter that he can read."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import HOSTS, ROOT, Cluster

from launcher.run.held_signals import signals_held


@dataclass(frozen=True)
class User:
    """Somebody without privileges."""

    cluster: Cluster
    name: str
    uid: int
    home: Path
    python: Path

    def run(self, *words: object, check: bool = True, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """Run a command as this user on the login host."""
        env = {
            "SLURM_CONF": self.cluster.env["SLURM_CONF"],
            "PATH": os.defpath,
            "HOME": str(self.home),
            "USER": self.name,
        }
        env |= {"LAUNCHER_RUNS_DIR": str(self.home / "runs"), "LANG": "C.UTF-8"}
        who = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        done = subprocess.run(
            [*who, *(str(w) for w in words)],
            env=env, cwd=self.home, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def launcher(self, *words: object, **how: Any) -> str:
        """What one of the launcher's verbs prints for this user."""
        return self.run(self.python, "-m", "launcher", *words, **how).stdout


@contextlib.contextmanager
def a_user(cluster: Cluster) -> Iterator[User]:
    """A user who exists as long as the block runs, with copies of the launcher and of the fault tests' job in his home."""
    name = f"lcuser{os.getpid()}"
    with whole_end() as stack:
        home = Path(tempfile.mkdtemp(prefix=f"{name}-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        subprocess.run(["useradd", "--no-create-home", "--user-group", "--home-dir", str(home), name], check=True)
        stack.callback(_run, "userdel", name)
        uid = int(subprocess.run(["id", "-u", name], check=True, capture_output=True, text=True).stdout)
        shutil.copytree(ROOT / "launcher", home / "src" / "launcher", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "tests" / "faults" / "job", home / "job", ignore=shutil.ignore_patterns("__pycache__"))
        python = _interpreter(cluster, stack, home)
        subprocess.run(["chown", "-R", f"{name}:{name}", str(home)], check=True)
        home.chmod(0o700)
        yield User(cluster, name, uid, home, python)


@contextlib.contextmanager
def whole_end() -> Iterator[contextlib.ExitStack]:
    """A stack whose callbacks all run to their end: a Ctrl-C meanwhile takes effect behind them."""
    stack = contextlib.ExitStack()
    try:
        yield stack
    finally:
        with signals_held():
            stack.close()


def _run(*words: object) -> int:
    """The exit code of a command that a terminal's Ctrl-C does not reach."""
    return subprocess.run([str(w) for w in words], capture_output=True, start_new_session=True, check=False).returncode


def _interpreter(cluster: Cluster, stack: contextlib.ExitStack, home: Path) -> Path:
    """A virtual environment over this one's packages; what lies where users may not look is mounted where they may."""
    public = mount_points(stack)
    base = visible(cluster, stack, Path(sys.base_prefix), public / "python")
    site = [visible(cluster, stack, Path(p), public / f"site-{i}") for i, p in enumerate(_packages())]
    interpreter = base / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    subprocess.run([str(interpreter), "-m", "venv", "--without-pip", str(home / "venv")], check=True)
    (folder,) = (home / "venv" / "lib").glob("python*/site-packages")
    (folder / "here.pth").write_text("\n".join([str(home / "src"), *map(str, site)]) + "\n")
    return home / "venv" / "bin" / "python"


def mount_points(stack: contextlib.ExitStack) -> Path:
    """A folder for empty folders to mount on. They are removed by rmdir alone: what is still mounted there is Python itself."""
    public = Path(tempfile.mkdtemp(prefix=f"lcuser{os.getpid()}-", dir="/run"))
    public.chmod(0o755)

    def remove() -> None:
        for folder in (*public.iterdir(), public):
            folder.rmdir()

    stack.callback(remove)
    return public


def _packages() -> list[str]:
    """Every folder of packages on this interpreter's path."""
    return [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages") and os.path.isdir(p)] or [
        sysconfig.get_paths()["purelib"]
    ]


def visible(cluster: Cluster, stack: contextlib.ExitStack, path: Path, target: Path) -> Path:
    """``path`` itself where everybody may read it, else ``target``, where it is mounted on every host."""
    path = path.resolve()
    if all(p.stat().st_mode & 0o001 for p in [path, *path.parents]):
        return path
    target.mkdir()
    for prefix in [[], *(["nsenter", f"--target={pid}", "--mount", "--"] for pid in slurmds(cluster).values())]:
        if _run(*prefix, "mountpoint", "-q", target) != 0:
            stack.callback(_unmount, prefix, target)
            subprocess.run([*prefix, "mount", "--bind", str(path), str(target)], check=True)
    return target


def _unmount(prefix: list[str], target: Path) -> None:
    while _run(*prefix, "mountpoint", "-q", target) == 0:
        assert _run(*prefix, "umount", "-l", target) == 0, f"{target} is still mounted"


def slurmds(cluster: Cluster) -> dict[str, int]:
    """The slurmd of every host: its mount namespace is its jobs'."""
    conf = Path(cluster.env["SLURM_CONF"]).read_text()
    pattern = re.search(r"^SlurmdPidFile=(\S+)", conf, re.MULTILINE)
    assert pattern is not None, conf
    return {host: int(Path(pattern[1].replace("%n", host)).read_text()) for host in HOSTS}
