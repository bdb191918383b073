"""Find runs and the one that a user means: links in ``~/.local/state/launcher/runs`` and run folders.

A run's id is ``NAME-MMDD-HHMM-xxx``; a point of a sweep is ``NAME-OVERRIDES-MMDD-HHMM-xxx0007``. A sweep is a folder
with a ``sweep.json`` that holds its points' folders, the code they share and submitit's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import stat
import time
from collections.abc import Container
from pathlib import Path

from launcher.errors import RunGoneError, RunNotFoundError
from launcher.frozen import frozen
from launcher.ownership import home, is_own, user_name
from launcher.run import clock
from launcher.run.files import read_object, write_atomic
from launcher.run.paths import SUBMISSION_FILE, SWEEP_FILE
from launcher.run.units import short_list

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # no i, l, o, 0, 1: read aloud and typed back
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What `new_id` makes. Another name is no run's: shells complete names, and would run a ``$(command)`` in one."""
_ID = re.compile(rf"(?P<name>{_NAME.pattern})-(?P<date>[0-9]{{4}})-(?P<time>[0-9]{{4}})-(?P<tag>[a-z0-9]{{3,}})")
_MAX_NAME = 64
_NOTES = "gone"
"""Beside the folder of links: why runs ended whose folder was deleted or moved."""


@frozen
class RunRef:
    """A run that exists: its id, its folder, and when it was submitted last (seconds since the epoch)."""

    id: str
    path: Path
    t: float


def is_sweep(path: Path) -> bool:
    """Return whether there is a sweep at ``path``; a folder that may not be read is taken for a run (pathlib would raise)."""
    return os.path.isfile(path / SWEEP_FILE)


def points_in(sweep: Path) -> dict[str, list[str]]:
    """Return the overrides of each point of the sweep in ``sweep``, by the name of its folder: those that its sweep.json lists first.

    The folder itself tells which points there are: sweep.json may be torn, or its file system may refuse it for a moment.
    """
    told = (read_object(sweep / SWEEP_FILE) or {}).get("points")
    listed = {
        str(p.get("run")): p.get("overrides") for p in (told if isinstance(told, list) else []) if isinstance(p, dict)
    }
    try:
        with os.scandir(sweep) as entries:
            found = {
                e.name for e in entries
                if e.name in listed or (_ID.fullmatch(e.name) and os.path.isfile(f"{e.path}/spec.json"))
            }  # fmt: skip
    except OSError:
        return {}
    names = [*(name for name in listed if name in found), *sorted(found - listed.keys())]
    return {name: [str(o) for o in said] if isinstance(said := listed.get(name), list) else [] for name in names}


def slug(name: str) -> str:
    """Make ``name`` fit for files and SLURM jobs: letters, digits, ``._-``; never empty."""
    clean = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-._")
    return clean[:_MAX_NAME].strip("-._") or "job"


def new_id(name: str, *, now: float | None = None, tag: str | None = None) -> str:
    """Draw an id for a run of the job ``name``; exclusive mkdir claims the folder elsewhere."""
    stamp = time.strftime("%m%d-%H%M", time.localtime(now))
    return f"{slug(name)}-{stamp}-{tag or ''.join(random.choices(_ALPHABET, k=3))}"  # noqa: S311 (a name, no secret)


def job_name(run_id: str) -> str:
    """Return the job's name inside a run's id; the id itself when it has another form."""
    match = _ID.fullmatch(run_id)
    return match["name"] if match else run_id


def links_dir() -> Path:
    """Return the folder of links to all of this user's runs, by which a RUN is found from any working directory."""
    return Path(os.environ.get("XDG_STATE_HOME") or home() / ".local" / "state") / "launcher" / "runs"


