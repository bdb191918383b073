"""Shared by all tests: the four-host SLURM cluster (`tests/cluster.py`), and failures told at once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from away import Away

pytest_plugins = ["cluster"]

# A shell starts background commands with INT (and nohup with HUP) ignored, and children inherit that: tests that send
# signals must not depend on how they themselves were started.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, [])
# Images set this, and each of the thousands of processes that the tests start would compile the launcher anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Names the tests' own environment (Makefile). Workers inherit variables, and tests compare all that begin with LAUNCHER_.
os.environ.pop("LAUNCHER_VENV", None)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A failure's name and end as soon as it is known: a run that is cut short must not take them with it."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(
            f"\n*** failed ({report.when}): {report.nodeid}\n{report.longreprtext[-2000:]}",
            file=sys.__stderr__,
            flush=True,
        )


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    """A file system that can be told not to answer (`tests/away.py`)."""
    _await_trash()
    yield Away(monkeypatch)
    _await_trash()


def _await_trash() -> None:
    """Since Python 3.12 shutil.rmtree compares functions of ``os`` by identity: they must not be others before it has ended."""
    for thread in threading.enumerate():
        if thread.name == "trash":
            thread.join(60)
