"""How many examples of arbitrary input a test tries."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("FUZZ") or 1)


def examples(count: int) -> settings:
    """Settings for ``count`` examples, the same ones each time; with ``FUZZ=40`` (make faults) 40 times as many, others each time."""
    ignored = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count * TIMES, derandomize=TIMES == 1, deadline=None, suppress_health_check=ignored)
