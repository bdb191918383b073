"""Print or follow a run's logs."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from launcher.cli._options import json_option, run_argument
from launcher.cli._terminal import LogStream
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
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Print only this many lines, the last ones.")
@click.option(
    "-f", "--follow", is_flag=True, help="Print new lines as they come, over restarts, until the run has ended."
)
@json_option(help="Print one JSON object per line: rank, round, attempt, host and text.")
def command(
    run: str, rank: int, attempt: int | None, round: int | None, agents: bool, lines: int | None, follow: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print the log of a rank: its standard output and error.

    On a terminal, control characters other than colours and carriage returns are written out; a pipe gets every byte as it is.
    """
    from launcher.errors import StateError
    from launcher.submission.sweeps.points import single

    paths = single(run)

    def files() -> list[Path]:
        return _agent_logs(paths) if agents else _rank_log(paths, rank, attempt, round)

    found = files()
    if not found and not follow:
        found = _agent_logs(paths)
        if agents or not found:
            if os.path.exists(paths.outcome):
                raise StateError(f"{paths.id} has no log; launcher why {paths.id} says how it ended")
            raise StateError(f"{paths.id} has no log yet; launcher status {paths.id} shows what it waits for")
        click.echo(f"rank {rank} has no log; these are the logs of the agents:", err=True)
    out = Objects(paths) if as_json else Bytes()
    at = dict.fromkeys(found, 0)
    for path in found:
        if len(found) > 1 and not as_json:
            click.echo(f"==> {path.name} <==")
        try:
            at[path] = _print(path, out, lines=lines)
        except OSError as error:
            click.echo(f"{path}: {error.strerror}", err=True)
    if follow:
        _follow(paths, files, at, out)
    out.close()


def _agent_logs(paths: RunPaths) -> list[Path]:
    from launcher.run.state import agent_logs  # most calls are for a rank's log, and need no history

    def age(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    return sorted(agent_logs(paths), key=age)


def _rank_log(paths: RunPaths, rank: int, attempt: int | None, round_: int | None) -> list[Path]:
    """Return the newest log of a rank, of the given attempt and round; none where the folder cannot be read."""
    attempts, rounds = ("*" if n is None else n for n in (attempt, round_))
    pattern = f"attempt-{attempts}/round-{rounds}/rank-{rank:05d}.log"
    names = glob.glob(pattern, root_dir=paths.logs)  # pathlib's raises where it may not read
    found = [(place, name) for name in names if (place := _place(name))]
    return [paths.logs / name for _, name in sorted(found)[-1:]]


def _print(path: Path, out: Bytes | Objects, *, begin: int = 0, lines: int | None = None) -> int:
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


def _follow(paths: RunPaths, files: Callable[[], list[Path]], at: dict[Path, int], out: Bytes | Objects) -> None:
    """Print new lines until the run has ended, those of later attempts and rounds too."""
    from launcher.run.state import read_outcome
    from launcher.submission.liveness import locate

    where = locate(paths)
    while True:
        over = read_outcome(paths.outcome) is not None or not where.alive()
        for path in files():
            if path not in at:
                at[path] = 0
                if isinstance(out, Bytes):
                    click.echo(f"==> {path.relative_to(paths.root)} <==", err=True)
            with contextlib.suppress(OSError):
                at[path] = _print(path, out, begin=at[path])
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


class Objects:
    """Prints a `Line` as JSON for each whole line, at the end for what was left without one, and for a part of a very long one."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._rests: dict[Path, bytearray] = {}
        self._hosts: dict[_Place, str | None] = {}

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
