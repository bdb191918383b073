"""List old runs and remove them."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.cli._options import json_option
from launcher.errors import LauncherError, RunDirError, StateError
from launcher.frozen import field_values, frozen
from launcher.ownership import is_own
from launcher.run.units import plural

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths

_DAY_S = 86_400.0
_GOING = ".removing-"
_ABANDONED_S = _DAY_S
"""A submission that began so long ago and has not ended was killed."""


class _Amount(click.FloatRange):
    """A number that is one: nan is smaller than nothing, and would choose every run."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if math.isnan(number := super().convert(value, param, ctx)):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


@frozen
class Old:
    """A run that can be removed."""

    run: str
    """Its id, or a sweep's."""
    dir: str
    """Its directory."""
    bytes: int
    """The bytes that removing it frees."""
    ended: float
    """When it ended; a sweep's last point."""
    removed: bool = False
    """True when this command has removed it."""


@click.command()
@click.option(
    "--older-than", "days", type=_Amount(min=0), metavar="DAYS", help="Take only runs that ended at least DAYS ago."
)
@click.option("--larger-than", "gb", type=_Amount(min=0), metavar="GB", help="Take only runs of at least this size.")
@click.option("--keep", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the newest N runs of each job.")
@click.option("--name", metavar="JOB", help="Take only runs of this job.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@json_option(help="Print a JSON list. Asks nothing: only --yes removes.")
def command(days: float | None, gb: float | None, keep: int, name: str | None, yes: bool, as_json: bool) -> int:
    """List ended runs by age and size, and remove them after asking. Running runs are never removed.
    A run stays while another one waits to begin from its checkpoint. A run whose submission was killed counts as ended a day
    later.

    Without --older-than, --larger-than or --name, the runs are only listed.
    """
    found, chosen = _candidates(days, gb, keep, name), (days, gb, name) != (None, None, None)
    done: list[Old] = []
    if as_json:
        from launcher.report.formats import json_lines

        done = _removed(found) if yes and chosen else []
        click.echo(json_lines(map(field_values, done or found)))
        return _code(done)
    _show(found)
    if not found:
        return 0
    if not chosen:
        click.echo("nothing removed; choose runs to remove with --older-than DAYS, --larger-than GB or --name JOB")
    elif not yes and not (sys.stdin.isatty() and click.confirm("Remove them?")):
        click.echo("nothing removed; --yes removes without asking")
    else:
        done = _removed(found)
        click.echo(f"removed {plural(sum(old.removed for old in done), 'run')}")
    return _code(done)


def _code(done: list[Old]) -> int:
    """Return the exit code: another one where a run could not be removed."""
    return 0 if all(old.removed for old in done) else RunDirError.exit_code


def _show(found: list[Old]) -> None:
    from launcher.run.units import size

    for old in found:
        age = (time.time() - old.ended) / _DAY_S
        click.echo(f"{old.run:<44} {size(old.bytes):>9}  {age:6.1f} days ago  {old.dir}")
    click.echo(f"{plural(len(found), 'run')}, {size(sum(o.bytes for o in found))}" if found else "no ended run matches")


def _removed(found: list[Old]) -> list[Old]:
    """Remove the runs; one that cannot be is told, and keeps no other from it."""
    from launcher.run import index
    from launcher.submission.sweeps.points import points_of

    done = []
    for old in found:
        names = [*(p.id for p in points_of(Path(old.dir))), old.run]
        try:
            _remove(old)
        except (LauncherError, OSError) as error:
            why = f"{error.filename or old.dir}: {error.strerror or error}" if isinstance(error, OSError) else error
            click.echo(f"{old.run} is not removed: {why}", err=True)
            done.append(old)
            continue
        for run_id in names:
            index.unregister(run_id)
        done.append(replace(old, removed=True))
    return done


def _remove(old: Old) -> None:
    """Remove one run that is still as it was when it was listed. Raises StateError for another, RunDirError, OSError."""
    from launcher.submission.folder.replace_files import lock
    from launcher.submission.sweeps.points import runs_at

    root = going = Path(os.path.realpath(old.dir))
    if not root.name.startswith(_GOING):
        going = root.with_name(f"{_GOING}{root.name}")
        with lock(root):
            if _end_of(runs_at(root), _ends(runs_at(root))) != old.ended:
                raise StateError("it has gone on since it was listed")
            os.rename(root, going)  # nobody starts it now; an NFS keeps a file in it as long as that is locked
    while os.path.lexists(going):  # after an error, or Ctrl-C, what is left is listed again
        with contextlib.suppress(FileNotFoundError):  # another command removes it, too
            shutil.rmtree(going)
    if os.path.islink(old.dir):
        os.unlink(old.dir)


def _half_removed() -> Iterator[Old]:
    """Yield what is left of runs whose removal was ended: they were chosen then, however old and large they were."""
    from launcher.run import index

    for place in {os.path.dirname(os.path.realpath(ref.path)) for ref in index.list_runs(check=False)}:
        for left in Path(place).glob(f"{_GOING}*"):
            with contextlib.suppress(OSError):
                if is_own(found := os.lstat(left)):
                    yield Old(left.name.removeprefix(_GOING), str(left), _bytes(left), found.st_mtime)


def _end_of(runs: list[RunPaths], ends: dict[str, float]) -> float | None:
    """Return when the last of the runs ended; None while one may still be running."""
    return max(ends[paths.id] for paths in runs) if runs and all(paths.id in ends for paths in runs) else None


def _candidates(days: float | None, gb: float | None, keep: int, name: str | None) -> list[Old]:
    from launcher.run import index
    from launcher.submission.sweeps.points import runs_at

    now = time.time()
    refs = [r for r in reversed(index.list_runs()) if not index.is_sweep(r.path.parent)]
    inside = {r.id: runs_at(r.path) for r in refs}
    ends = _ends([paths for runs in inside.values() for paths in runs])
    origins = _origins([paths for runs in inside.values() for paths in runs if paths.id not in ends])
    kept: Counter[str] = Counter()
    found = [old for old in _half_removed() if name in (None, index.job_name(old.run))]
    for ref in refs:
        kept[index.job_name(ref.id)] += 1
        ended = _end_of(inside[ref.id], ends)
        if kept[index.job_name(ref.id)] <= keep or ended is None or name not in (None, index.job_name(ref.id)):
            continue
        if any(path.is_relative_to(os.path.realpath(ref.path)) for path in origins):
            continue
        if days is not None and now - ended < days * _DAY_S:
            continue
        count = _bytes(ref.path)
        if gb is None or count >= gb * 1e9:
            found.append(Old(ref.path.name, str(ref.path), count, ended))
    return found


def _origins(runs: list[RunPaths]) -> list[Path]:
    """Return the checkpoints of other runs from which these, which have not ended, begin: until they have one of their own."""
    from launcher.run.files import read_object

    found = (
        (read_object(p.spec) or {}).get("resume") for p in runs if not any(p.checkpoints.glob("step-*/manifest.json"))
    )
    return [Path(os.path.realpath(path)) for path in found if isinstance(path, str)]


def _ends(runs: list[RunPaths]) -> dict[str, float]:
    """Return when each run ended, without the runs that may still be running.

    Of a run whose processes died without an outcome, the end is its last event; of one whose submission was killed, when it
    began.
    """
    from launcher.errors import SiteError
    from launcher.run.state import read_outcome, read_submission
    from launcher.submission.liveness import ended, locate

    last = {p.id: p.outcome for p in runs if read_outcome(p.outcome) is not None}
    places = [locate(p) for p in runs if p.id not in last and read_submission(p.submission)]
    for on_slurm in (False, True):  # each asked by itself: SLURM's silence says nothing of this machine's runs
        asked = [where for where in places if (where.backend == "slurm") is on_slurm]
        with contextlib.suppress(SiteError):
            over = ended(asked)
            last |= {where.paths.id: where.paths.events for where in asked if where.paths.id in over}
    last |= {p.id: p.submitit for p in runs if p.id not in last and _abandoned(p)}
    ends = {}
    for run, path in last.items():
        with contextlib.suppress(OSError):
            ends[run] = path.stat().st_mtime
    return ends


def _abandoned(paths: RunPaths) -> bool:
    """Return whether a submission was killed while it filled the folder: SLURM has nothing of it."""
    from launcher.run import index

    above = paths.root.parent if index.is_sweep(paths.root.parent) else paths.root
    if any(above.glob("*/submission.json")) or os.path.lexists(paths.submission) or not os.path.isdir(paths.submitit):
        return False  # no folder that the launcher has made, or the run, or another point of its sweep, was handed over
    return time.time() - paths.submitit.stat().st_mtime > _ABANDONED_S


def _bytes(path: Path) -> int:
    """Return the bytes that removing it frees: the files below, links not followed."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
