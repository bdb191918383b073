"""A checkpoint folder that user code fills: DCP, FSDP, Megatron, anything that writes files."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from launcher.run.asking import patiently
from launcher.run.files import fsync_dir
from launcher.run.manifest import HASH_NAME, hash_file
from launcher.run.messages import WorkerSaveBegun, WorkerSaveFailed, WorkerShard
from launcher.training.checkpoint.write import GENERATORS, error_number, make_folder, rank_file, write_file
from launcher.training.ddp.randomness import rng_state

if TYPE_CHECKING:
    from launcher.training.step.session import Session


@contextlib.contextmanager
def save_folder(session: Session) -> Iterator[Path | None]:
    """Give the folder to fill; when the block ends, the ranks share the files in it, and the thread that saves makes them durable."""
    if session.place.paths is None:
        yield None
        return
    began = time.perf_counter()
    session.phase("save")
    session.saver.drain()  # an earlier save
    tmp = session.wanted or session.tmp()
    session.wanted = None
    step = session.position.step
    is_again = session.folder_step == step
    if is_again:  # this step is saved already, and the leader may be committing that folder
        tmp = tmp.with_name(f"{tmp.name}-again")  # deleted with the round
    else:
        session.folder_step = step
        session.reporter.send(WorkerSaveBegun(step=step))
    try:
        # While the run's folder does not answer, this waits: user code is about to fill the new one.
        patiently(lambda: make_folder(tmp, session.folder_mode), tmp.parents[1])
        yield tmp
    except BaseException as error:  # the script may go on: else the leader would wait for this save
        if not is_again:
            _tell_failed(session, step, error)
        _end(session, step)
        raise
    if not is_again:
        try:
            names = _mine(tmp, session.place.rank, session.place.world_size)  # all ranks meet in it
            session.saver.begin(_report, session, tmp, names, rng_state(session.device), step, began)
        except OSError as error:
            _tell_failed(session, step, error)
    _end(session, step)


def _report(session: Session, tmp: Path, names: list[str], rng: dict[str, Any], step: int, began: float) -> None:
    """Make this rank's files durable and report them; training goes on meanwhile."""
    blocked_s = time.perf_counter() - began
    try:
        files = [_generators(tmp, session, rng), *(_durable(tmp, name) for name in names)]
        fsync_dir(tmp)
    except Exception as error:  # whatever it is: the leader would wait for this save
        _tell_failed(session, step, error)
        return
    session.saver.saved_step = step
    session.reporter.send(
        WorkerShard(
            step=step,
            files=files,
            seconds=round(time.perf_counter() - began, 6),
            blocked_s=round(blocked_s, 6),
            hash_name=HASH_NAME,
            meta={"step": step},
        )
    )


def _tell_failed(session: Session, step: int, error: BaseException) -> None:
    text = str(error) or type(error).__name__
    session.reporter.send(WorkerSaveFailed(step=step, error=text, errno=error_number(error)))


def _end(session: Session, step: int) -> None:
    if session.stopping or step == session.last_step:
        session.saver.drain()  # scripts may end by os._exit, and what writes would end with them
    session.phase("train")
    if session.stopping:
        session.stopped(saved=session.saver.saved_step == step)


def _mine(tmp: Path, rank: int, world_size: int) -> list[str]:
    """Return the files that this rank makes durable."""
    if world_size == 1 or not dist.is_initialized():
        return _names(tmp) if rank == 0 else []
    dist.barrier()  # no rank lists before all have written
    own: list[str] | OSError
    try:
        own = _names(tmp)
    except OSError as error:  # raised on every rank: the others would wait for this one
        own = error
    seen: list[list[str] | OSError] = [[] for _ in range(world_size)]
    dist.all_gather_object(seen, own)
    names: set[str] = set()
    for listing in seen:  # a folder's listing may lag on NFS, so what any rank sees counts
        if isinstance(listing, OSError):
            raise listing
        names |= set(listing)
    return sorted(names)[rank::world_size]


def _generators(tmp: Path, session: Session, rng: dict[str, Any]) -> dict[str, Any]:
    """Write this rank's random numbers, as they were when the block ended, beside the user's files, for `Worker.restore_rng`."""
    folder, mode = tmp / GENERATORS, session.folder_mode
    make_folder(folder, mode)
    entry = write_file(folder / rank_file(session.place.rank), {"rng": rng}, mode & 0o660)
    return {**entry, "name": f"{GENERATORS}/{entry['name']}"}


def _names(tmp: Path) -> list[str]:
    """List every file. Raises OSError: one that was not seen would be missing in a checkpoint that verifies."""
    found = []
    for folder, folders, names in os.walk(tmp, onerror=_refuse):
        for name in (*folders, *names):
            _make_relative(os.path.join(folder, name), tmp)
        found += [os.path.relpath(path, tmp) for name in names if _is_file(path := os.path.join(folder, name))]
    return sorted(name for name in found if not name.startswith(f"{GENERATORS}/"))


def _refuse(error: OSError) -> None:
    raise error


def _make_relative(path: str, tmp: Path) -> None:
    """Make a link that leads into the folder by an absolute path a relative one: the folder gets another name when it is committed."""
    if not os.path.islink(path) or not os.path.isabs(target := os.readlink(path)) or not os.path.exists(path):
        return
    if tmp in Path(target).parents:
        # Made beside the folder, which the other ranks are listing; each of them does the same.
        new = tmp.with_name(f"{tmp.name}-link-{secrets.token_hex(8)}")
        os.symlink(os.path.relpath(target, os.path.dirname(path)), new)
        os.replace(new, path)


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        if os.path.islink(path):  # to nothing
            return False
        raise


def _durable(tmp: Path, name: str) -> dict[str, Any]:
    path = tmp / name
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    return {"name": name, "size": path.stat().st_size, "hash": hash_file(path)}
