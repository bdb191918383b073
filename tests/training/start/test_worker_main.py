"""A handler of signals can raise at any moment, also between a rank's exception and the report of it: the rank's end is told all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crew import Crew
from scripted import script, spec_of

from launcher.run.paths import RunPaths

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
    word = last_word(tmp_path, STRUCK, target, kind)

    assert (word["type"], word["exception"], word["message"]) == (
        "failed",
        "RuntimeError",
        "a loader's worker was killed",
    )
    (cause,) = word["caused_by"]
    assert cause.startswith("ZeroDivisionError: ")  # in the words of this Python
    assert cause.endswith(" (train.py:14)")


UNDESCRIBED = """
class Odd(Exception):
    @property
    def exceptions(self):
        return [self]

    @property
    def __class__(self):
        raise ValueError("no class")


def main(worker=None):
    raise Odd("bad")


if __name__ == "__main__":
    main()
"""


def last_word(tmp_path: Path, text: str, target: str, kind: str, code: int = 1) -> dict[str, Any]:
    """What a rank said last that ends with ``code``."""
    script(tmp_path, text)
    with Crew(spec_of(tmp_path, target, kind=kind), 1) as crew:
        word = crew.finish().get(0)

        assert crew.exit_codes() == {0: code}
        assert word is not None, crew.logs()
    return word


@pytest.mark.parametrize(("kind", "target"), [("script", "train.py"), ("function", "train:main")])
def test_an_exception_that_cannot_be_described_is_named(tmp_path: Path, kind: str, target: str) -> None:
    """An attribute of it raises whenever it is looked at: the last handler tells its type."""
    word = last_word(tmp_path, UNDESCRIBED, target, kind)

    assert (word["type"], word["exception"]) == ("failed", "Odd")


ODD = {
    "a file name that is no text": (
        "import pathlib\nerror = SyntaxError('bad')\nerror.filename = pathlib.Path('config.yaml')\nraise error",
        "SyntaxError",
    ),
    "notes that raise": (
        "class E(Exception):\n    @property\n    def __notes__(self): raise ValueError('notes')\nraise E('x')",
        "E",
    ),
    "a working directory that is gone": (
        "import os, shutil, sys\nos.chdir(sys.argv[1])\nshutil.rmtree(sys.argv[1])\nexec(\"raise ValueError('bad x')\")",
        "ValueError",
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_exception_is_told_as_any_other(tmp_path: Path, odd: str) -> None:
    """With its type, and the script's frames."""
    text, name = ODD[odd]
    script(tmp_path, text)
    (tmp_path / "gone").mkdir()
    with Crew(spec_of(tmp_path, "train.py", args=[str(tmp_path / "gone")]), 1) as crew:
        word = crew.finish()[0]

    assert (word["type"], word["exception"], word["frames"] != []) == ("failed", name, True)


@pytest.mark.parametrize(("kind", "target", "code"), [("function", "train:main", 0), ("task", "train:Task", 1)])
def test_a_handler_that_exits_before_the_report_is_told(tmp_path: Path, kind: str, target: str, code: int) -> None:
    """``sys.exit(0)`` in a handler has not made a task or a function succeed: whatever its code is, it has failed."""
    text = STRUCK.replace('raise RuntimeError("a loader\'s worker was killed")', "raise SystemExit(0)")

    assert last_word(tmp_path, text, target, kind, code)["type"] == "failed"


def test_a_rank_that_cannot_read_its_runs_spec_says_so(tmp_path: Path) -> None:
    """As on a host whose file system answers with an error: what failed is told, not an exit code alone."""
    script(tmp_path, "")
    spec = spec_of(tmp_path, "train.py")
    RunPaths(Path(spec.run_dir)).spec.write_text("{")
    with Crew(spec, 1) as crew:
        word = crew.finish()[0]

    assert (word["type"], word["exception"]) == ("failed", "JSONDecodeError")
    assert word["message"].startswith("the run's spec cannot be read: ")
