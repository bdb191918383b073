"""What tests on the login host share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from login import Login


@pytest.fixture
def place(tmp_path: Path, cluster: Cluster) -> Iterator[Login]:
    """A folder of its own; jobs that are left are cancelled."""
    yield Login(tmp_path, cluster)
    cluster.cancel_all()
