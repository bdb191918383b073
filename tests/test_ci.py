"""What continuous integration runs, and how it counts."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("target", ["test", "slurm"])
def test_what_measures_time_runs_first_and_alone(target: str) -> None:
    """Both `make test` and `make slurm`, and so the matrix of releases, run the `quiet` tests in one process, the others after them."""
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "RELEASE")}
    said = subprocess.run(["make", "-n", target], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    first, second = (line for line in said.splitlines() if " -m pytest " in line)

    assert re.search(r" -m quiet\b", first)
    assert " -n " not in first
    assert re.search(r" -m 'not quiet.* -n 3 ", second)


def test_both_reports_of_a_suite_are_added_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A test that failed while alone is on record as one that failed beside others is."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    cases = {
        "quiet.xml": '<testcase classname="tests.a" name="t"/><testcase classname="tests.a" name="f"><failure/></testcase>',
        "rest.xml": '<testcase classname="b" name="t"/><testcase classname="b" name="s"><skipped message="why"/></testcase>',
    }
    for name, text in cases.items():
        (tmp_path / name).write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")

    found = importlib.import_module("record").results(tmp_path / name for name in cases)

    assert found == {"passed": 2, "failed": ["a::f"], "skipped": {"b::s": "why"}}


def test_what_failed_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes then counts as passed, and the row says where; a test that is not there any more cannot make a failure vanish."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    record = importlib.import_module("record")
    row = {"passed": 7, "failed": ["test_ci::test_every_lower_bound_is_known"], "skipped": {}, "again": "1 at abc"}

    assert record.again(row, [sys.executable]) == {
        **row,
        "passed": 8,
        "failed": [],
        "again": f"1 at abc, 1 at {record.head()}",
    }
    assert record.again({**row, "failed": [*row["failed"], "test_ci::test_gone"]}, [sys.executable]) is None


def test_every_lower_bound_is_known() -> None:
    """`.ci/bounds`, which the lowest versions are made from, names every dependency of pyproject.toml once."""
    project = (ROOT / "pyproject.toml").read_text().split("\ndependencies = [")[1].split("\n]")[0]
    said = subprocess.run([ROOT / ".ci" / "bounds"], capture_output=True, text=True, check=True).stdout

    assert re.findall(r'"([\w-]+)>=([\d.]+)', project) == [tuple(line.split("==")) for line in said.splitlines()]


def test_unknown_versions_are_refused_before_anything_is_removed(tmp_path: Path) -> None:
    """`VERSIONS=newst make setup` says what is expected and leaves the environment that is there."""
    (tmp_path / "kept").touch()
    env = {**os.environ, "VERSIONS": "newst", "LAUNCHER_VENV": str(tmp_path)}
    made = subprocess.run([ROOT / ".ci" / "setup"], env=env, capture_output=True, text=True, check=False)

    assert made.returncode == 1
    assert made.stderr == "VERSIONS=newst is unknown: expected pinned, lowest or newest.\n"
    assert (tmp_path / "kept").exists()
