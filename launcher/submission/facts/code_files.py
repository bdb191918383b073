"""List the files of a code directory: what git tracks or does not ignore; without git, all but caches and the like."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from launcher.errors import ConfigError
from launcher.opening import read_whole
from launcher.ownership import other_writer, steerer
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
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1"}
"""git writes nothing, and fetches nothing that a partial clone left out: fetching runs programs that the repository names."""


def listing(root: Path, skip: Iterable[Path] = ()) -> CodeFacts:
    """List the files of ``root`` without ``skip`` (files or directories, absolute), and its links to directories outside."""
    skipped = {p if p.is_absolute() else root / p for p in skip}
    names = _by_git(root)
    files: list[tuple[str, int]] = []
    outside: list[tuple[str, str]] = []
    doubt, known = "", {""}
    for name in sorted(set(names if names is not None else _walk(root, "", skipped))):
        path = root / name
        if path in skipped or not skipped.isdisjoint(path.parents):
            continue
        with contextlib.suppress(OSError):  # tracked but deleted, or a loop of links: nothing to copy
            is_link, found = path.is_symlink(), os.stat(path)
            if is_link and stat.S_ISDIR(found.st_mode):
                target = path.resolve()
                inside = target.is_relative_to(root)  # such a link stays a link
                files += [(name, 0)] if inside else []
                outside += [] if inside else [(name, str(target))]
            elif stat.S_ISREG(found.st_mode):
                files.append((name, found.st_size))
                if not is_link or path.suffix in _CODE:  # data of others is no doubt
                    doubt = doubt or _doubt(root, name, found, known)
    return CodeFacts(root=str(root), files=tuple(files), outside=tuple(outside), git=names is not None, doubt=doubt)


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
    """List tracked files, and untracked ones that git does not ignore; None without git, or where it ignores ``root``."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if not listed:
        return None
    found = []
    for name in filter(None, listed.split("\0")):
        path = root / name
        if path.is_dir() and not path.is_symlink():  # a submodule, or a repository inside this one
            inner = _by_git(path)
            found += [f"{name.rstrip('/')}/{n}" for n in (inner if inner is not None else _walk(path, "", set()))]
        else:
            found.append(name)
    return found


def git(root: Path, *args: str) -> str:
    """Return git's answer about the repository of ``root``; empty when it fails. No program that the repository names is run.

    Raises ConfigError where a key of the repository's configuration cannot be switched off.
    """
    found = _configured(root)
    if found is None:
        return ""
    own: dict[str, str] = {}
    named = [key for key in found if _RUNS.fullmatch(key)]
    if named:  # a filter of the user's own, such as Git LFS, stays as the user has set it
        own = _configured(Path("/")) or {}
    if strange := [key for key in named if "=" in key]:  # -c would take it for another key
        raise ConfigError(
            f"code.dir: the git configuration of {root} has the key {strange[0]!r}: rename it without the ="
        )
    return _ask_git(root, *(word for key in named for word in ("-c", f"{key}={own.get(key, '')}")), *args) or ""


def _configured(root: Path) -> dict[str, str] | None:
    """Return the keys and values of git's configuration in ``root``, None where git has no answer; in / the user's and the system's alone.

    Raises ConfigError where the repository takes a part of it from what somebody else could change before git reads it again.
    """
    listed, tells_scope = _ask_git(root, "config", "-z", "--list", "--show-origin", "--show-scope"), True
    if listed is None:  # git before 2.26 does not tell the scope: any file may be the repository's
        listed, tells_scope = _ask_git(root, "config", "-z", "--list", "--show-origin"), False
    if listed is None:
        return None
    fields = listed.split("\0")[:-1]
    origins, values = (fields[1::3], fields[2::3]) if tells_scope else (fields[::2], fields[1::2])
    scopes = fields[::3] if tells_scope else ["local" if origin.startswith("file:") else "" for origin in origins]
    entries = list(zip(scopes, origins, values, strict=True))
    if top := next((place for place in (root, *root.parents) if os.path.lexists(place / ".git")), None):
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


def _ask_git(root: Path, *args: str) -> str | None:
    # Variables such as GIT_DIR (set inside hooks) would make git answer for another repository.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | _QUIET
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *_OFF, *args],  # noqa: S607 (sites choose it by PATH)
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_TIMEOUT_S, check=False, env=env,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


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


def _walk(root: Path, prefix: str, skipped: set[Path]) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(root), key=lambda e: e.name)
    except OSError:
        return
    for entry in entries:
        name = f"{prefix}{entry.name}"
        path = Path(entry.path)
        if entry.name in _CACHES or entry.name.endswith((".pyc", ".egg-info")) or path in skipped:
            continue
        if entry.is_dir(follow_symlinks=False):
            if not (path / "pyvenv.cfg").exists():
                yield from _walk(path, f"{name}/", skipped)
        else:
            yield name


def left_out(root: Path, listed: CodeFacts, links: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return those of ``names`` (normal paths) that are in ``root``, but neither in its copy nor below ``links``.

    A folder is in the copy when any file of it is. An empty one holds nothing that could be missed.
    """
    whole = {os.path.normpath(name) for name in [*dict(listed.files), *dict(listed.outside), *links]}
    there = whole.union(*(map(str, PurePath(name).parents) for name in whole))
    return [
        name
        for name in names
        if name not in there
        and whole.isdisjoint(map(str, PurePath(name).parents))
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
