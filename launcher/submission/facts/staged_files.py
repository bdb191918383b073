"""List the files of a Python environment that `environment.stage` carries to the nodes."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Container, Iterable, Iterator
from pathlib import Path, PurePath

import launcher
from launcher.submission.facts.facts import Interpreter, StagedFiles

LIB = "lib"
"""What the archive calls the folder of the launcher's own package."""
_SYSTEM = tuple(map(PurePath, ("/usr", "/lib", "/lib64", "/bin", "/sbin")))
_PACKAGES = ("site-packages", "dist-packages")
_KEY_CHARS = 16


def staged_files(python: Interpreter, known: Iterable[str] = ()) -> StagedFiles:
    """Look at the environment of ``python``; folders below ``known`` reach the nodes in another way. Raises OSError.

    What lies below /usr is the system's, which each node has. A user's own site-packages (~/.local) counts as the environment's.
    """
    packages = [path for path in python.paths if PurePath(path).name in _PACKAGES]
    roots: list[str] = []
    for path in dict.fromkeys(
        map(os.path.abspath, [*python.prefixes, *packages])
    ):  # a login host's links may not be a node's
        if os.path.isdir(path) and not _is_below(path, [*_SYSTEM, *roots]):
            roots = [root for root in roots if not _is_below(root, [path])] + [path]
    count, size, key = 0, 0, hashlib.sha256("\0".join(roots).encode("utf-8", "surrogateescape"))
    packages = [os.path.realpath(path) for path in packages]
    for name, path in members(roots, packages):
        found = os.lstat(path)
        told = f"{name}\0{found.st_mode}\0{found.st_size}\0{found.st_mtime_ns}\0"
        if stat.S_ISREG(found.st_mode):
            count, size = count + 1, size + found.st_size
        elif stat.S_ISLNK(found.st_mode):
            told += f"{os.readlink(path)}\0"
        else:
            told = f"{name}\0{found.st_mode}\0"  # a folder's time changes with temporary files
        key.update(told.encode("utf-8", "surrogateescape"))
    elsewhere: list[str | PurePath] = [*_SYSTEM, *roots, *known, _package().parent]
    outside = [path for path in python.paths if os.path.isdir(path) and not _is_below(path, elsewhere)]
    return StagedFiles(tuple(roots), tuple(packages), count, size, key.hexdigest()[:_KEY_CHARS], tuple(outside))


def members(roots: Iterable[str], packages: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield all that the archive of ``roots`` holds: its name there and its path. Folders come before what is in them.

    Of folders of packages, only ``packages`` (resolved) are held: a venv seldom sees those of the Python that it was made from.
    """
    for number, root in enumerate(roots):
        yield from _below(root, str(number), packages)
    yield from _below(str(_package()), f"{LIB}/launcher", packages)


def _package() -> Path:
    return Path(launcher.__file__).parent


def _below(folder: str, name: str, packages: Container[str]) -> Iterator[tuple[str, str]]:
    yield name, folder
    with os.scandir(folder) as entries:
        inside = sorted(entries, key=lambda entry: entry.name)
    for entry in inside:
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _PACKAGES or os.path.realpath(entry.path) in packages:
                yield from _below(entry.path, f"{name}/{entry.name}", packages)
        elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
            yield f"{name}/{entry.name}", entry.path


def _is_below(path: str, folders: Iterable[str | PurePath]) -> bool:
    return any(PurePath(path).is_relative_to(folder) for folder in folders)
