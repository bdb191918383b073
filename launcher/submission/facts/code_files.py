"""List the files of a code directory: what git tracks or does not ignore; without git, all but caches and the like."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath

from launcher.errors import ConfigError
from launcher.opening import read_whole
from launcher.ownership import is_closed, other_writer, steerer
from launcher.run.files import read_object
from launcher.run.paths import SWEEP_FILE, RunPaths
from launcher.submission.facts.facts import CodeFacts

_CACHES = {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints",
            ".tox", ".nox", "node_modules", ".venv", ".eggs", "wandb", "mlruns"}  # fmt: skip
_CODE = {".py", ".so", ".sh", ".pth"}
_GIT_TIMEOUT_S = 60
# What a repository that somebody else has made could have git run: keys with a fixed name here, keys with names of their own in `git`.
_OFF = ("--no-pager", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-c", "diff.autoRefreshIndex=false",
        "-c", "safe.bareRepository=explicit")  # fmt: skip
_RUNS = re.compile(r"(filter|hook|lfs\.extension)\..+", re.DOTALL)
_INCLUDES = re.compile(r"include(if\..+)?\.path", re.DOTALL)
_LONGEST_LINK = 8192
_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Tracked but deleted, or a loop of links: nothing to copy."""
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
"""git writes nothing, and fetches nothing that a partial clone left out: fetching runs programs that the repository names."""


class _GitError(Exception):
    """git gave no answer; its own words."""


def listing(root: Path, skip: Iterable[Path] = ()) -> CodeFacts:
    """List the files of ``root`` without ``skip`` (files or directories, absolute), and its links to directories.

    Folders of runs and sweeps are left out, wherever they are: each holds the secret of its run. Raises ConfigError where git fails
    in a repository, and where the file system does.
    """
    skipped = {path for path in (root / p for p in skip) if path not in (root, *root.parents)}
    closed: list[str] = []
    names = _by_git(root)
    listed = set(names) if names is not None else set(_walk(root, "", skipped, closed))
    return _described(root, _without_runs(root, listed, skipped), git=names is not None, closed=closed)


def listing_of_copy(paths: RunPaths, skip: Iterable[Path] = ()) -> CodeFacts:
    """List a run's copy of its code: all that was copied into it, and what the run has written there. Raises ConfigError.

    Of what the run has written, caches and the like are left out.
    """
    root = paths.code.resolve()
    skipped = {root / name for name in skip}
    closed: list[str] = []
    copied = {name for name in read_object(paths.copied) or {} if "__pycache__" not in PurePath(name).parts}
    names = _without_runs(root, copied.union(_walk(root, "", skipped, closed)), skipped)
    return _described(root, names, git=False, closed=closed)


def _without_runs(root: Path, names: Iterable[str], skipped: set[Path]) -> Iterator[str]:
    """Yield the names that are neither in ``skipped`` nor in the folder of a run, sorted."""
    left_out: dict[str, bool] = {"": False}

    def is_out(folder: str) -> bool:
        if folder not in left_out:
            out = root / folder in skipped or is_out(os.path.dirname(folder)) or _is_run(root / folder)
            left_out[folder] = out
        return left_out[folder]

    return (name for name in sorted(names) if root / name not in skipped and not is_out(os.path.dirname(name)))


def _is_run(folder: Path) -> bool:
    """Return whether a run or a sweep is in the folder, by what the launcher alone writes side by side."""
    paths = RunPaths(folder)
    pairs = ((paths.spec, paths.secret), (folder / SWEEP_FILE, paths.submitit))
    return any(all(map(os.path.lexists, pair)) for pair in pairs)


def _described(root: Path, names: Iterable[str], *, git: bool, closed: list[str]) -> CodeFacts:
    """Look at each of ``names``. ``closed``: folders that cannot be read; files are added."""
    files: list[tuple[str, int]] = []
    links: dict[bool, list[tuple[str, str]]] = {False: [], True: []}  # by whether they stay inside
    doubt, known, private = "", {""}, []
    for name in names:
        path = root / name
        try:
            is_link, found = path.is_symlink(), os.stat(path)
            if is_link and stat.S_ISDIR(found.st_mode):
                target = path.resolve()
                inside = target.is_relative_to(root)  # such a link stays a link
                files += [(name, 0)] if inside else []
                links[inside].append((name, str(target)))
            elif stat.S_ISREG(found.st_mode):
                if not os.access(path, os.R_OK, effective_ids=True):
                    closed.append(name)
                    continue
                files.append((name, found.st_size))
                private += [name] if is_closed(found) else []
                if not is_link or path.suffix in _CODE:  # data of others is no doubt
                    doubt = doubt or _doubt(root, name, found, known)
        except OSError as error:
            _note(error, path, name, closed)
    folders = {str(above) for name, _ in files for above in PurePath(name).parents if above.name}
    for name in sorted(folders):
        with contextlib.suppress(OSError):  # gone meanwhile
            private += [name] if is_closed(os.stat(root / name)) else []
    return CodeFacts(
        root=str(root), files=tuple(files), outside=tuple(links[False]), inside=tuple(links[True]), closed=tuple(closed),
        private=tuple(private), git=git, doubt=doubt,
    )  # fmt: skip


