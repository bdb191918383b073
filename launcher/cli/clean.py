"""List and remove old runs; never a running one."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths

_DAY_S = 86_400.0


@dataclass(frozen=True)
class _Old:
    """A run that could go."""

    path: Path
    bytes: int
    ended_t: float


@click.command()
@click.option("--older-than", "days", type=float, metavar="DAYS", help="Ended at least so long ago.")
@click.option("--larger-than", "gb", type=float, metavar="GB", help="Holds at least so much.")
@click.option("--keep", type=click.IntRange(min=0), default=0, help="Keep the newest KEEP of each job's runs.")
@click.option("--name", metavar="JOB", help="Only runs of that job.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
def command(days: float | None, gb: float | None, keep: int, name: str | None, yes: bool) -> None:
    """List ended runs by age and size, and remove them after asking.

    Without --older-than, --larger-than or --name nothing is removed: the list alone is shown.
    """
    from launcher.submission.describe import size

    found = _candidates(days, gb, keep, name)
    for old in found:
        age = (time.time() - old.ended_t) / _DAY_S
        click.echo(f"{old.path.name:<44} {size(old.bytes):>9}  {age:6.1f} days ago  {old.path}")
    if not found:
        click.echo("no ended run fits")
        return
    click.echo(f"{len(found)} runs, {size(sum(o.bytes for o in found))}")
    if days is None and gb is None and name is None:
        click.echo("say --older-than DAYS, --larger-than GB or --name JOB to remove")
        return
    if not yes and not (sys.stdin.isatty() and click.confirm("Remove them?")):
        click.echo("nothing removed; --yes removes without asking")
        return
    for old in found:
        _remove(old.path)
    click.echo(f"removed {len(found)} runs")


def _candidates(days: float | None, gb: float | None, keep: int, name: str | None) -> list[_Old]:
    from launcher.run import index

    now = time.time()
    kept: dict[str, int] = {}
    found = []
    for ref in reversed(index.list_runs()):
        job = index.job_name(ref.id)
        if (name is not None and job != name) or _inside_sweep(ref.path):
            continue
        kept[job] = kept.get(job, 0) + 1
        ended = _ended(ref.path)
        if kept[job] <= keep or ended is None or (days is not None and now - ended < days * _DAY_S):
            continue
        count = _bytes(ref.path)
        if gb is None or count >= gb * 1e9:
            found.append(_Old(ref.path, count, ended))
    return found


def _inside_sweep(path: Path) -> bool:
    from launcher.run.index import is_sweep

    return is_sweep(path.parent)


def _ended(path: Path) -> float | None:
    """When the run (or every point of the sweep) ended; None while anything may still work on it."""
    from launcher.run.index import is_sweep
    from launcher.run.paths import RunPaths
    from launcher.submission.points import points_of

    runs = points_of(path) if is_sweep(path) else [RunPaths(path)]
    times = [_end_of(run) for run in runs]
    ends = [t for t in times if t is not None]
    return max(ends) if ends and len(ends) == len(times) else None


def _end_of(paths: RunPaths) -> float | None:
    from launcher.errors import LauncherError
    from launcher.run.state import read_outcome
    from launcher.submission.where import locate

    try:
        if read_outcome(paths.outcome) is not None:
            return paths.outcome.stat().st_mtime
        if locate(paths).alive(fresh=True):
            return None
        return paths.events.stat().st_mtime
    except (LauncherError, OSError):
        return None


def _bytes(path: Path) -> int:
    """What removing it frees: files below, links not followed."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except OSError:
                pass
    return total


def _remove(path: Path) -> None:
    from launcher.errors import RunDirError
    from launcher.run import index
    from launcher.submission.points import points_of

    inner = [p.id for p in points_of(path)]
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise RunDirError(f"{error.filename or path}: {error.strerror}") from None
    for run_id in (*inner, path.name):
        index.unregister(run_id)
