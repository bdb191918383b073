"""Jobs and facts for plans that depend on nothing of this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.config.document.source import Document
from launcher.config.load.load import LoadedJob, load_layers
from launcher.config.load.merge import command_line
from launcher.config.load.site_profile import Layer, SiteProfile
from launcher.run.spec import SiteSpec
from launcher.submission.facts.facts import CodeFacts, Facts, Interpreter, SlurmFacts

PYTHON = Interpreter(
    path="/home/ann/envs/ml/bin/python",
    origin="$VIRTUAL_ENV",
    version="3.11.7",
    packages={"torch": "2.13.0+cu126", "submitit": "1.5.4", "psutil": "7.2.2", "numpy": "2.4.6"},
)
FILES = (("train.py", 2_100), ("lab/__init__.py", 0), ("lab/train.py", 900), ("lab/tasks.py", 3_000_000))


def facts(**changes: Any) -> Facts:
    """Facts of an imaginary login node."""
    values: dict[str, Any] = {
        "run_id": "resnet50-1121-0842-k7f",
        "runs_dir": "/scratch/ann/runs",
        "runs_dir_shown": "runs",
        "free_bytes": 310_000_000_000,
        "free_inodes": 5_000_000,
        "interpreter": PYTHON,
        "code": CodeFacts(root="/home/ann/resnet", files=FILES, git=True, commit="4f2c1e9aa0", dirty=True),
        "slurm": SlurmFacts(found=True, known=True, site=SiteSpec(grace_s=20, preempt_mode="REQUEUE")),
        "home": "/home/ann",
        "cpus_here": 8,
    }
    return Facts(**{**values, **changes})


def load_values(values: dict[str, Any], base_dir: Path, *, overrides: Sequence[str] = ()) -> LoadedJob:
    """A checked job of plain values, without any site profile."""
    layers = [Layer("job", Document(json.loads(json.dumps(values)))), command_line(overrides, ())]
    return load_layers(layers, base_dir, "job", SiteProfile())
