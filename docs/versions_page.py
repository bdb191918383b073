"""docs/versions.md and the README's claim, from what `make matrix` recorded and the differences that the launcher knows.

``python docs/versions_page.py`` writes both, with any Python.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from launcher.slurm.versions import DIFFERENCES

DOCS = Path(__file__).resolve().parent
RECORD = DOCS / "versions.json"
PYTHONS = DOCS / "pythons.json"
_HEAD = """# Versions

Made by `make docs` from docs/versions.json, which `make matrix` writes, and launcher/slurm/versions.py. `make slurm RELEASE=trixie`
runs the tests of one release: every test of tests/slurm and tests/faults on four hosts that are systems of that release. "3 at" another
commit: so many failed, and were run again there (`--again`). What they showed there is in the columns.

| release | SLURM | Python | torch | passed | failed | skipped | at commit |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
_PYTHONS = """
## Pythons and libraries

Made from docs/pythons.json, which `.ci/pythons` writes: every test that needs no cluster. *lowest* are the lower bounds of
pyproject.toml, *newest* what pip found on that day, *pinned* constraints.txt.

| Python | libraries | torch | passed | failed | skipped | at commit |
| --- | --- | --- | --- | --- | --- | --- |
"""
_DIFFERENCES = """
## What differs

`launcher doctor` says what is true of the site's version. A version that is newer than the newest here is taken for that one.

| SLURM | topic | what is true |
| --- | --- | --- |
"""
_MARKS = re.compile(r"(?<=<!-- tested -->).*?(?=<!-- /tested -->)", re.S)


def recorded() -> dict[str, dict[str, Any]]:
    """What was recorded, by release, the oldest SLURM first."""
    found: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    return dict(sorted(found.items(), key=lambda item: [int(n) for n in item[1]["slurm"].split(".")]))


def page() -> str:
    """docs/versions.md."""
    text = _HEAD
    for release, one in recorded().items():
        system = one["debian"] if release in one["debian"] else f"{one['debian']} ({release})"
        row = [system, one["slurm"], one["python"], one["torch"], one["passed"]]
        text += f"| {' | '.join(map(str, [*row, len(one['failed']), len(one['skipped']), _commits(one)]))} |\n"
    for release, one in recorded().items():
        if one["failed"]:
            text += f"\nFailed on {release}:\n\n" + "".join(f"- `{name}`\n" for name in one["failed"])
        if one["skipped"]:
            text += f"\nSkipped on {release}:\n\n" + "".join(f"- `{n}`: {why}\n" for n, why in one["skipped"].items())
    text += pythons() + _DIFFERENCES
    for d in DIFFERENCES:
        text += f"| {_range(d.since, d.before)} | {d.topic} | {d.text} |\n"
    return text + (DOCS / "versions_limits.txt").read_text()


def others() -> dict[str, dict[str, Any]]:
    """What was recorded of Pythons and libraries without a cluster, by both, the oldest first."""
    found: dict[str, dict[str, Any]] = json.loads(PYTHONS.read_text()) if PYTHONS.exists() else {}
    return dict(sorted(found.items(), key=lambda item: [int(n) for n in item[1]["python"].split(".")]))


def pythons() -> str:
    """The part about Pythons and libraries; empty where nothing is on record."""
    text = _PYTHONS if others() else ""
    for name, one in others().items():
        row = [one["python"], name.split()[1], one["torch"], one["passed"], len(one["failed"]), len(one["skipped"])]
        text += f"| {' | '.join(map(str, [*row, _commits(one)]))} |\n"
    for name, one in others().items():
        if one["failed"]:
            text += f"\nFailed on {name}:\n\n" + "".join(f"- `{test}`\n" for test in one["failed"])
    reasons = sorted({why for one in others().values() for why in one["skipped"].values()})
    return text + ("\nSkipped there:\n\n" + "".join(f"- {why}\n" for why in reasons) if reasons else "")


def _commits(one: dict[str, Any]) -> str:
    return f"{one['commit']}, {one['again']}" if "again" in one else one["commit"]


def _range(since: tuple[int, ...], before: tuple[int, ...]) -> str:
    first, last = ("" if n in ((), (99,)) else ".".join(f"{part:02}" if i == 1 else str(part) for i, part in enumerate(n))
                   for n in (since, before))  # fmt: skip
    return f"{first} to before {last}" if first and last else f"since {first}" if first else f"before {last}"


def readme() -> str:
    """The README with the claim that the record backs."""
    ones = list(recorded().values())
    slurms = _listed([one["slurm"] for one in ones])
    both = [*ones, *others().values()]
    minors = _listed([f"3.{n}" for n in sorted({int(one["python"].split(".")[1]) for one in both})])
    torches = _listed([f"2.{n}" for n in sorted({int(one["torch"].split(".")[1]) for one in both})])
    rows = [(f"on SLURM {one['slurm']}", one) for one in ones] + [
        (f"on Python {name}", one) for name, one in others().items()
    ]
    failed = [f"{(n := len(one['failed']))} test{'s' * (n > 1)} failed {where}" for where, one in rows if one["failed"]]
    claims = "; ".join([f"SLURM {slurms}, Python {minors}, torch {torches}", *failed])
    claim = f"Tested: {claims} ([docs/versions.md](docs/versions.md))."
    return _MARKS.sub(claim, (DOCS.parent / "README.md").read_text())


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def pages() -> dict[str, str]:
    """Both, by their paths from docs/."""
    return {"versions.md": page(), "../README.md": readme()}


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text)
