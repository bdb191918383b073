"""How often to save. Pure."""

from __future__ import annotations

import math

_PRIOR_MTTF_S = 24 * 3600.0
"""One failure per node-day is assumed before any was seen (Meta RSC: 6.5 per 1000 node-days; jobs add their own)."""


def mttf_s(nodes: int, spent_s: float, failures: int) -> float:
    """Mean time to failure from what was observed, with one assumed failure per node-day as prior."""
    return (_PRIOR_MTTF_S / max(1, nodes) + spent_s) / (1 + failures)


def young_daly_s(cost_s: float, mttf_s: float) -> float:
    """Return the seconds of training between two saves that lose least time.

    Young's √(2·cost·MTTF) (1974, doi:10.1145/361147.361115) with the higher-order terms of Daly's equation 37 (2006,
    doi:10.1016/j.future.2004.11.016).
    """
    if cost_s <= 0 or mttf_s <= 0:
        return 0.0
    if cost_s >= 2 * mttf_s:
        return mttf_s
    half = cost_s / (2 * mttf_s)
    return math.sqrt(2 * cost_s * mttf_s) * (1 + math.sqrt(half) / 3 + half / 9) - cost_s
