"""A job whose code is there, and a pretended SLURM."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning import load_values

from launcher.config.load.load import LoadedJob
from launcher.submission.backends import slurm as slurm_backend

FAKE_SBATCH = """#!/bin/bash
env > "$FAKE/environment"
cp "$1" "$FAKE/script"
echo x >> "$FAKE/calls"
[ -e "$FAKE/says" ] && { cat "$FAKE/says" >&2; exit 1; }
[ -e "$FAKE/answers" ] && { cat "$FAKE/answers"; exit 0; }
echo "Submitted batch job 42"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder and a working directory, where forks go, of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def slurm(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with pretended commands of SLURM; returns the folder where they write down what they saw."""
    fake = home / "fake"
    fake.mkdir()
    for name, text in {
        "sbatch": FAKE_SBATCH,
        "srun": "#!/bin/sh\n",
        "squeue": '#!/bin/sh\necho "$@" >> "$FAKE/asked"\ncat "$FAKE/queue" 2>/dev/null || true\n',
        "scancel": '#!/bin/sh\necho "$@" >> "$FAKE/cancelled"\n',
        "scontrol": '#!/bin/sh\necho "Unable to contact slurm controller (connect failure)" >&2\nexit 1\n',
    }.items():
        (fake / name).write_text(text)
        (fake / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(fake))
    monkeypatch.setattr(slurm_backend.time, "sleep", lambda _: None)
    return fake


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., LoadedJob]:
    """Makes a loaded job from plain values; the code it names is there."""

    def make(**values: Any) -> LoadedJob:
        (tmp_path / "lab").mkdir(exist_ok=True)
        (tmp_path / "lab" / "__init__.py").touch()
        (tmp_path / "lab" / "train.py").write_text("print(1)\n")
        (tmp_path / "lab" / "tasks.py").write_text("def work(worker, **params):\n    pass\n")
        (tmp_path / "train.py").write_text("print(1)\n")
        (tmp_path / "data").mkdir(exist_ok=True)
        return load_values({"script": "train.py", **values}, tmp_path)

    return make
