#!/usr/bin/env python3
"""How fast a resume reads its checkpoint: beside a plain read of the same file, in turns, both from the disk.

    sudo .venv/bin/python benchmarks/resume_read.py [--mb 2048] [--turns 5] [--dir .]

What the kernel keeps of files is dropped before each turn, which needs root. A resume loads the file and copies every tensor into
memory that is there, as load_state_dict does (an optimizer's, where it is on a GPU). The last line is the median of the turns' ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from checkpoint import build, tree

from launcher.training.checkpoint import read, write


def forget() -> None:
    """Drop what the kernel keeps of files; they are on disk already."""
    Path("/proc/sys/vm/drop_caches").write_text("3")


def plain(path: Path) -> float:
    """Seconds to read the file from its beginning to its end."""
    buffer = bytearray(8 << 20)
    began = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=2048)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--dir", default=None, help="where the checkpoint is (default: the temporary folder)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.dir))
    model, optimizer = build(given.mb)
    try:
        path = folder / write.SHARED
        with open(path, "wb") as file:
            torch.save({"format": write.FORMAT, **tree(model, optimizer)}, file)
            file.flush()
            os.fsync(file.fileno())
        room = torch.zeros(max(p.numel() for p in model.parameters()))
        size, ratios = path.stat().st_size / 1e9, []
        for _ in range(given.turns):
            forget()
            lone_s = plain(path)
            forget()
            began = time.perf_counter()
            state = read.load_shared(folder)
            for kept in state["model"].values():
                room[: kept.numel()].copy_(kept.view(-1))
            for moments in state["optimizer"]["state"].values():
                for kept in moments.values():
                    room[: kept.numel()].copy_(kept.view(-1))
            resumed_s = time.perf_counter() - began
            del state, kept, moments
            ratios.append(resumed_s / lone_s)
            print(
                f"{size:.2f} GB: read {lone_s:.2f} s ({size / lone_s:.2f} GB/s), resumed {resumed_s:.2f} s ({size / resumed_s:.2f} GB/s)"
            )
        print(f"a resume takes {statistics.median(ratios):.2f} times a plain read (median of {given.turns})")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
