"""A handler of signals can raise at any moment, also between a rank's exception and the report of it: the rank's end is told all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from crew import Crew
from scripted import script, spec_of

STRUCK = """
import ctypes, operator, signal


def handler(number, frame):
    raise RuntimeError("a loader's worker was killed")


def main(worker=None):
    signal.signal(signal.SIGUSR1, handler)
    pending = ctypes.pythonapi.PyErr_SetInterruptEx
    pending.argtypes = [ctypes.c_int]
    # One call marks the signal and raises: no Python code runs in between.
    list(map(pending, map(operator.floordiv, [signal.SIGUSR1, 1], [1, 0])))


class Task:
    def __init__(self):
        main()


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("kind", "target"), [("script", "train.py"), ("function", "train:main"), ("task", "train:Task")]
)
def test_a_signal_handler_that_raises_before_the_report_is_reported(tmp_path: Path, kind: str, target: str) -> None:
    """As torch's for SIGCHLD, which raises when a loader's worker dies, while the broken pipe to it is being raised."""
    script(tmp_path, STRUCK)
    with Crew(spec_of(tmp_path, target, kind=kind), 1) as crew:
        word = crew.finish().get(0)

        assert crew.exit_codes() == {0: 1}
        assert word is not None, crew.logs()
    assert (word["type"], word["exception"], word["message"]) == (
        "failed",
        "RuntimeError",
        "a loader's worker was killed",
    )
    assert word["caused_by"] == ["ZeroDivisionError: integer division or modulo by zero (train.py:14)"]
