"""Print or follow a run's logs."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from launcher.cli._options import json_option, run_argument
from launcher.cli._terminal import LogStream
from launcher.errors import RunDirError
from launcher.frozen import field_values, frozen
from launcher.opening import open_regular

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths

_PERIOD_S = 0.25
_BLOCK = 1 << 20
_LONGEST_BYTES = 1 << 20
"""Of a line in JSON: a longer one is told in parts."""


@click.command()
@run_argument
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Rank whose log is printed.")
@click.option("--attempt", type=click.IntRange(min=0), help="Attempt of the log. Default: the latest that has one.")
@click.option("--round", type=click.IntRange(min=0), help="Round of the log. Default: the latest that has one.")
@click.option("--agents", is_flag=True, help="Print the agents' logs: start-up, SLURM and the launcher itself.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Print only the last N lines.")
@click.option(
    "-f", "--follow", is_flag=True, help="Print new lines as they come, over restarts, until the run has ended."
)
@json_option(help="Print one JSON object per line: rank, round, attempt, host and text.")
def command(
    run: str, rank: int, attempt: int | None, round: int | None, agents: bool, lines: int | None, follow: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print the log of a rank: its standard output and error.

    On a terminal, control characters other than colours and carriage returns are escaped. A pipe gets the bytes unchanged.
    """
    from launcher.submission.sweeps.points import single

    paths = single(run)
    asked = {"attempt": attempt, "round": round}

    def files() -> list[Path]:
        return _agent_logs(paths) if agents else _rank_logs(paths, rank, **asked)

    found = files()
    if not found and not follow:
        _refuse_place(paths, rank, asked, agents)
        found, agents = _agent_logs(paths), True
        click.echo(f"rank {rank} has no log; these are the logs of the agents:", err=True)
    out = Objects(paths) if as_json else Sections() if agents and (follow or len(found) > 1) else Bytes()
    at, shown = dict.fromkeys(found, 0), found if agents else found[-1:]
    unread = []
    for path in shown:
        try:
            at[path] = _print(path, out, lines=lines)
        except OSError as error:
            unread.append(f"{path}: {error.strerror}")
    if shown and len(unread) == len(shown) and not follow:
        raise RunDirError("\n".join(unread))
    for said in unread:
        click.echo(said, err=True)
    if follow:
        _follow(paths, files, at, shown, out)
    out.close()


def _refuse_place(paths: RunPaths, rank: int, asked: dict[str, int | None], agents: bool) -> None:
    """Raise StateError where there is no log to print: of what was asked for, or at all."""
    from launcher.errors import StateError
    from launcher.run.units import short_list

    named = ", ".join(f"{what} {number}" for what, number in asked.items() if number is not None)
    there = [_place(str(path)) for path in _rank_logs(paths, rank)] if named and not agents else []
    if there:
        its = short_list([f"round {place[1]} of attempt {place[0]}" for place in there if place], 6)
        raise StateError(f"rank {rank} of {paths.id} has no log of {named}; it has logs of {its}")
    if agents or not _agent_logs(paths):
        if os.path.exists(paths.outcome):
            raise StateError(f"{paths.id} has no log; launcher why {paths.id} says how it ended")
        raise StateError(f"{paths.id} has no log yet; launcher status {paths.id} shows what it waits for")


