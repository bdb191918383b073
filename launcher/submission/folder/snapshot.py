"""Copy the code and the launcher itself into a run, and describe what it was made from, without secrets."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import platform
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import launcher
from launcher.errors import SnapshotError
from launcher.ownership import OTHERS_WRITE
from launcher.redact import REDACTED, redact, redact_words
from launcher.run.files import read_object, write_atomic
from launcher.run.paths import RunPaths
from launcher.run.units import size
from launcher.submission.facts import code_files
from launcher.submission.facts.facts import CodeFacts, Interpreter
from launcher.submission.folder import make_folder

_NAMED = 5
_COPIED = RunPaths(Path()).copied.name
_DIFF_LIMIT = 1_000_000
# Wider than `secret_name`: nobody misses CONDA_AUTH or SLURM_TOKEN_FILE here, where others may read.
_HIDDEN = re.compile(r"(?i)key|token|secret|passw|credential|auth|jwt")
_TOLD = re.compile(r"^(CONDA_|CUDA_|GLOO_|HSA_|LD_LIBRARY_PATH$|LOADEDMODULES$|MKL_|MODULEPATH$|NCCL_|OMP_|PATH$|PYTHON|ROCM_|"
                   r"SLURM_|SBATCH_|TORCH|UCX_|VIRTUAL_ENV$)")  # fmt: skip


def check_size(code: CodeFacts, max_mb: int) -> None:
    """Refuse a copy above ``max_mb`` and name the largest files. Raises SnapshotError."""
    if code.size <= max_mb * 1_000_000:
        return
    largest = sorted(code.files, key=lambda f: -f[1])[:_NAMED]
    named = ", ".join(f"{name} ({size(count)})" for name, count in largest)
    raise SnapshotError(
        f"{code.root}: a copy of the code would take {size(code.size)}, more than code.max_mb={max_mb}. Largest: {named}. "
        "Add data to .gitignore, link its directory (code.link), or raise code.max_mb"
    )


def copy_code(
    code: CodeFacts,
    target: Path,
    link: Sequence[str],
    *,
    snapshot: bool = True,
    mode: int = 0o700,
    like: Path | None = None,
) -> None:
    """Make ``target`` the run's code: a copy with ``link`` linked, or one link to the original.

    Files that are the same in ``like``, another run's copy, are hard links to those there, and read-only: two runs share them.
    Raises SnapshotError when a file cannot be copied.
    """
    root = Path(code.root)
    try:
        if not snapshot:
            target.symlink_to(root)
            return
        make_folder.make(target, mode)
        stamps = {name: _stamp(root / name) for name, _ in code.files}  # taken first: an edit meanwhile is seen later
        # root writes into what is read-only, and a link is one file for two runs
        shared = None if like is None or like.is_symlink() or os.geteuid() == 0 else like.resolve()
        copied = code_files.in_copy(code, link)
        for name in stamps:
            _copy(root, root / name, target / name, target, shared and shared / name, copied)
        for name, outside in code.outside:
            _link(Path(outside), target / name)
        for name in link:
            if not (root / name).exists():
                raise SnapshotError(f"code.link: {root / name} does not exist")
            _link((root / name).resolve(), target / name)
        for name in code.private:  # a folder in which all is closed: files have their modes
            if (target / name).is_dir() and not (target / name).is_symlink():
                os.chmod(target / name, 0o700)
        if mode & stat.S_IRGRP:
            make_folder.let_group_read(target)
        write_atomic(target.with_name(_COPIED), json.dumps(stamps) + "\n", durable=False)
    except OSError as error:
        raise SnapshotError(f"{error.filename or target}: {(error.strerror or str(error)).lower()}") from None


def _copy(root: Path, source: Path, target: Path, top: Path, like: Path | None, copied: Callable[[str], bool]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() and (resolved := source.resolve()).is_relative_to(root):
        inside = resolved.relative_to(root)
        if copied(str(inside)) or resolved.is_dir():
            target.symlink_to(os.path.relpath(top / inside, target.parent))
            return  # a link to a file that is not copied becomes that file
    with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
        if like is None or not _link_same(source, like, target):
            _copy_file(source, target)  # a link to a file outside becomes that file


def _link_same(source: Path, like: Path, target: Path) -> bool:
    """Make ``target`` a hard link to ``like`` where that holds what ``source`` does; return whether it is one."""
    try:
        if like.resolve() != like or not filecmp.cmp(source, like, shallow=False):
            return False
        mode = os.stat(source).st_mode & ~OTHERS_WRITE & ~stat.S_IWUSR & 0o7777
        if os.stat(like).st_mode & 0o7777 != mode:
            os.chmod(like, mode)
        os.link(like, target)
    except OSError:  # it has no such file, or is on another file system, or too many links
        return False
    return True


def _copy_file(source: str | Path, target: str | Path) -> str | Path:
    """Copy a file with its times and its mode, but for others' right to write it: the run executes the copy."""
    shutil.copy2(source, target)
    if (mode := os.stat(target).st_mode) & OTHERS_WRITE:
        os.chmod(target, mode & ~OTHERS_WRITE)
    return target


def _stamp(path: Path) -> list[Any] | None:
    """Return what shows that a file was edited: its size and time; of a link to a directory, its target."""
    try:
        if path.is_symlink() and path.is_dir():
            return [os.readlink(path)]
        found = path.stat()
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return None
    return [found.st_size, found.st_mtime_ns]


