"""What tests on the login host share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from login import Login


@pytest.fixture
def place(tmp_path: Path, cluster: Cluster) -> Iterator[Login]:
    """A folder of its own; jobs that are left are cancelled."""
    yield Login(tmp_path, cluster)
    cluster.cancel_all()


@pytest.fixture(scope="module")
def cases() -> Iterator[dict[str, Any]]:
    """Every case by name; their modules import torch, which most test processes do without."""
    place = str(Path(__file__).parent / "planted")
    sys.path.insert(0, place)
    try:
        import all_cases

        yield all_cases.CASES
    finally:
        sys.path.remove(place)
