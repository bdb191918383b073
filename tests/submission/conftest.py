"""A job whose code is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning import load_values

from launcher.config.load.load import LoadedJob


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