def _note(error: OSError, path: Path, name: str, closed: list[str]) -> None:
    """Add ``name`` to ``closed`` where it may not be read. Raises ConfigError where the file system fails: code would be missing."""
    if isinstance(error, PermissionError):
        closed.append(name)
    elif error.errno not in _NOTHING:
        raise ConfigError(f"code.dir: {path} cannot be read: {error.strerror}") from None


def _doubt(root: Path, name: str, found: os.stat_result, known: set[str]) -> str:
    """Return whose else the file ``name`` may be, or a folder that it is in and that is not ``known`` yet; "" for nobody's."""
    if why := other_writer(root / name, found):
        return f"{root / name} {why}"
    while (name := os.path.dirname(name)) not in known:
        known.add(name)
        if why := other_writer(root / name, os.stat(root / name)):
            return f"{root / name} {why}"
    return ""


def _by_git(root: Path) -> list[str] | None:
    """List tracked files, and untracked ones that git does not ignore; None outside repositories, or where it ignores ``root``.

    Raises ConfigError where git fails in a repository: without it, ignored data and secrets would be taken for code.
    """
    try:
        listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    except _GitError as error:
        if (top := _repository(root)) is None:
            return None
        raise ConfigError(
            f"code.dir: {root} is in the repository at {top}, and git does not tell which files are the code's: {error}"
        ) from None
    if not listed:
        return None
    found = []
    for name in filter(None, listed.split("\0")):
        path = root / name
        if os.path.normpath(name) == ".":  # what an outer repository says of a repository inside it
            continue
        if os.path.isdir(path) and not path.is_symlink():  # a submodule, or a repository inside this one
            inner = _by_git(path) if os.path.lexists(path / ".git") else None  # a submodule may not be there
            found += [f"{name.rstrip('/')}/{n}" for n in (inner if inner is not None else _walk(path, "", set(), []))]
        else:
            found.append(name)
    return found


def _repository(root: Path) -> Path | None:
    return next((place for place in (root, *root.parents) if os.path.lexists(place / ".git")), None)


def git(root: Path, *args: str) -> str:
    """Return git's answer about the repository of ``root``; empty when it fails. No program that the repository names is run.

    Raises ConfigError where a key of the repository's configuration cannot be switched off.
    """
    try:
        return _git(root, *args)
    except _GitError:
        return ""


def _git(root: Path, *args: str) -> str:
    """As `git`; raises _GitError."""
    found = _configured(root)
    own: dict[str, str] = {}
    named = [key for key in found if _RUNS.fullmatch(key)]
    if named:  # a filter of the user's own, such as Git LFS, stays as the user has set it
        with contextlib.suppress(_GitError):
            own = _configured(Path("/"))
    if strange := [key for key in named if "=" in key]:  # -c would take it for another key
        raise ConfigError(
            f"code.dir: the git configuration of {root} has the key {strange[0]!r}: rename it without the ="
        )
    return _ask_git(root, *(word for key in named for word in ("-c", f"{key}={own.get(key, '')}")), *args)


def _configured(root: Path) -> dict[str, str]:
    """Return the keys and values of git's configuration in ``root``; in / the user's and the system's alone.

    Raises _GitError, and ConfigError where the repository takes a part of it from what somebody else could change before git reads it again.
    """
    try:
        listed, tells_scope = _ask_git(root, "config", "-z", "--list", "--show-origin", "--show-scope"), True
    except _GitError:  # git before 2.26 does not tell the scope: any file may be the repository's
        listed, tells_scope = _ask_git(root, "config", "-z", "--list", "--show-origin"), False
    fields = listed.split("\0")[:-1]
    origins, values = (fields[1::3], fields[2::3]) if tells_scope else (fields[::2], fields[1::2])
    scopes = fields[::3] if tells_scope else ["local" if origin.startswith("file:") else "" for origin in origins]
    entries = list(zip(scopes, origins, values, strict=True))
    if top := _repository(root):
        try:
            files = _own_configuration(top)
        except OSError as error:
            raise ConfigError(
                f"code.dir: where the repository at {top} is configured cannot be read: {error}"
            ) from None
        for scope, origin, entry in entries:
            if scope in ("local", "worktree"):
                key, _, value = entry.partition("\n")
                files.add(file := top / origin.removeprefix("file:"))
                if _INCLUDES.fullmatch(key):  # of an empty file, or a missing one, nothing is listed
                    files.add(file.parent / os.path.expanduser(value))
        for file in sorted(files):
            if why := _changed_by(file, root):
                raise ConfigError(f"code.dir: git takes a part of the configuration of {root} from {file}, but {why}")
    return dict(entry.partition("\n")[::2] for _, _, entry in entries)


