"""How many collectives this rank has started: tells ranks apart that all seem to wait, as with NCCL every rank waits for its device."""

from __future__ import annotations

import contextlib
import json

from torch._C import _distributed_c10d as c10d

_EVERYBODY = "0"
"""The number of the group of all ranks, the first that a process makes. Other groups may have other numbers on other ranks."""
_RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""torch's flight recorders, NCCL's and that of the other backends. A torch has one, both or none."""


def collectives_started() -> int | None:
    """Return how many collectives of all ranks this one has started, as torch's flight recorder knows; None: it does not tell.

    Any thread may ask, also while the main thread waits in one.
    """
    found = []
    for name in _RECORDERS:
        with contextlib.suppress(AttributeError, KeyError, ValueError, TypeError, RuntimeError):
            told = json.loads(getattr(c10d, name)(includeCollectives=False, onlyActive=True))
            found.append(int(told["pg_status"][_EVERYBODY]["last_enqueued_collective"]))
    return max(found, default=None)
