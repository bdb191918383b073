"""One digest per part of a checkpoint's state: two runs that are equal bit for bit have equal digests.

``python -m launcher.training.digest CHECKPOINT...`` prints them as JSON, a list.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import torch

from launcher.run.asking import exists
from launcher.run.manifest import read_manifest
from launcher.training import checkpoint

__all__ = ["digest", "digest_checkpoint"]


def digest(value: Any) -> str:
    """sha256 over a tree of dicts, lists, tensors and plain values: bits, types, shapes and names; not memory layout."""
    hasher = hashlib.sha256()
    _feed(hasher, value)
    return hasher.hexdigest()


def _feed(hasher: Any, node: Any) -> None:
    if isinstance(node, torch.Tensor):
        tensor = node.detach().cpu().contiguous()
        hasher.update(f"T{tensor.dtype}{tuple(tensor.shape)}".encode())
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b"")
    elif isinstance(node, dict):
        hasher.update(b"{%d" % len(node))
        for key in sorted(node, key=lambda k: (type(k).__name__, str(k))):
            _feed(hasher, key)
            _feed(hasher, node[key])
    elif isinstance(node, list | tuple):
        hasher.update(b"[%d" % len(node))
        for item in node:
            _feed(hasher, item)
    elif isinstance(node, set | frozenset):  # in one order for all processes
        hasher.update(b"s%d" % len(node) + "".join(sorted(map(digest, node))).encode())
    elif isinstance(node, float):
        hasher.update(b"f" + struct.pack("<d", node))
    else:
        hasher.update(f"{type(node).__name__}:{node!r};".encode())


def digest_checkpoint(path: Path) -> dict[str, str]:
    """Digest of each part of the checkpoint at ``path``: every registered object, rng, order, position, and ``all``.

    Of a folder that a script filled itself: each part of what DCP saved there, and each file of any other saver. Raises
    CheckpointError when it cannot be loaded.
    """
    if not exists(path / checkpoint.SHARED, path) and (manifest := read_manifest(path)):
        from launcher.training.folder_digest import of_folder  # DCP's import: workers, which digest too, do without

        parts = of_folder(path, {str(file["name"]): str(file["hash"]) for file in manifest["files"]})
        return {**parts, "all": digest(parts)}
    shared = checkpoint.load_shared(path)
    ranks = [checkpoint.load_rank(path, rank) for rank in range(int(shared["world_size"]))]
    position = dict(shared["position"])
    parts = {name: digest(state) for name, state in shared["objects"].items()}
    parts["rng"] = digest([rank["rng"] for rank in ranks])
    parts["per_rank"] = digest([[rank["partial"], rank["objects"]] for rank in ranks])
    parts["order"] = digest(position.pop("order"))
    parts["position"] = digest(position)
    parts["all"] = digest(parts)
    return parts


if __name__ == "__main__":
    print(json.dumps([digest_checkpoint(Path(path)) for path in sys.argv[1:]], indent=1))
