"""One digest for each part of a checkpoint: two runs that are equal bit for bit have equal digests.

``python -m launcher.training.checkpoint.checkpoint_digest CHECKPOINT...`` prints them as JSON, a list.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from launcher.run.asking import exists
from launcher.run.manifest import read_manifest
from launcher.training.checkpoint import read, write
from launcher.training.checkpoint.digest import digest


def digest_checkpoint(path: Path) -> dict[str, str]:
    """Return the digest of each part of the checkpoint at ``path``: every registered object, rng, order, position, ``all``.

    For a folder that a script filled itself: each part of what DCP saved there, and each file of any other saver. Raises
    CheckpointError when it cannot be loaded.
    """
    if not exists(path / write.SHARED, path) and (manifest := read_manifest(path)):
        from launcher.training.checkpoint import folder_digest  # imports DCP, which takes long and only this case needs

        parts = folder_digest.of_folder(path, {str(file["name"]): str(file["hash"]) for file in manifest["files"]})
        return {**parts, "all": digest(parts)}
    shared = read.load_shared(path)
    ranks = [read.load_rank(path, rank) for rank in range(int(shared["world_size"]))]
    position = dict(shared["position"])
    own = ("rng", "per_rank", "order", "position", "all")
    parts = {f"{name} (registered)" if name in own else name: digest(s) for name, s in shared["objects"].items()}
    parts["rng"] = digest([rank["rng"] for rank in ranks])
    parts["per_rank"] = digest([[rank["partial"], rank["objects"]] for rank in ranks])
    parts["order"] = digest(position.pop("order"))
    parts["position"] = digest(position)
    parts["all"] = digest(parts)
    return parts


if __name__ == "__main__":
    print(json.dumps([digest_checkpoint(Path(path)) for path in sys.argv[1:]], indent=1))
