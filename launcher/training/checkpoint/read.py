"""Reads checkpoints: torch's restricted unpickler, on the CPU, mapped from the files."""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from launcher.errors import CheckpointError
from launcher.run.worker_texts import UNSAFE_LOAD, UNSAFE_LOAD_CODE
from launcher.training.checkpoint import write
from launcher.training.checkpoint.plain import from_plain
from launcher.training.checkpoint.shares import put_back

Unsafe = Callable[[str], None] | None
"""Called with a warning when a file was unpickled in full; None: no file may be."""
_UNSAFE = re.compile(r"GLOBAL (\S+) was not an allowed global")
_NAMED = re.compile(r"attribute '([^']+)'")


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Return the state of every registered object by its name, from a folder ``checkpoints/step-...`` of a run.

    Tensors are on the CPU and mapped from the files. Classes of your own in a state must be imported before. What was registered
    with ``per_rank=True`` is not in it. Raises CheckpointError.
    """
    objects = load_shared(Path(path))["objects"]
    try:
        return {name: from_plain(state) for name, state in objects.items()}
    except Exception as error:  # of any kind: a stand-in that does not fit, a class that is not imported
        raise CheckpointError(f"checkpoint {path} cannot be loaded: {error}") from error


def load_shared(path: Path, unsafe: Unsafe = None) -> dict[str, Any]:
    """Load what all ranks share, on the CPU, mapped from the file. Raises CheckpointError."""
    state = _load(path / write.SHARED, unsafe)
    if not isinstance(state, dict) or state.get("format") not in (write.FORMAT, write.FORMAT_IN_SHARES):
        raise CheckpointError(f"checkpoint {path} has a format that this version of the launcher cannot read")
    if state["format"] == write.FORMAT_IN_SHARES:
        share = functools.cache(lambda rank: load_rank(path, rank, unsafe)["share"])
        try:
            state["objects"] = put_back(state["objects"], share)
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(
                f"checkpoint {path} lacks a tensor that the file of another rank should hold"
            ) from None
    return state


def load_rank(path: Path, rank: int, unsafe: Unsafe = None) -> dict[str, Any]:
    """Load one rank's own part. Raises CheckpointError."""
    state = _load(path / write.rank_file(rank), unsafe)
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path}: {write.rank_file(rank)} does not hold the state of a rank")
    return state


def _load(file: Path, unsafe: Unsafe = None) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint file {file} is missing") from None
    except Exception as error:
        held = isinstance(error, pickle.UnpicklingError) and _UNSAFE.search(str(error))
        if not held:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(f"checkpoint file {file} cannot be loaded: {reason}") from error
        if unsafe is None:
            raise CheckpointError(
                f"the checkpoint holds a {held[1]} and cannot be loaded safely; resubmit {UNSAFE_LOAD} loads it "
                f"all the same, which runs any code that it holds: {file}",
                lasting=True,
            ) from error
        unsafe(f"the checkpoint holds a {held[1]}: it was unpickled in full ({UNSAFE_LOAD}): {file}")
    try:
        return torch.load(file, map_location="cpu", weights_only=False, mmap=True)
    except (AttributeError, ImportError) as error:
        name = _NAMED.search(str(error))
        what = f"the class {name[1]}" if name and isinstance(error, AttributeError) else "what it needs"
        raise CheckpointError(
            f"the checkpoint cannot be unpickled ({str(error).partition(chr(10))[0]}); define or import {what} before "
            f"launcher.attach(), then resubmit {UNSAFE_LOAD_CODE}: {file}",
            lasting=True,
        ) from error