def _agent_logs(paths: RunPaths) -> list[Path]:
    from launcher.run.state import agent_logs  # most calls are for a rank's log, and need no history

    def age(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    return sorted(agent_logs(paths), key=age)


def _rank_logs(paths: RunPaths, rank: int, attempt: int | None = None, round: int | None = None) -> list[Path]:
    """Return the logs of a rank, of the given attempt and round, the newest last; none where the folder cannot be read."""
    attempts, rounds = ("*" if n is None else n for n in (attempt, round))
    pattern = f"attempt-{attempts}/round-{rounds}/rank-{rank:05d}.log"
    names = glob.glob(pattern, root_dir=paths.logs)  # pathlib's raises where it may not read
    found = [(place, name) for name in names if (place := _place(name))]
    return [paths.logs / name for _, name in sorted(found)]


def _print(path: Path, out: Bytes | Lines, *, begin: int = 0, lines: int | None = None) -> int:
    """Print a file from ``begin``, or its last ``lines``; return the offset up to which it was read."""
    with os.fdopen(open_regular(path), "rb") as f:
        end = f.seek(0, os.SEEK_END)
        f.seek(begin if lines is None else _begin_of_last(f, end, lines))
        while (left := end - f.tell()) > 0 and (block := f.read(min(left, _BLOCK))):
            out.write(path, block)
        return max(begin, f.tell())


def _begin_of_last(f: BinaryIO, end: int, lines: int) -> int:
    """Return the offset of the last ``lines`` lines, searched from the end: logs grow to gigabytes."""
    wanted, at = lines, end
    if end and lines:
        f.seek(end - 1)
        wanted += f.read(1) == b"\n"  # the end of the last line opens no other
    while at and wanted:
        begin = max(0, at - _BLOCK)
        f.seek(begin)
        block = f.read(at - begin)
        found = block.count(b"\n")
        if found >= wanted:
            for _ in range(wanted):
                block = block[: block.rindex(b"\n")]
            return begin + len(block) + 1
        wanted, at = wanted - found, begin
    return at


def _follow(
    paths: RunPaths, files: Callable[[], list[Path]], at: dict[Path, int], shown: list[Path], out: Bytes | Lines
) -> None:
    """Print new lines until the run has ended, those of later attempts and rounds too.

    ``at`` has all logs of the beginning, ``shown`` those of them that go on. What a log still got before the next one began
    comes before that one's lines.
    """
    from launcher.run.state import read_outcome
    from launcher.submission.liveness import locate

    where = locate(paths)
    while True:
        over = read_outcome(paths.outcome) is not None or not where.alive()
        new = [path for path in files() if path not in at]
        for path in [*shown, *new]:
            if path in new and isinstance(out, Bytes):
                click.echo(f"==> {path.relative_to(paths.root)} <==", err=True)
            with contextlib.suppress(OSError):
                at[path] = _print(path, out, begin=at.setdefault(path, 0))
        shown = [*shown, *new]
        if over:
            return
        time.sleep(_PERIOD_S)


# --- how lines are printed ------------------------------------------------------------------------------------------------

_Place = tuple[int, int, int]
"""An attempt, a round and a rank."""
_PLACE = re.compile(r"attempt-(\d+)/round-(\d+)/rank-(\d+)\.log$")


def _place(path: str) -> _Place | None:
    """Return whose log that is; None for an agent's."""
    found = _PLACE.search(path)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


@frozen
class Line:
    """One line of a log."""

    run: str
    """The run's id."""
    file: str
    """The log, below the run's directory."""
    attempt: int | None
    """The attempt; null for an agent's log."""
    round: int | None
    """The round, from 0 in each attempt; null for an agent's log."""
    rank: int | None
    """The rank that wrote it; null for an agent's log."""
    host: str | None
    """The host of that rank."""
    text: str
    """The line without its end; bytes that are no UTF-8 are U+FFFD."""


class Bytes:
    """Prints logs byte for byte, as they need not be UTF-8; to a terminal without what would steer it."""

    def __init__(self) -> None:
        self._out = LogStream()

    def write(self, path: Path, block: bytes) -> None:
        """Print what was read of ``path``."""
        self._out.write(block)

    def close(self) -> None:
        """Print what is left."""
        self._out.close()


class Lines(ABC):
    """Prints whole lines of several logs, at the end also what was left without an end, and a part of a very long line."""

    def __init__(self) -> None:
        self._rests: dict[Path, bytearray] = {}

    def write(self, path: Path, block: bytes) -> None:
        """Print the lines that ``block`` ends."""
        head, ended, tail = block.rpartition(b"\n")
        kept = self._rests.setdefault(path, bytearray())
        if ended:
            self._tell(path, (bytes(kept) + head).split(b"\n"))
            kept.clear()
        kept += tail
        if len(kept) > _LONGEST_BYTES:
            self._tell(path, [bytes(kept)])
            kept.clear()

    def close(self) -> None:
        """Print the half lines."""
        for path, rest in self._rests.items():
            if rest:
                self._tell(path, [bytes(rest)])

    @abstractmethod
    def _tell(self, path: Path, lines: list[bytes]) -> None: ...


class Sections(Lines):
    """Prints lines below the name of their log, whenever that is another than before."""

    def __init__(self) -> None:
        super().__init__()
        self._out, self._last = Bytes(), Path()

    def close(self) -> None:
        """Print the half lines, and end the colours that a log has left on."""
        super().close()
        self._out.close()

    def _tell(self, path: Path, lines: list[bytes]) -> None:
        if path != self._last:
            self._last = path
            click.echo(f"==> {path.name} <==")
        self._out.write(path, b"\n".join([*lines, b""]))


class Objects(Lines):
    """Prints each line as a `Line` in JSON."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__()
        self._paths = paths
        self._hosts: dict[_Place, str | None] = {}

    def _tell(self, path: Path, lines: list[bytes]) -> None:
        file = str(path.relative_to(self._paths.root))
        place = _place(file)
        attempt, round_, rank = place or (None, None, None)
        host = self._host(place) if place is not None else None
        for line in lines:
            one = Line(self._paths.id, file, attempt, round_, rank, host, line.decode("utf-8", "replace"))
            click.echo(json.dumps(field_values(one)))

    def _host(self, place: _Place) -> str | None:
        """Return the host of that rank; the history is read again when it is not known yet."""
        if place not in self._hosts:
            from launcher.run import event_lines
            from launcher.run.events import RoundStarted

            for e in event_lines.read(self._paths.events):
                for r in e.ranks if isinstance(e, RoundStarted) else ():
                    if r.rank is not None and e.round is not None and e.attempt is not None:
                        self._hosts[e.attempt, e.round, r.rank] = r.host
        return self._hosts.setdefault(place, None)
