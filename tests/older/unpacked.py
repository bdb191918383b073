"""Runs recorded by an older version (`record.py`), put where a test wants them."""

from __future__ import annotations

import json
import sys
import tarfile
import time
from pathlib import Path

import pytest
from squeue import squeue_line

RECORDED = Path(__file__).parent / "2026-11-23.tar.xz"
"""Recorded with the code as it was when modules of today's ``node`` still lay in ``launcher.runtime``."""


def unpack(here: Path) -> dict[str, Path]:
    """Unpack into ``here`` what was recorded, as if it had been run there; the runs by name."""
    with tarfile.open(RECORDED) as packed:
        packed.extractall(here, **({"filter": "tar"} if sys.version_info >= (3, 12) else {}))  # type: ignore[arg-type]
    for path in (here / "runs").rglob("*"):
        if path.is_file() and not path.is_symlink() and "checkpoints" not in path.parts:
            text = path.read_bytes()
            path.write_bytes(text.replace(b"@HERE@", bytes(here)).replace(b"@VENV@", sys.prefix.encode()))
    return {path.name.split("-")[0]: path for path in (here / "runs").iterdir()}


def squeue_row(run: Path, state: str, reason: str) -> str:
    """What squeue would say of the recorded run's job: it was submitted and started when the run says."""
    submission = json.loads((run / "submission.json").read_text())
    submitted = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(submission["submitted_t"] + 1))
    return squeue_line(submission["job_id"], state, run.name, S=submitted, V=submitted, r=reason)


def slurm_says(here: Path, monkeypatch: pytest.MonkeyPatch, *rows: str) -> Path:
    """Put SLURM's commands on PATH: squeue answers ``rows``, the others write down how they were called, in the file returned.

    After scancel squeue knows no job any more.
    """
    tools, asked, jobs = here / "tools", here / "asked", here / "jobs"
    tools.mkdir()
    jobs.write_text("\n".join(rows) + "\n")
    (tools / "squeue").write_text(f"#!/bin/sh\ncat {jobs}\n")
    for name in ("sacct", "scancel", "scontrol"):
        (tools / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {asked}\n')
    (tools / "scancel").write_text((tools / "scancel").read_text() + f": > {jobs}\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(here / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "state"))
    monkeypatch.chdir(here)
    return asked