def changed(paths: RunPaths, root: Path, skip: Iterable[Path]) -> list[str]:
    """List the files of ``root`` that the user edited, added or removed since they were copied into the run.

    What the run wrote into its copy does not count. A run of an older version kept no list of what was copied: there a
    removed file cannot be told from one that the run wrote, and is not named.
    """
    copied = read_object(paths.copied) or {}
    today = {name for name, _ in code_files.listing(root, skip).files if "__pycache__" not in Path(name).parts}

    def same(name: str) -> bool:
        now = _stamp(root / name)
        if now is None or now == copied.get(name):
            return now is not None
        try:
            return filecmp.cmp(root / name, paths.code / name)  # touched, but with the same content
        except OSError:
            return False

    return sorted(name for name in today | copied.keys() if not same(name))


def carry_over(old: Path, copied: Container[str], new: Path) -> None:
    """Give ``new``, a run's new copy of the code, what the run wrote into ``old``: files that were not ``copied``, such as checkpoints.

    A file of the new copy stays. They are hard links where the file system has them. Raises SnapshotError.
    """
    try:
        for folder, folders, names in os.walk(old):
            folders[:] = [name for name in folders if name != "__pycache__"]
            inside = Path(folder).relative_to(old)
            if (new / inside).resolve() != new.resolve() / inside:
                continue  # today a link, or below one: what it leads to is the user's
            for name in (*names, *(name for name in folders if os.path.islink(Path(folder, name)))):
                if str(inside / name) not in copied:
                    _carry(Path(folder, name), new / inside / name)
    except OSError as error:
        raise SnapshotError(f"{error.filename or new}: {(error.strerror or str(error)).lower()}") from None


def _carry(source: Path, target: Path) -> None:
    if os.path.lexists(target) or (not os.path.isdir(target.parent) and os.path.lexists(target.parent)):
        return
    if source.is_symlink() and os.path.isabs(os.readlink(source)):
        return  # code.link's
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without hard links
        if source.is_file():
            shutil.copy2(source, target, follow_symlinks=False)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink():
        target.symlink_to(source)


def copy_launcher(target: Path) -> None:
    """Copy this package into ``target`` (a run's lib): a queued run is immune to upgrades, and its Python needs less."""
    source = Path(launcher.__file__).parent
    try:
        shutil.copytree(
            source, target / "launcher", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"), dirs_exist_ok=True,
            copy_function=_copy_file,
        )  # fmt: skip
        target.chmod(target.parent.stat().st_mode & 0o777)  # who may enter the run may enter this, whatever the umask
        for folder, _, _ in os.walk(target / "launcher"):  # copytree gives folders their originals' modes
            os.chmod(folder, os.stat(folder).st_mode & ~OTHERS_WRITE | stat.S_IRWXU)  # the run is to be removable
        if target.stat().st_mode & stat.S_IRGRP:
            make_folder.let_group_read(target)
    except OSError as error:
        # Of one file: on a full disk it is the same for all.
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        raise SnapshotError(f"{target}: the launcher cannot be copied into the run: {why}") from None


def link_launcher(like: Path, target: Path) -> None:
    """Make ``target`` another run's copy of this package, file by file. Raises SnapshotError where this package is another by now."""
    source, copy = Path(launcher.__file__).parent, like / "launcher"
    for folder, _, names in os.walk(source):
        inside = Path(folder).relative_to(source)
        for name in names:
            if not name.endswith(".pyc") and not _is_same(Path(folder, name), copy / inside / name):
                raise SnapshotError(
                    f"the launcher was updated since {like.parent.name} began: launcher hold takes a new allocation"
                )
    try:
        shutil.copytree(copy, target / "launcher", ignore=shutil.ignore_patterns("__pycache__"), copy_function=os.link)
        target.chmod(like.stat().st_mode & 0o777)
    except (OSError, shutil.Error):
        shutil.rmtree(target, ignore_errors=True)
        copy_launcher(target)


def _is_same(one: Path, other: Path) -> bool:
    try:
        first, second = one.stat(), other.stat()
        same_times = (first.st_size, first.st_mtime_ns) == (second.st_size, second.st_mtime_ns)
        return same_times or filecmp.cmp(one, other, shallow=False)
    except OSError:
        return False


def environment(
    code: CodeFacts, interpreter: Interpreter, argv: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """Describe what the run was made from, secrets redacted."""
    root = Path(code.root)
    patch = code_files.git_diff(root) if code.git and code.dirty else ""
    told = {k: v for k, v in environ.items() if _TOLD.match(k)}
    return {
        "submitted_t": round(time.time(), 3),
        "launcher": launcher.__version__,
        "host": socket.gethostname(),
        "user": environ.get("USER", ""),
        "system": platform.platform(),
        "command": redact_words(argv),
        "cwd": os.getcwd(),
        "python": {"path": interpreter.path, "origin": interpreter.origin, "version": interpreter.version},
        "packages": dict(sorted(interpreter.packages.items(), key=lambda item: item[0].lower())),
        "editable": [list(e) for e in interpreter.editable],
        "code": {
            "root": code.root,
            "git": code.git,
            "commit": code.commit,
            "dirty": code.dirty,
            "remote": redact(code_files.git_remote(root)) if code.git else "",
            "diff": redact(patch[:_DIFF_LIMIT]),
            "diff_cut": len(patch) > _DIFF_LIMIT,
        },
        "variables": {k: REDACTED if _HIDDEN.search(k) else redact(v) for k, v in told.items()},
    }