def _own_configuration(top: Path) -> set[Path]:
    """Return where git reads the configuration of the repository at ``top``; a work tree's is also that of another folder."""
    folder = top / ".git"
    if folder.is_file():
        folder = top / read_whole(folder, _LONGEST_LINK).decode(errors="replace").partition(": ")[2].strip()
    common = folder
    with contextlib.suppress(FileNotFoundError):
        common = folder / read_whole(folder / "commondir", _LONGEST_LINK).decode(errors="replace").strip()
    return {folder / "config.worktree", common / "config"}


def _changed_by(file: Path, root: Path) -> str:
    """Return who could change ``file`` before git reads it again; "" for nobody else."""
    try:
        if why := steerer(file, {root, *root.parents}):
            return why
        with contextlib.suppress(FileNotFoundError):
            return "" if stat.S_ISREG(os.stat(file).st_mode) else "that is no regular file"
    except OSError as error:
        return f"that cannot be looked at: {error}"
    return ""


def _ask_git(root: Path, *args: str) -> str:
    """Raises _GitError."""
    # Variables such as GIT_DIR (set inside hooks) would make git answer for another repository.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | _QUIET
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *_OFF, *args],  # noqa: S607 (sites choose it by PATH)
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False, env=env,
        )  # fmt: skip
    except FileNotFoundError:
        raise _GitError("git is not on the PATH") from None
    except OSError as error:
        raise _GitError(f"git cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise _GitError(f"git did not answer within {_GIT_TIMEOUT_S} s") from None
    if done.returncode:
        raise _GitError(" ".join(os.fsdecode(done.stderr).split()) or f"git exited with {done.returncode}")
    return os.fsdecode(done.stdout)


def git_dirty(root: Path) -> bool:
    """Tell whether something in ``root``, its submodules included, differs from the commit. Raises ConfigError as `git` does."""
    # git would look into submodules with a git of its own, which heeds their configuration: each is asked by itself.
    if git(root, "status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".").strip():
        return True
    staged = (entry.partition("\t") for entry in git(root, "ls-files", "-z", "--stage").split("\0"))
    modules = [root / name for what, _, name in staged if what.startswith("160000 ")]
    return any(git_dirty(module) for module in modules if os.path.lexists(module / ".git"))


def git_diff(root: Path) -> str:
    """Return how the tracked files in ``root`` differ from the commit. Raises ConfigError as `git` does."""
    plain = ("--no-ext-diff", "--no-textconv", "--submodule=short", "--ignore-submodules=dirty")
    return git(root, "diff", *plain, "HEAD", "--", ".")


def _walk(root: Path, prefix: str, skipped: set[Path], closed: list[str]) -> Iterator[str]:
    """Yield the files below ``root``; folders that cannot be read are added to ``closed``. Raises ConfigError."""
    try:
        entries = sorted(os.scandir(root), key=lambda e: e.name)
    except OSError as error:
        _note(error, root, prefix.rstrip("/"), closed)
        return
    for entry in entries:
        name = f"{prefix}{entry.name}"
        path = Path(entry.path)
        if entry.name.endswith((".pyc", ".egg-info")) or path in skipped:
            continue
        if entry.name in _CACHES and not os.path.exists(
            path / "__init__.py"
        ):  # the user's own package may be called so
            continue
        if entry.is_dir(follow_symlinks=False):
            if not os.path.exists(path / "pyvenv.cfg") and not _is_run(path):
                yield from _walk(path, f"{name}/", skipped, closed)
        else:
            yield name


def in_copy(listed: CodeFacts, links: Iterable[str]) -> Callable[[str], bool]:
    """Return what tells of a normal path whether it is in the copy of the code, or below ``links``."""
    whole = {os.path.normpath(name) for name in [*dict(listed.files), *dict(listed.outside), *links]}
    there = whole.union(*(map(str, PurePath(name).parents) for name in whole))
    return lambda name: name in there or not whole.isdisjoint(map(str, PurePath(name).parents))


def left_out(root: Path, listed: CodeFacts, links: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return those of ``names`` (normal paths) that are in ``root``, but neither in its copy nor below ``links``.

    A folder is in the copy when any file of it is. An empty one holds nothing that could be missed.
    """
    copied = in_copy(listed, links)
    return [
        name
        for name in names
        if not copied(name)
        and (_CACHES | {".."}).isdisjoint(PurePath(name).parts)
        and not os.path.isabs(name)
        and _holds_anything(root / name)
    ]


def _holds_anything(path: Path) -> bool:
    try:
        return any(path.iterdir()) if path.is_dir() else os.path.exists(path)
    except (OSError, ValueError):  # ValueError: no path at all
        return False


def git_remote(root: Path) -> str:
    """Return the address of the repository's origin, without a password."""
    return re.sub(r"//[^/@]*@", "//", git(root, "remote", "get-url", "origin").strip())
