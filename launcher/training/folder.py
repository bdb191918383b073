"""A checkpoint folder that user code fills: DCP, FSDP, Megatron, anything that writes files."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from launcher.run.asking import patiently
from launcher.run.files import fsync_dir
from launcher.run.manifest import HASH_NAME, hash_file
from launcher.training.checkpoint.write import GENERATORS, error_number, make_folder, rank_file, write_file
from launcher.training.ddp.determinism import rng_state

if TYPE_CHECKING:
    from launcher.training.step.session import Session

__all__ = ["save_folder"]


@contextlib.contextmanager
def save_folder(session: Session) -> Iterator[Path | None]:
    """The folder to fill; when the block ends, every file in it is made durable and reported, shared out among the ranks."""
    if session.channel is None:
        yield None
        return
    began = time.perf_counter()
    session.phase("save")
    tmp = session.wanted or session.tmp()
    session.wanted = None
    step = session.position.step
    if session.folder_step == step:  # the state of a step is one, and the leader may be committing it
        tmp = tmp.with_name(f"{tmp.name}.again")  # taken away with the round
        _made(tmp, session.folder_mode)
        yield tmp
        session.phase("train")
        return
    session.reporter.send("save_begun", step=step, tmp=str(tmp))
    _made(tmp, session.folder_mode)
    yield tmp
    saved = False
    session.folder_step = step
    try:
        names = _mine(tmp, session.place.rank, session.place.world_size)  # first: all ranks meet in it
        files = [*_generators(tmp, session.place.rank, session.folder_mode), *(_durable(tmp, name) for name in names)]
        fsync_dir(tmp)
        seconds = round(time.perf_counter() - began, 6)
        values: dict[str, Any] = {"files": files, "seconds": seconds, "blocked_s": seconds, "hash_name": HASH_NAME}
        session.reporter.send("shard", step=step, tmp=str(tmp), meta={"step": step}, **values)
        saved = True
    except OSError as error:
        session.reporter.send("save_failed", step=step, tmp=str(tmp), error=str(error), errno=error_number(error))
    session.phase("train")
    if session.stopping:
        session.stopped(saved=saved)


def _made(tmp: Path, mode: int) -> None:
    """User code is about to fill it, so a run's folder that does not answer is waited for."""
    patiently(lambda: make_folder(tmp, mode), tmp.parents[1])


def _mine(tmp: Path, rank: int, world_size: int) -> list[str]:
    if world_size > 1 and dist.is_initialized():
        # Nobody lists before everybody has written; and a folder's listing may lag on NFS, so what any rank sees counts.
        dist.barrier()
        seen: list[list[str] | OSError] = [[] for _ in range(world_size)]
        # One rank's error is everybody's: the others would wait for it.
        dist.all_gather_object(seen, _names_or_error(tmp))
        names: set[str] = set()
        for listing in seen:
            if isinstance(listing, OSError):
                raise listing
            names |= set(listing)
        return sorted(names)[rank::world_size]
    return _names(tmp) if rank == 0 or world_size == 1 else []


def _names_or_error(tmp: Path) -> list[str] | OSError:
    try:
        return _names(tmp)
    except OSError as error:
        return error


def _generators(tmp: Path, rank: int, mode: int) -> list[dict[str, Any]]:
    """Beside what user code wrote: this rank's random numbers, for `Worker.restore_rng`."""
    folder = tmp / GENERATORS
    make_folder(folder, mode)
    entry = write_file(folder / rank_file(rank), {"rng": rng_state()}, mode & 0o660)
    return [{**entry, "name": f"{GENERATORS}/{entry['name']}"}]


def _names(tmp: Path) -> list[str]:
    """Every file. Raises OSError: one that was not seen would be missing in a checkpoint that verifies."""
    found = []
    for folder, _, names in os.walk(tmp, onerror=_refuse):
        found += [os.path.relpath(path, tmp) for name in names if _is_file(path := os.path.join(folder, name))]
    return sorted(name for name in found if not name.startswith(f"{GENERATORS}/"))


def _refuse(error: OSError) -> None:
    raise error


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
