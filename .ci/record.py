"""What the tests showed on each release and Python: read from pytest's reports, run again where they failed, written down."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]


def results(reports: Iterable[Path]) -> dict[str, Any]:
    """How many tests passed, which failed, which were skipped and why, parts of a test included."""
    passed, failed, skipped = 0, [], {}
    for case in (case for path in reports for case in ElementTree.parse(path).getroot().iter("testcase")):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        skipped |= {f"{name}, {one.get('name')}": one.get("value", "") for one in case.iter("property")}
        if (skip := case.find("skipped")) is not None:
            skipped[name] = skip.get("message", "")
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        else:
            passed += 1
    once = list(dict.fromkeys(failed))  # a test and its end may both fail
    return {"passed": passed, "failed": once, "skipped": skipped}


def again(row: dict[str, Any], python: list[str]) -> dict[str, Any] | None:
    """Run the tests that failed by ``row``, with ``python -m pytest``; return the row with what they showed, None where one did not run."""
    if not row["failed"]:
        return row
    report = ROOT / "build" / "again.xml"
    tests = [f"{file_of(name)}::{name.partition('::')[2]}" for name in row["failed"]]
    pytest = [*python, "-m", "pytest", "--tb=short", "-ra", "-q", f"--junitxml={report}"]
    if subprocess.run([*pytest, *tests], cwd=ROOT, check=False).returncode not in (0, 1):
        return None  # a test of that name is not there any more, say
    found = results([report])
    sums = {"passed": row["passed"] + found["passed"], "skipped": row["skipped"] | found["skipped"]}
    told = [*filter(None, [row.get("again")]), f"{len(tests)} at {head()}"]
    return {**row, **sums, "failed": found["failed"], "again": ", ".join(told)}


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record, and the pages that are made of it."""
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    subprocess.run([sys.executable, ROOT / "docs" / "versions_page.py"], check=True)


def file_of(name: str) -> Path:
    """The file of a test that is on record as MODULE::TEST."""
    return next(ROOT.glob(f"tests/**/{name.partition('::')[0]}.py")).relative_to(ROOT)


def head() -> str:
    """The commit that is checked out."""
    return output("git", "rev-parse", "--short", "HEAD")


def output(*words: str) -> str:
    """What a command prints."""
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
