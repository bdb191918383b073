"""What is installed: one top-level package and a command that works."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter; it must end well."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this working tree."""
    folder = tmp_path_factory.mktemp("wheel")
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    return next(folder.glob("ddp_launcher-*.whl"))


def test_one_top_level_package(wheel: Path) -> None:
    """Only ``launcher`` lands in site-packages: ``jobs`` or ``slurm`` there would shadow users' own."""
    names = {Path(name).parts[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {n for n in names if not n.endswith(".dist-info")} == {"launcher"}


def test_the_wheel_carries_every_file_of_the_package(wheel: Path) -> None:
    """Templates and vendored scripts travel too: what git tracks under launcher/ is in the wheel."""
    tracked = subprocess.run(["git", "ls-files", "launcher"], cwd=ROOT, capture_output=True, text=True, check=True)
    inside = set(zipfile.ZipFile(wheel).namelist())

    assert {line for line in tracked.stdout.splitlines() if (ROOT / line).is_file()} - inside == set()


def test_the_installed_command_helps(wheel: Path, tmp_path: Path) -> None:
    """Installed from the wheel, `launcher --help` names the verbs, from the installed files and no others."""
    site = tmp_path / "site"
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    where = python("-c", "import launcher; print(launcher.__file__)", cwd=tmp_path, PYTHONPATH=str(site))
    done = python(str(site / "bin" / "launcher"), "--help", cwd=tmp_path, PYTHONPATH=str(site))

    assert Path(where.stdout.strip()).is_relative_to(site)
    assert all(verb in done.stdout for verb in ("plan", "submit", "status"))