def register(run_dir: Path) -> None:
    """Link ``run_dir`` into the index; where the home cannot be written, there is no link."""
    links = links_dir()
    with contextlib.suppress(OSError):
        links.mkdir(parents=True, exist_ok=True, mode=0o700)
        link = links / run_dir.name
        if link.is_symlink():
            link.unlink()
        newest = max((ref.t for ref in _from_links().values()), default=0.0)
        link.symlink_to(run_dir.absolute())
        if link.lstat().st_mtime <= newest:  # the clock was set back: what is submitted last is the newest all the same
            os.utime(link, (newest + 0.001, newest + 0.001), follow_symlinks=False)


def unregister(run_id: str) -> None:
    """Remove a run from the index; its folder stays."""
    with contextlib.suppress(OSError):
        (links_dir() / run_id).unlink()


def note_gone(root: Path, place: Path | None, reason: str, job_id: str | None) -> None:
    """Note why a run ended whose folder is not at ``root`` any more, and link its name to ``place``.

    Where the home cannot be written, there is no note.
    """
    if place is not None:
        link = links_dir() / root.name
        with contextlib.suppress(OSError):
            link.unlink(missing_ok=True)
            link.symlink_to(place)
    with contextlib.suppress(OSError):
        folder = links_dir().parent / _NOTES
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(folder / f"{root.name}.json", json.dumps({"t": clock.now(), "reason": reason, "job_id": job_id}))


def _gone(ref: RunRef) -> RunGoneError:
    said = (read_object(links_dir().parent / _NOTES / f"{ref.id}.json") or {}).get("reason")
    sentence = f"the folder of {ref.id}, {ref.path}, is not there: it was deleted or moved, or its file system is away"
    return RunGoneError(f"{sentence}. The run ended with: {said}" if said else sentence, ref.id)


def _from_links() -> dict[str, RunRef]:
    found = {}
    with contextlib.suppress(OSError), os.scandir(links_dir()) as entries:
        for entry in filter(lambda e: _NAME.fullmatch(e.name), entries):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                found[entry.name] = RunRef(entry.name, Path(target), entry.stat(follow_symlinks=False).st_mtime)
    return found


def _from_folder(folder: Path, *, foreign: bool = False, linked: Container[str] = ()) -> dict[str, RunRef]:
    """Return the runs in ``folder``. Of those ``linked`` the time is of no interest."""
    found = {}
    with contextlib.suppress(OSError), os.scandir(os.path.abspath(folder)) as entries:
        for entry in filter(lambda e: _ID.fullmatch(e.name), entries):
            with contextlib.suppress(OSError):  # one that cannot be looked at hides no other
                itself, led_to = entry.stat(follow_symlinks=False), entry.stat()
                if stat.S_ISDIR(led_to.st_mode) and (foreign or (is_own(itself) and is_own(led_to))):
                    t = led_to.st_mtime if entry.name in linked else _submitted_t(entry.path, led_to.st_mtime)
                    found[entry.name] = RunRef(entry.name, Path(entry.path), t)
    return found


def _submitted_t(folder: str, changed_t: float) -> float:
    """Return when the run or sweep in ``folder`` was submitted last. A leader changes the folder itself, at ``changed_t``, every second."""
    for name in (SUBMISSION_FILE, SWEEP_FILE):
        with contextlib.suppress(OSError):
            return os.stat(f"{folder}/{name}").st_mtime
    return changed_t


def list_runs(*, check: bool = True, foreign: bool = False) -> list[RunRef]:
    """List this user's runs and sweeps, oldest first: those linked, and those in ``$LAUNCHER_RUNS_DIR`` and ``./runs``.

    ``check`` drops links whose folder is missing or somebody else's. ``foreign`` adds what others have in those two folders.
    """
    places = dict.fromkeys((Path(os.environ.get("LAUNCHER_RUNS_DIR") or "runs"), Path("runs")))
    links = _from_links()
    found: dict[str, RunRef] = {}
    for place in places:
        found |= _from_folder(place, foreign=foreign, linked=links)
    found |= {name: ref for name, ref in links.items() if not check or _is_own_folder(ref.path)}
    return sorted(found.values(), key=lambda r: (r.t, r.id))


