"""Facts about constraints.txt: what it pins can be installed under every Python that is supported."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
LOWEST = (3, 10)
NEWEST = (3, 14)


def pins() -> list[Requirement]:
    """Every line of constraints.txt."""
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def under(python: str) -> dict[str, str]:
    """The version that each package is held to under one Python."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    applying = [pin for pin in pins() if pin.marker is None or pin.marker.evaluate(environment)]
    names = [pin.name for pin in applying]
    assert sorted(names) == sorted(set(names)), python
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in applying}


@pytest.mark.parametrize("minor", range(LOWEST[1], NEWEST[1] + 1))
def test_no_pin_forbids_a_supported_python(minor: int) -> None:
    """The pinned version, as far as it is the one installed here, says that it runs under this Python."""
    python = f"3.{minor}"
    forbidding = {}
    for name, version in under(python).items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # another Python's
        needs = found.metadata.get("Requires-Python")  # importlib_metadata, where installed, raises for a missing key
        if found.version.partition("+")[0] == version and needs and f"{python}.20" not in SpecifierSet(needs):
            forbidding[name] = needs

    assert forbidding == {}


def test_every_dependency_is_pinned() -> None:
    """What the package and its tests name is in constraints.txt, so that a fresh clone installs the same everywhere."""
    text = (ROOT / "pyproject.toml").read_text()
    named = re.findall(r"^(?:dependencies|dev) = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    wanted = {Requirement(word).name.lower() for block in named for word in re.findall(r'"([^"]+)"', block)}

    assert wanted - {pin.name.lower() for pin in pins()} == set()
