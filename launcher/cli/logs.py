"""Print or follow a run's logs."""

from __future__ import annotations

import glob
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from launcher.cli._log_lines import Bytes, Objects
from launcher.cli._options import run_argument

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths
    from launcher.submission.liveness import Where

_PERIOD_S = 0.25
_BLOCK = 1 << 20


@click.command()
@run_argument
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help="Whose log.")
@click.option("--attempt", type=click.IntRange(min=0), help="Of which attempt; else the latest that has a log.")
@click.option("--round", "round_", type=click.IntRange(min=0), help="Of which round; else the latest that has a log.")
@click.option("--agents", is_flag=True, help="What the agents said: start-up, SLURM and the launcher itself.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last LINES lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows, over restarts, until the run has ended.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line: which rank of which round, where, and the text."
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
    """Print what a rank of the run has written (its standard output and error)."""
    from launcher.errors import StateError
    from launcher.submission.sweeps.points import single

    paths = single(run)
    source = _Source(paths, rank, attempt, round_, agents)
    files = source.files()
    if not files and not follow:
        said = source.instead()
        if said is None:
            raise StateError(f"{paths.id} has no log yet; launcher status {paths.id} says what it waits for")
        click.echo(said, err=True)
        files = _Source(paths, rank, None, None, agents=True).files()
    out = Objects(paths) if as_json else Bytes(paths)
    at = {path: _print(path, lines, out, title=len(files) > 1) for path in files}
    if follow:
        _follow(paths, source, at, out)
    out.close()


class _Source:
    """Which files are meant."""

    def __init__(self, paths: RunPaths, rank: int, attempt: int | None, round_: int | None, agents: bool) -> None:
        self.paths, self.rank, self.attempt, self.round, self.agents = paths, rank, attempt, round_, agents

    def files(self) -> list[Path]:
        """The files there are now."""
        if self.agents:
            return sorted(self._agent_logs(), key=_age)
        attempt = "*" if self.attempt is None else self.attempt
        round_ = "*" if self.round is None else self.round
        found = _below(self.paths.logs, f"attempt-{attempt}/round-{round_}/rank-{self.rank:05d}.log")
        return sorted(found, key=_numbers)[-1:]

    def instead(self) -> str | None:
        """What to say when the rank has no log but agents have one."""
        if self.agents or not self._agent_logs():
            return None
        return f"rank {self.rank} has written nothing; this is what the agents said:"

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
