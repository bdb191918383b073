"""List the files of a Python environment that `environment.stage` carries to the nodes."""

from __future__ import annotations

import contextlib
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


def folder_beside(run: Path | str) -> str:
    """Return the folder of this user's archives beside a run or a sweep; its name begins with a dot, as no run's does."""
    return f"{PurePath(run).parent}/.environments-{os.geteuid()}"


def staged_files(python: Interpreter, folder: str = "", known: Iterable[str] = ()) -> StagedFiles:
    """Look at the environment of ``python``, whose archive is to be in ``folder``. Raises OSError.

    What lies below /usr is the system's, which each node has. A user's own site-packages (~/.local) counts as the environment's.
    Folders below ``known`` reach the nodes in another way.
    """
    packages = [path for path in python.paths if PurePath(path).name in _PACKAGES]
    roots: dict[str, str] = {}  # as they are called, by where they are: a login host's links may not be a node's
    for path in map(os.path.abspath, [*python.prefixes, *packages]):
        real = os.path.realpath(path)
        if os.path.isdir(real) and not _is_below(real, [*_SYSTEM, *roots]):
            roots = {**{where: name for where, name in roots.items() if not _is_below(where, [real])}, real: path}
    names, packages = list(roots.values()), [os.path.realpath(path) for path in packages]
    count, size, compiled, key = 0, 0, 0, hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape"))
    for name, path in members(names, packages):
        with contextlib.suppress(FileNotFoundError):  # a Python that runs meanwhile replaces what it has compiled
            told, bytes_ = _told(name, path)
            count, size = count + (bytes_ is not None), size + (bytes_ or 0)
            if "/__pycache__" in name:
                compiled += 1
            else:
                key.update(told.encode("utf-8", "surrogateescape"))
    # Any import may compile a module: no reason for another archive. One with half of them would be compiled anew on every node.
    key.update(str(compiled.bit_length()).encode())
    elsewhere: list[str | PurePath] = [*_SYSTEM, *roots, *known, _package().parent]
    outside = [
        path for path in python.paths if os.path.isdir(path) and not _is_below(os.path.realpath(path), elsewhere)
    ]
    return StagedFiles(folder, tuple(names), tuple(packages), count, size, key.hexdigest()[:_KEY_CHARS], tuple(outside))


def _told(name: str, path: str) -> tuple[str, int | None]:
    """Return what makes a file another one, and its size; None for what is no file."""
    found = os.lstat(path)
    if stat.S_ISREG(found.st_mode):
        return f"{name}\0{found.st_mode}\0{found.st_size}\0{found.st_mtime_ns}\0", found.st_size
    # A folder's time changes with temporary files.
    return f"{name}\0{found.st_mode}\0{os.readlink(path) if stat.S_ISLNK(found.st_mode) else ''}\0", None


def members(roots: Iterable[str], packages: Container[str]) -> Iterator[tuple[str, str]]:
    """Yield all that the archive of ``roots`` holds: its name there and its path. Folders come before what is in them.

    Of folders of packages, only ``packages`` (resolved) are held: a venv seldom sees those of the Python that it was made from.
    """
    for number, root in enumerate(roots):
        yield from _below(os.path.realpath(root), str(number), packages)
    yield from _below(str(_package()), f"{LIB}/launcher", packages)


def _package() -> Path:
    return Path(launcher.__file__).parent


def _below(folder: str, name: str, packages: Container[str]) -> Iterator[tuple[str, str]]:
    yield name, folder
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:  # gone meanwhile
        return
    for entry in inside:
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _PACKAGES or os.path.realpath(entry.path) in packages:
                yield from _below(entry.path, f"{name}/{entry.name}", packages)
        elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
            yield f"{name}/{entry.name}", entry.path


def _is_below(path: str, folders: Iterable[str | PurePath]) -> bool:
    return any(PurePath(path).is_relative_to(folder) for folder in folders)
