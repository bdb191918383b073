"""docs/versions.md and the README's claim, from what `make matrix` recorded and the differences that the launcher knows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from launcher.slurm.versions import DIFFERENCES

DOCS = Path(__file__).resolve().parent
RECORD = DOCS / "versions.json"
_HEAD = """# Versions

Made by `make docs` from docs/versions.json, which `make matrix` writes, and launcher/slurm/versions.py. `make slurm RELEASE=trixie`
runs the tests of one release: every test of tests/slurm and tests/faults on four hosts that are systems of that release.

| release | SLURM | Python | torch | passed | failed | skipped | at commit |
| --- | --- | --- | --- | --- | --- | --- | --- |
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
        text += f"| {' | '.join(map(str, [*row, len(one['failed']), len(one['skipped']), one['commit']]))} |\n"
    for release, one in recorded().items():
        if one["failed"]:
            text += f"\nFailed on {release}:\n\n" + "".join(f"- `{name}`\n" for name in one["failed"])
        if one["skipped"]:
            text += f"\nSkipped on {release}:\n\n" + "".join(f"- `{n}`: {why}\n" for n, why in one["skipped"].items())
    text += _DIFFERENCES
    for d in DIFFERENCES:
        text += f"| {_range(d.since, d.before)} | {d.topic} | {d.text} |\n"
    return text + (DOCS / "versions_limits.txt").read_text()


def _range(since: tuple[int, ...], before: tuple[int, ...]) -> str:
    first, last = ("" if n in ((), (99,)) else ".".join(f"{part:02}" if i == 1 else str(part) for i, part in enumerate(n))
                   for n in (since, before))  # fmt: skip
    return f"{first} to before {last}" if first and last else f"since {first}" if first else f"before {last}"


def readme() -> str:
    """The README with the claim that the record backs."""
    ones = list(recorded().values())
    slurms = _listed([one["slurm"] for one in ones])
    pythons = _listed(sorted({".".join(one["python"].split(".")[:2]) for one in ones}))
    torches = _listed(sorted({".".join(one["torch"].split(".")[:2]) for one in ones}))
    failed = [
        f"{(n := len(one['failed']))} test{'s' * (n > 1)} failed on SLURM {one['slurm']}"
        for one in ones
        if one["failed"]
    ]
    claims = "; ".join([f"SLURM {slurms}, Python {pythons}, torch {torches}", *failed])
    claim = f"Tested: {claims} ([docs/versions.md](docs/versions.md))."
    return _MARKS.sub(claim, (DOCS.parent / "README.md").read_text())


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
