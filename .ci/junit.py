"""What pytest's reports say together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree


def results(reports: Iterable[Path]) -> dict[str, object]:
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
    return {
        "passed": passed,
        "failed": list(dict.fromkeys(failed)),
        "skipped": skipped,
    }  # a test and its end may both fail
