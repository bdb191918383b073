"""What the numbers mean by which NVIDIA's driver reports errors of a GPU (Xid). Pure.

Source: NVIDIA's "Xid Errors" (docs.nvidia.com/deploy/xid-errors). A program causes some of them, a broken GPU the others.
"""

from __future__ import annotations

OF_PROGRAMS = {
    13: "the program did what the GPU does not allow",
    31: "the program used memory that is not its own",
    43: "the GPU stopped the program after a fault of the program",
    45: "the program was removed from the GPU, mostly after another error",
}
"""These say what a program did, or what became of it."""
BROKEN = {
    48: "a memory error that could not be corrected",
    62: "its microcontroller halted",
    63: "a bad row of memory is to be replaced at the next reset",
    64: "a bad row of memory could not be replaced",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    92: "many memory errors that were corrected",
    94: "a memory error that ended the programs that used it",
    95: "a memory error that may have reached other programs",
    119: "its firmware does not answer",
    120: "its firmware failed",
    140: "a memory error that could not be corrected",
    143: "it could not be initialized",
}
"""These say that the GPU, its memory or its links failed."""


def xid_in_words(xid: int) -> str:
    """``Xid 79 (it has fallen off the bus)``."""
    means = BROKEN.get(xid) or OF_PROGRAMS.get(xid)
    return f"Xid {xid} ({means})" if means else f"Xid {xid}"
