"""Functions that fill folders of their own, beside another way of saving or with an error in the block."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import torch
from looping_jobs import numbers


def two_ways(worker: Any, *, first: str, then: str) -> None:
    """Save in one way, ``then`` in another."""
    for way in (first, then):
        if way == "registers":
            worker.register(model=torch.nn.Linear(4, 2))
        elif way == "loops":
            for _ in worker.batches(numbers(8), 4):
                if then == "fills in it":
                    worker.should_save()
        elif way == "asks":
            worker.should_save()
        elif way == "fills":
            with worker.save_dir() as folder:
                (folder / "mine").write_text("weights")


def fills(worker: Any) -> None:
    """Two steps, the first of which is saved in a folder."""
    for step in worker.steps(2):
        worker.step()
        if step == 0:
            with worker.save_dir() as folder:
                (folder / "mine").write_text("weights")


def fails_once(worker: Any) -> None:
    """The disk is full at the first step, and the function goes on; the second is saved."""
    for _ in worker.steps(3):
        worker.step()
        if worker.steps_done <= 2:
            with contextlib.suppress(OSError), worker.save_dir() as folder:
                if worker.steps_done == 1:
                    raise OSError(errno.ENOSPC, "No space left on device")
                (folder / "mine").write_text("weights")
