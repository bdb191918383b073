"""Print or follow a run's logs."""

from __future__ import annotations

import glob
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from launcher.cli._options import run_argument
from launcher.frozen import field_values, frozen

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths
    from launcher.submission.liveness import Where

_PERIOD_S = 0.25
_BLOCK = 1 << 20


@click.command()
@run_argument
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Rank whose log is printed.")
@click.option("--attempt", type=click.IntRange(min=0), help="Attempt of the log. Default: the latest that has one.")
@click.option(
    "--round", "round_", type=click.IntRange(min=0), help="Round of the log. Default: the latest that has one."
)
@click.option("--agents", is_flag=True, help="Print the agents' logs: start-up, SLURM and the launcher itself.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Print only the last lines.")
@click.option(
    "-f", "--follow", is_flag=True, help="Print new lines as they come, over restarts, until the run has ended."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per line: rank, round, attempt, host and text."
)
def command(
    run: str,
    rank: int,
    attempt: int | None,
    round_: int | None,
    agents: bool,
    lines: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the log of a rank: its standard output and error."""
    from launcher.errors import StateError
    from launcher.submission.sweeps.points import single

    paths = single(run)
    source = _Source(paths, rank, attempt, round_, agents)
    files = source.files()
    if not files and not follow:
        said = source.instead()
        if said is None:
            raise StateError(f"{paths.id} has no log yet; launcher status {paths.id} shows what it waits for")
        click.echo(said, err=True)
        files = _Source(paths, rank, None, None, agents=True).files()
    out = Objects(paths) if as_json else Bytes(paths)
    at = {path: _print(path, lines, out, title=len(files) > 1) for path in files}
    if follow:
        _follow(paths, source, at, out)
    out.close()


class _Source:
    """The log files that the options choose."""

    def __init__(self, paths: RunPaths, rank: int, attempt: int | None, round_: int | None, agents: bool) -> None:
        self.paths, self.rank, self.attempt, self.round, self.agents = paths, rank, attempt, round_, agents

    def files(self) -> list[Path]:
        """Return the files that exist now."""
        if self.agents:
            return sorted(self._agent_logs(), key=_age)
        attempt = "*" if self.attempt is None else self.attempt
        round_ = "*" if self.round is None else self.round
        found = _below(self.paths.logs, f"attempt-{attempt}/round-{round_}/rank-{self.rank:05d}.log")
        return sorted(found, key=_numbers)[-1:]

    def instead(self) -> str | None:
        """Return a sentence for a rank without a log when agents have one."""
        if self.agents or not self._agent_logs():
            return None
        return f"rank {self.rank} has no log; these are the logs of the agents:"

    def _agent_logs(self) -> list[Path]:
        from launcher.run.state import agent_logs  # most calls are for a rank's log, and need no history

        return agent_logs(self.paths)


def _below(folder: Path, pattern: str) -> list[Path]:
    """Files that match; none where the folder may not be read (pathlib would raise)."""
    return [folder / name for name in glob.glob(pattern, root_dir=folder)]


def _numbers(path: Path) -> tuple[int, ...]:
    words = [*path.parts[-3:-1], path.stem]
    return tuple(int(w.rpartition("-")[2]) for w in words if w.rpartition("-")[2].isdigit())


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _print(path: Path, lines: int | None, out: Bytes | Objects, *, title: bool) -> int:
    """Print a file, or its last ``lines``; returns the offset up to which it was read: what comes later is not lost."""
    if title:
        out.title(path)
    try:
        with path.open("rb") as f:
            end = f.seek(0, os.SEEK_END)
            f.seek(0 if lines is None else _begin_of_last(f, end, lines))
            _copy(f, end, path, out)
    except OSError as error:
        click.echo(f"{path}: {error.strerror}", err=True)
        return 0
    return end


def _begin_of_last(f: BinaryIO, end: int, lines: int) -> int:
    """Where the last ``lines`` lines begin, looked for from the end: logs grow to gigabytes."""
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


def _copy(f: BinaryIO, end: int, path: Path, out: Bytes | Objects) -> None:
    """Print what lies before ``end``."""
    while (left := end - f.tell()) > 0 and (block := f.read(min(left, _BLOCK))):
        out.write(path, block)


def _follow(paths: RunPaths, source: _Source, at: dict[Path, int], out: Bytes | Objects) -> None:
    """Print what comes until the run has ended; a new attempt's or round's log continues the old one's."""
    from launcher.run.state import read_outcome
    from launcher.submission.liveness import locate

    where: Where = locate(paths)
    while True:
        over = read_outcome(paths.outcome) is not None or not where.alive()
        for path in source.files():
            if path not in at:
                at[path] = 0
                out.turn(path)
            at[path] = _emit(path, at[path], out)
        if over:
            return
        time.sleep(_PERIOD_S)


def _emit(path: Path, offset: int, out: Bytes | Objects) -> int:
    """Print what was added after ``offset`` and return the new one."""
    try:
        with path.open("rb") as f:
            end = f.seek(0, os.SEEK_END)
            f.seek(offset)
            _copy(f, end, path, out)
            return max(offset, f.tell())
    except OSError:
        return offset


# --- how lines are printed ------------------------------------------------------------------------------------------------

_RankKey = tuple[Any, Any, Any]
"""A rank, its round and its attempt."""


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
        """Do nothing: every byte is printed."""


class Objects:
    """Prints a `Line` as JSON for each whole line, and at the end for what was left without one."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._rests: dict[Path, bytes] = {}
        self._hosts: dict[_RankKey, str | None] = {}

    def title(self, path: Path) -> None:
        """Print nothing: each line names its file."""

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
    def _place(path: Path) -> _RankKey | None:
        """Rank, round and attempt of ``attempt-A/round-R/rank-N.log``; None for an agent's log."""
        if not path.stem.startswith("rank-"):
            return None
        attempt, round_, rank = (int(word.rpartition("-")[2]) for word in (*path.parts[-3:-1], path.stem))
        return rank, round_, attempt

    def _host(self, place: _RankKey) -> str | None:
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
