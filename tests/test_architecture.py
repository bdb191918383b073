"""docs/architecture.md is true: whatever it names exists, and it stays two screens long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.cli.main import cli

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = sorted(set(re.findall(r"`([^`\n]+)`", PAGE)))
MOST_LINES = 130


def of(pattern: str) -> list[str]:
    """What the page names in that form."""
    return [name for name in NAMED if re.fullmatch(pattern, name)]


def test_the_page_is_two_screens() -> None:
    """A map that must be scrolled for long is not read at night."""
    assert len(PAGE.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", of(r"(?!tests/)[a-z_/]+(\.py|/)"))
def test_modules_and_rooms_exist(path: str) -> None:
    """Each module and room is below launcher/ (the file table names those of a run's folder)."""
    assert (ROOT / "launcher" / path).exists() or path in {"launcher/", "code/", "lib/"}


NAMES_IN_FILES = re.findall(r"`([A-Za-z_]+)` (?:in|with) `([a-z_/]+\.py)`", PAGE)


def test_names_stand_in_the_files_that_the_page_names() -> None:
    """Each "`NAME` in `file`" of the page is defined in that file: a class, a function, a constant or a field."""
    assert len(NAMES_IN_FILES) >= 8
    for name, path in NAMES_IN_FILES:
        text = (ROOT / "launcher" / path).read_text()
        assert re.search(rf"^ *(def |class )?{name}\b( *[:=(]|$)", text, re.MULTILINE), f"{name} is not in {path}"


def test_the_diagrams_modules_exist() -> None:
    """Participants of the sequence diagram stand with their modules in brackets."""
    named = [
        path
        for line in PAGE.splitlines()
        if "participant" in line
        for path in re.findall(r"[a-z_/]+/[a-z_]+\.py", line)
    ]
    assert len(named) == 6
    assert [path for path in named if not (ROOT / "launcher" / path).exists()] == []


@pytest.mark.parametrize("test", of(r"tests/[^ ]+::[^ ]+"))
def test_tests_of_the_invariants_exist(test: str) -> None:
    """Each invariant names a test that is there."""
    path, name = test.split("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_every_room_has_its_line() -> None:
    """No room of launcher/ is missing from the table of rooms."""
    rooms = {f"{path.parent.relative_to(ROOT / 'launcher')}/" for path in (ROOT / "launcher").rglob("__init__.py")}
    covered = {room for room in rooms if any(room == named or room.startswith(named) for named in of(r"[a-z_/]+/"))}
    parents = {"./", "node/", "config/", "report/", "submission/"}  # stand in the table by their rooms
    assert rooms - covered - parents == set()


def test_verbs_exist() -> None:
    """A verb that the page names is one of the command's."""
    assert [verb for verb in re.findall(r"`launcher ([a-z-]+)", PAGE) if verb not in cli.list_commands(None)] == []  # type: ignore[arg-type]


def test_numbers_are_obeyed_where_the_page_says() -> None:
    """Each file of the column "obeyed in" speaks of the number, or of who holds it."""
    table = PAGE.partition("| obeyed in |")[2].partition("\n\n")[0]
    rows = [row.split(" | ") for row in table.splitlines() if row.count(" | ") == 2 and "`" in row]
    assert len(rows) >= 7
    for _, names, files in rows:
        wanted = "|".join(re.findall(r"`([A-Za-z_]+)` (?:in|with)", names))
        for path in re.findall(r"`([a-z_/]+\.py)`", files):
            assert re.search(rf"\b({wanted})\b", (ROOT / "launcher" / path).read_text()), f"{path}: {wanted}"
