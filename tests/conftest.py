"""Shared by all tests: the four-host SLURM cluster (`tests/cluster.py`), and failures told at once."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest_plugins = ["cluster"]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure's name and end as soon as it is known: a run that is cut short must not take them with it."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(
            f"\n*** failed ({report.when}): {report.nodeid}\n{report.longreprtext[-2000:]}",
            file=sys.__stderr__,
            flush=True,
        )