def _readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _closed(path: Path) -> str:
    """Return why the folder at ``path`` cannot be read; "" where it can, or where there is none."""
    try:
        owner = os.stat(path).st_uid
    except PermissionError:
        return "a folder above it is closed to you"
    except (OSError, ValueError):  # no path at all, such as a name of 300 bytes
        return ""
    return f"it is a folder of {user_name(owner)}" if os.path.isdir(path) and not _readable(path) else ""


def _is_own_folder(path: Path) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and is_own(found)


def _sentence(wanted: str, matches: list[RunRef], refs: list[RunRef]) -> str:
    if matches:
        return f"{len(matches)} runs match {wanted!r}: {short_list([r.id for r in reversed(matches)])}"
    import difflib

    near = difflib.get_close_matches(wanted, [r.id for r in refs] + [job_name(r.id) for r in refs], n=1, cutoff=0.6)
    return f"no run matches {wanted!r}; {f'did you mean {near[0]}?' if near else 'launcher ls lists all runs'}"


def resolve(wanted: str) -> Path:
    """Return the folder of a run by its id, its job's name (newest), a unique prefix or ending, ``@last`` or its path.

    A name is only that of a run of one's own; a path may lead to somebody else's. Raises RunNotFoundError when no run or
    several match.
    """
    if not wanted:  # such as "$RUN" where that is not set; the working directory may be a run, too
        raise RunNotFoundError("the name of the run is empty; launcher ls lists all runs")
    path = Path(os.path.expanduser(wanted))
    # A word alone may be a link here that somebody else has made, to another run than is meant.
    here = "/" in wanted or wanted in (".", "..") or (os.path.lexists(path) and is_own(os.lstat(path)))
    if here and (os.path.isfile(path / "spec.json") or is_sweep(path)):
        return path.absolute()
    if here and (why := _closed(path)):
        raise RunNotFoundError(f"{wanted}: permission denied: {why}")
    refs = list_runs()
    if wanted == "@last":
        if not refs:
            raise RunNotFoundError("there are no runs yet")
        return refs[-1].path
    for matches in (
        [r for r in refs if r.id == wanted],
        [r for r in refs if job_name(r.id) == wanted][-1:],
        [r for r in refs if r.id.endswith(f"-{wanted}")],
        [r for r in refs if r.id.startswith(wanted)],
    ):
        if len(matches) == 1:
            return matches[0].path
        if matches:
            raise RunNotFoundError(_sentence(wanted, matches, refs))
    lost = [r for r in _from_links().values() if not os.path.isdir(r.path)]
    for matches in ([r for r in lost if r.id == path.name], [r for r in lost if r.id.endswith(f"-{wanted}")]):
        if len(matches) == 1:
            raise _gone(matches[0])
    # The points of sweeps have no links of their own: a thousand would take long to make.
    points = [point for ref in refs if is_sweep(ref.path) for point in _from_folder(ref.path).values()]
    inside = [p for p in points if p.id == wanted or p.id.endswith(f"-{wanted}")]
    if len(inside) == 1:
        return inside[0].path
    named = [r.path for r in list_runs(check=False, foreign=True) if wanted in (r.id, job_name(r.id))]
    theirs = [path for path in named if os.path.isdir(path) and not _is_own_folder(path)]
    if theirs and not inside:
        path, owner = theirs[-1], user_name(theirs[-1].stat().st_uid)
        what = f"name it by its path, {path}, to read it" if _readable(path) else f"{path} is closed to you"
        raise RunNotFoundError(f"{wanted!r} is a run of {owner}, not yours: {what}")
    raise RunNotFoundError(_sentence(wanted, inside, refs))


def short_name(folder: Path) -> str:
    """Return the shortest word by which `resolve` finds the run or sweep in ``folder``: its id's ending, its id, its path."""
    for word in (folder.name.rpartition("-")[2], folder.name):
        with contextlib.suppress(RunNotFoundError):
            if os.path.realpath(resolve(word)) == os.path.realpath(folder):
                return word
    return str(folder)
