"""Planted failures of workers on the real cluster: `launcher why` names the right rank, host and cause of every one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from planting import chosen_of, judge, misses, planted


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loop", ["function", "script", "attached"])
def test_what_goes_wrong_in_workers_is_named(
    cluster: Cluster, cases: dict[str, Any], tmp_path: Path, loop: str
) -> None:
    """Kind, rank, host, the user's own words, none of a wrong story, and soon: for every case of the loop."""
    chosen = chosen_of(name for name, case in cases.items() if case.loop == loop and not (case.live or case.late))
    # Python 3.14's loaders start anew: torch's import in one takes seconds, and torch looks every 5 s for one that died. A process that
    # burns a second of processor time needed 3.3 s for it on a busy machine, where it may stand still for as long besides.
    floor_s = 10.0
    told = planted(cluster, tmp_path, loop, chosen, floor_s)
    # Who comes 50 ms behind the first failure is ended before it can tell of the same one: once more, where a rank stood still.
    late = [name for name in told if cases[name].rank == "all" and misses(cases[name], *told[name])]
    judge(cases, told | planted(cluster, tmp_path / "again", loop, late, floor_s))
