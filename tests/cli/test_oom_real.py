"""The kernel's memory killer, for real: a cgroup with a limit, as SLURM's task/cgroup makes one for each step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cli import main as main_module

LIMIT_MB = 1500
EATER = """
import os, time
if os.environ["RANK"] == "1":
    held = [bytearray(os.urandom(1 << 20) * 64) for _ in range(100)]
time.sleep(600)
"""


def _v1(name: str) -> Path:
    group = Path("/sys/fs/cgroup/memory") / name
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(f"{LIMIT_MB}M")
    return group


def _v2(name: str) -> Path:
    root = Path("/sys/fs/cgroup")
    if "memory" not in (root / "cgroup.subtree_control").read_text():
        raise OSError("the memory controller is not delegated")
    group = root / name
    group.mkdir()
    (group / "memory.max").write_text(f"{LIMIT_MB}M")
    return group


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup whose processes may use little memory together."""
    name = f"launcher-{uuid.uuid4().hex[:8]}"
    try:
        made = _v1(name) if Path("/sys/fs/cgroup/memory").is_dir() else _v2(name)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield made
    made.rmdir()


def test_a_rank_killed_for_memory_is_named_as_that(tmp_path: Path, group: Path) -> None:
    """The kernel kills the rank that eats, the launcher survives in the same cgroup, and `why` says memory, not signal 9."""
    (tmp_path / "eat.py").write_text(EATER)
    job = {
        "name": "eater",
        "script": "eat.py",
        "resources": {"tasks_per_node": 2, "mem_gb": 1.5},
        "environment": {"setup": [f"echo $$ > {group}/cgroup.procs"]},
        "restart": {"max_restarts": 0},
        "preflight": False,
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "VIRTUAL_ENV", "CONDA"))}
    home = {"XDG_STATE_HOME": str(tmp_path / "state"), "LAUNCHER_RUNS_DIR": str(tmp_path / "runs")}
    env = {**kept, **home, "PYTHONPATH": str(Path(main_module.__file__).parents[2])}

    def verb(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "launcher", *words]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)

    done = verb("run", "job.yaml")
    assert done.returncode == 8, done.stdout + done.stderr
    told = json.loads(verb("why", "eater", "--json").stdout)

    assert told["kind"] == "oom", told
    assert told["sentence"].startswith("Rank 1 (")
    assert "killed for exceeding the memory limit of 1.5 GB per node" in told["sentence"]
    assert "resources.mem_gb=3" in json.dumps(told)
