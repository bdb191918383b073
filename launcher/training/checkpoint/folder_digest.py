"""The digests of a checkpoint that a script saved itself: a folder that DCP filled, or any other saver."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from launcher.training.checkpoint import write
from launcher.training.checkpoint.digest import digest
from launcher.training.checkpoint.read import load_rank


def of_folder(path: Path, hashes: dict[str, str]) -> dict[str, str]:
    """Return the parts of a folder whose files have these hashes, without what a saver makes anew at every save."""
    own = {name for name in hashes if name.startswith(f"{write.GENERATORS}/")}
    parts = {name: its for name, its in hashes.items() if name not in own}
    for name in [name for name in parts if name.endswith(".metadata")]:  # DCP's: a fresh uuid, an absolute path
        del parts[name]
        if Path(name).name == ".metadata":
            parts = _with_dcp(path, Path(name).parent, parts)
    if own:
        generators = [load_rank(path / write.GENERATORS, rank) for rank in range(len(own))]
        parts["rng"] = digest([parts.get("rng"), generators])
    return parts


def _with_dcp(path: Path, folder: Path, parts: dict[str, str]) -> dict[str, str]:
    """Replace the parts that are DCP's files in this folder below ``path`` by what DCP saved in them."""
    try:
        found = _of_dcp(path / folder)
    except Exception:  # another saver's metadata, of classes that this process lacks: compare its files
        return parts
    others = {name: its for name, its in parts.items() if Path(name).parent != folder or Path(name).suffix != ".distcp"}
    return others | {str(folder / part): its for part, its in found.items()}


def _of_dcp(folder: Path) -> dict[str, str]:
    """Return the digest of each part of a state that DCP saved, whichever rank wrote which piece of it.

    A part is a key of the saved state; where there is one key alone, a key below it. One part at a time is in memory.
    """
    kept = FileSystemReader(folder).read_metadata().state_dict_metadata
    depth = 1 if len({name.split(".")[0] for name in kept}) > 1 else 2
    parts: dict[str, dict[str, Any]] = {}
    for name, what in kept.items():
        blank = torch.empty(what.size, dtype=what.properties.dtype) if isinstance(what, TensorStorageMetadata) else None
        parts.setdefault(".".join(name.split(".")[:depth]), {})[name] = blank
    return {part: _read(folder, parts.pop(part)) for part in sorted(parts)}


def _read(folder: Path, state: dict[str, Any]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP warns that there is no process group: none is needed
        load(state, storage_reader=FileSystemReader(folder), planner=_Planner(False, False))
    return digest(state)


class _Planner(DefaultLoadPlanner):
    """Loads what is no tensor as plain values, or as its pickle where torch does not know the class."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Keep what was read."""
        try:
            found = torch.load(value, weights_only=True)
        except Exception:
            found = value.getvalue()
        self.state_dict[read_item.dest_index.fqn] = found
