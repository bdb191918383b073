"""A kernel that writes where it must not. In a file of its own: Triton reads a kernel's source from it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _far_away(pointer, distance):  # type: ignore[no-untyped-def]
    tl.store(pointer + distance, 1.0)


FAR = 2**38
"""Elements: a terabyte, for numbers of four bytes."""


def ready(values: torch.Tensor) -> None:
    """Compile the kernel, which takes seconds: for a distance of this size."""
    _far_away.warmup(values, FAR, grid=(1,))


def write(values: torch.Tensor) -> None:
    """Write one number far after the beginning of ``values``."""
    _far_away[(1,)](values, FAR)
