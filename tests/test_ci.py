"""What continuous integration runs, and how it counts."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def matrix() -> types.ModuleType:
    """.ci/matrix."""
    loader = SourceFileLoader("matrix", str(ROOT / ".ci" / "matrix"))
    spec = importlib.util.spec_from_loader("matrix", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", ["test", "slurm"])
def test_what_measures_time_runs_first_and_alone(target: str) -> None:
    """Both `make test` and `make slurm`, and so the matrix of releases, run the `quiet` tests in one process, the others after them."""
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "RELEASE")}
    said = subprocess.run(["make", "-n", target], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    first, second = (line for line in said.splitlines() if " -m pytest " in line)

    assert re.search(r" -m quiet\b", first)
    assert " -n " not in first
    assert re.search(r" -m 'not quiet.* -n 3 ", second)


def test_the_matrix_adds_up_both_reports(matrix: types.ModuleType, tmp_path: Path) -> None:
    """A test that failed while alone is on record as one that failed beside others is."""
    cases = {
        "quiet.xml": '<testcase classname="tests.a" name="t"/><testcase classname="tests.a" name="f"><failure/></testcase>',
        "rest.xml": '<testcase classname="b" name="t"/><testcase classname="b" name="s"><skipped message="why"/></testcase>',
    }
    for name, text in cases.items():
        (tmp_path / name).write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    matrix.RESULTS = tuple(tmp_path / name for name in cases)  # type: ignore[attr-defined]

    assert matrix.results() == {"passed": 2, "failed": ["a::f"], "skipped": {"b::s": "why"}}
