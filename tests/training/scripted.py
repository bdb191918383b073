"""A script in a folder of its own, and the spec that starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crew import make_spec

from launcher.run.spec import CheckpointSpec

SELDOM = CheckpointSpec(interval_min=1000)


def script(tmp_path: Path, text: str, name: str = "train.py") -> Path:
    """A script in a folder of its own."""
    folder = tmp_path / "code"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def spec_of(tmp_path: Path, target: str, world_size: int = 1, kind: str = "script", **values: Any) -> Any:
    """A script's spec; workers start in its folder."""
    return make_spec(
        tmp_path / "run", target, world_size, kind=kind, code_dir=str(tmp_path / "code"), checkpoint=SELDOM, **values
    )
