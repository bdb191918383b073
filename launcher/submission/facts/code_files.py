"""List the files of a code directory: what git tracks or does not ignore; without git, all but caches and the like."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from launcher.submission.facts.facts import CodeFacts

_CACHES = {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints",
            ".tox", ".nox", "node_modules", ".venv", ".eggs", "wandb", "mlruns"}  # fmt: skip
_GIT_TIMEOUT_S = 60


def listing(root: Path, skip: Iterable[Path] = ()) -> CodeFacts:
    """List the files of ``root`` without ``skip`` (files or directories, absolute), and its links to directories outside."""
    skipped = {p if p.is_absolute() else root / p for p in skip}
    names = _by_git(root)
    files: list[tuple[str, int]] = []
    outside: list[tuple[str, str]] = []
    for name in sorted(set(names if names is not None else _walk(root, "", skipped))):
        path = root / name
        if path in skipped or not skipped.isdisjoint(path.parents):
            continue
        with contextlib.suppress(OSError):  # tracked but deleted, or a loop of links: nothing to copy
            if path.is_symlink() and path.is_dir():
                target = path.resolve()
                inside = target.is_relative_to(root)  # such a link stays a link
                files += [(name, 0)] if inside else []
                outside += [] if inside else [(name, str(target))]
            elif path.is_file():
                files.append((name, path.stat().st_size))
    return CodeFacts(root=str(root), files=tuple(files), outside=tuple(outside), git=names is not None)


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
    """Return git's answer about the repository of ``root``; empty when it fails."""
    # Variables such as GIT_DIR (set inside hooks) would make git answer for another repository.
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, timeout=_GIT_TIMEOUT_S, check=False, env=env
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(done.stdout) if done.returncode == 0 else ""


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
