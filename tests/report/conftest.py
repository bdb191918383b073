"""Helpers of this folder are importable by name."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rich_run import make


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs lie that nobody else sees; no SLURM answers."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three small runs of one name: completed, failed, running."""
    return make(tmp_path_factory.mktemp("runs"), now=1_790_050_000.0, scale=0.1)
