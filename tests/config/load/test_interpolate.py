"""Interpolation: the quick way and OmegaConf's agree."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.document.problem_list import ProblemList
from launcher.config.load import interpolate

TEXTS = st.lists(
    st.sampled_from(
        ["${params.a}", "${params.b.c}", "${seed}", "${run.dir}", "x", "-", "${params}", "${name}", "${no.key}", "$"]
    ),
    min_size=1,
    max_size=3,
).map("".join)
VALUES = st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False) | TEXTS


@settings(max_examples=100, deadline=None, derandomize=True)
@given(a=VALUES, c=VALUES, seed=VALUES, name=VALUES, args=st.lists(VALUES, max_size=2))
def test_both_ways_agree(a: Any, c: Any, seed: Any, name: Any, args: list[Any]) -> None:
    """Whatever the quick way resolves at all, it resolves as OmegaConf does; where that finds a fault, so does `resolve`."""
    container = {"params": {"a": a, "b": {"c": c}}, "seed": seed, "name": name, "args": args}
    slow, quick = ProblemList("job"), ProblemList("job")
    expected = interpolate._resolve(container, slow)
    found = interpolate.resolve_interpolations(container, quick)

    assert (repr(found), quick.problems) == (repr(expected), slow.problems)


def test_escapes_and_resolvers_are_omegaconfs(monkeypatch: Any) -> None:
    """What the quick way does not know is left to OmegaConf."""
    monkeypatch.setenv("SOME_NAME", "n")
    container = {"args": [r"\${x}", "${oc.env:SOME_NAME}", "${oc.select:params.z,3}", "${args[1]}"], "params": {"a": 1}}

    assert interpolate.resolve_interpolations(container, ProblemList("job"))["args"] == ["${x}", "n", 3, "n"]
