"""How ``launcher logs`` prints what it reads: bytes as they are, or with ``--json`` an object for each line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.frozen import field_values, frozen

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths

__all__ = ["Bytes", "Line", "Objects"]

Place = tuple[Any, Any, Any]
"""A rank, its round and its attempt."""


@frozen
class Line:
    """One line of a log."""

    run: str
    """The run's id."""
    file: str
    """The log, below the run's directory."""
    attempt: int | None
    """Of a rank's log; null for what agents said."""
    round: int | None
    """Of a rank's log, from 0 in each attempt."""
    rank: int | None
    """Who wrote it."""
    host: str | None
    """Where that rank ran."""
    text: str
    """The line without its end; bytes that are no UTF-8 are U+FFFD."""


class Bytes:
    """Prints logs byte for byte: they need not be UTF-8."""

    def __init__(self, paths: RunPaths) -> None:
        self._root = paths.root

    def title(self, path: Path) -> None:
        """Name one of several files."""
        click.echo(f"==> {path.name} <==")

    def turn(self, path: Path) -> None:
        """Name a file that came while others were followed."""
        click.echo(f"==> {path.relative_to(self._root)} <==", err=True)

    def write(self, path: Path, block: bytes) -> None:
        """Print what was read of ``path``."""
        click.echo(block, nl=False)

    def close(self) -> None:
        """Nothing more comes."""


class Objects:
    """Prints a `Line` as JSON for each whole line, and at the end for what was left without one."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._rests: dict[Path, bytes] = {}
        self._hosts: dict[Place, str | None] = {}

    def title(self, path: Path) -> None:
        """Each line names its file."""

    turn = title

    def write(self, path: Path, block: bytes) -> None:
        """Print the lines that ``block`` ends."""
        *whole, rest = (self._rests.pop(path, b"") + block).split(b"\n")
        if rest:
            self._rests[path] = rest
        self._tell(path, whole)

    def close(self) -> None:
        """Print the half lines."""
        for path, rest in self._rests.items():
            self._tell(path, [rest])

    def _tell(self, path: Path, lines: list[bytes]) -> None:
        if not lines:
            return
        file = str(path.relative_to(self._paths.root))
        place = self._place(path)
        rank, round_, attempt = place or (None, None, None)
        host = self._host(place) if place is not None else None
        for line in lines:
            one = Line(self._paths.id, file, attempt, round_, rank, host, line.decode("utf-8", "replace"))
            click.echo(json.dumps(field_values(one)))

    @staticmethod
    def _place(path: Path) -> Place | None:
        """Rank, round and attempt of ``attempt-A/round-R/rank-N.log``; None for an agent's log."""
        if not path.stem.startswith("rank-"):
            return None
        attempt, round_, rank = (int(word.rpartition("-")[2]) for word in (*path.parts[-3:-1], path.stem))
        return rank, round_, attempt

    def _host(self, place: Place) -> str | None:
        """Where that rank ran; the history is read again for what is not known yet."""
        if place not in self._hosts:
            from launcher.report.model.history import as_dict, as_list, as_text
            from launcher.run import events

            for e in events.read(self._paths.events):
                for r in map(as_dict, as_list(e.get("ranks")) if e["type"] == "round_started" else ()):
                    key = (r.get("rank"), e.get("round"), e.get("attempt"))
                    if all(isinstance(number, int) for number in key):
                        self._hosts[key] = as_text(r.get("host")) or None
        return self._hosts.setdefault(place, None)
