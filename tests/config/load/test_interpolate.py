"""Interpolation: it answers as OmegaConf does, in bounded time and space, and never with the value of a secret."""

from __future__ import annotations

import time
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from launcher.config.document.problem_list import ProblemList
from launcher.config.document.texts import leaves
from launcher.config.load.interpolate import MOST_MADE, interpolate_run, limit_for, resolve_interpolations
from launcher.errors import ConfigError

TEXTS = st.lists(
    st.sampled_from(
        ["${params.a}", "${params.b.c}", "${seed}", "${.a}", "${..seed}", "${args[0]}", "${oc.select:params.z,3}", "x", "-",
         "${name}", "${no.key}", "$", "${params.${name}}", "${oc.decode:'[1, x]'}", "${oc.dict.keys:params.b}"]
    ),
    min_size=1,
    max_size=3,
).map("".join)  # fmt: skip
VALUES = st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False) | TEXTS | st.just("${params}")


def resolved(container: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values, and what is wrong by key path."""
    faults = ProblemList("job")
    values = resolve_interpolations(container, faults)
    return values, [f"{p.path}: {p.message}" for p in faults.problems]


@examples(300)
@given(a=VALUES, c=VALUES, seed=VALUES, name=VALUES | st.just("a"), args=st.lists(VALUES, max_size=2))
def test_it_answers_as_omegaconf_does(a: Any, c: Any, seed: Any, name: Any, args: list[Any]) -> None:
    """Whatever OmegaConf resolves, is resolved to the same; where that finds a fault, so is one here.

    A mapping within a text is left out: OmegaConf writes it unresolved.
    """
    container = {"params": {"a": a, "b": {"c": c}}, "seed": seed, "name": name, "args": args}
    found, wrong = resolved(container)
    try:
        expected = OmegaConf.to_container(OmegaConf.create(container), resolve=True)
    except Exception:
        assert wrong
        return

    mapping_in_text = any("{'" in value for _, value in leaves(expected) if isinstance(value, str))
    assert wrong or mapping_in_text or repr(found) == repr(expected)
    assert not wrong or "itself" in wrong[0]


def test_escapes_and_functions_are_omegaconfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a name alone does not say is read by OmegaConf's grammar."""
    monkeypatch.setenv("SOME_NAME", "7")
    monkeypatch.delenv("NOT_SET", raising=False)
    args = [r"\${x}", "${oc.env:SOME_NAME}", "${oc.select:params.z,3}", "${args[1]}", "${oc.decode:${oc.env:SOME_NAME}}",
            "${oc.env:NOT_SET,null}", "${oc.env:NOT_SET,'a b'}", "${oc.create:{b: 1}}", "${oc.dict.values:params}", "${.1}"]  # fmt: skip

    assert resolved({"args": args, "params": {"a": 1}}) == (
        {"args": ["${x}", "7", 3, "7", 7, None, "a b", {"b": 1}, [1], "7"], "params": {"a": 1}},
        [],
    )


@pytest.mark.parametrize("one", ["${params.a%d}", "${.a%d}", "${oc.select:params.a%d}", "${oc.decode:'${params.a%d}'}"])
@pytest.mark.parametrize("start", ["", "xy"])
def test_sixty_doublings_end_at_once(one: str, start: str) -> None:
    """Each value holds the one before twice, by any spelling: the answer, or one sentence, in little time and space."""
    params: dict[str, Any] = {"a0": start}
    for number in range(1, 61):
        params[f"a{number}"] = (one % (number - 1)) * 2
    began = time.process_time()
    if start and "decode" in one:
        _, problems = resolved({"params": params})
        assert "has more than 4,096 characters" in str(problems)
    elif start:
        with pytest.raises(
            ConfigError, match=r"^job:1:1: the values are larger than 4 MiB once interpolations are filled in; [^\n]*$"
        ):
            resolved({"params": params})
    else:
        resolved({"params": params})

    assert time.process_time() - began < 20


@pytest.mark.parametrize("pair", [["${params.a%d}", "${params.a%d}"], {"x": "${params.a%d}", "y": "${.x}"}])
def test_lists_and_mappings_do_not_double_either(pair: Any) -> None:
    """Lists of lists and mappings of mappings are counted as they would be written."""
    params: dict[str, Any] = {"a0": ["x" * 100]}
    for number in range(1, 40):
        at = str(number - 1)
        params[f"a{number}"] = (
            [text.replace("%d", at) for text in pair]
            if isinstance(pair, list)
            else {key: text.replace("%d", at) for key, text in pair.items()}
        )
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        resolved({"params": params})
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        resolved({"params": params, "args": ["as text: ${params.a39}"]})


def test_a_long_chain_is_a_fault_and_no_traceback() -> None:
    """A thousand values that each name the one before: one sentence a value that is too deep."""
    params = {"a0": 1} | {f"a{n}": f"${{params.a{n - 1}}}" for n in range(1, 3000)}
    values, wrong = resolved({"params": dict(reversed(params.items()))})

    assert values["params"]["a1"] == 1
    assert {line.partition("}")[2] for line in wrong} == {" is nested too deeply"}


def test_what_is_nested_by_interpolation_is_no_deeper_than_a_file_may_be() -> None:
    """Ninety levels in each of three values are 270 in one: a sentence."""
    nest: Any = "${params.%s}"
    for _ in range(90):
        nest = {"k": nest}

    def deep(value: Any, below: str) -> Any:
        return {k: deep(v, below) for k, v in value.items()} if isinstance(value, dict) else value % below

    _, wrong = resolved({"params": {"a": 1, "b": deep(nest, "a"), "c": deep(nest, "b"), "d": deep(nest, "c")}})

    assert wrong
    assert all("nested too deeply" in line for line in wrong)


SPELLINGS = [
    "${oc.env:MY_TOKEN}", "${oc.env:'MY_TOKEN'}", '${oc.env:"MY_TOKEN"}', "${ oc.env : MY_TOKEN }", "${oc.env:\tMY_TOKEN}",
    "${oc.env:MY_TOKEN,x}", "${oc.env:${params.n}}", "${oc.env:MY_${params.t}}", "${oc.${params.e}:MY_TOKEN}",
    "${oc.decode:'${oc.env:MY_TOKEN}'}", r"${oc.decode:'\${oc.env:MY_TOKEN}'}", "${oc.select:no,${oc.env:MY_TOKEN}}",
    "${oc.create:[${oc.env:MY_TOKEN}]}", "a${oc.env:MY_TOKEN}b", "${oc.env:NOT_SET,${oc.env:MY_TOKEN}}", r"${oc.env:MY_\TOKEN}",
]  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS)
def test_no_spelling_gets_at_a_secret(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard sits where a variable is read: quoted, nested, computed or a default, its value reaches nothing."""
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    container = {"args": [text], "params": {"n": "MY_TOKEN", "t": "TOKEN", "e": "env"}}
    values, wrong = resolved(container)

    assert "hunter2" not in repr((values, wrong))
    assert len(wrong) == 1
    assert "secret" in wrong[0] or "not valid" in wrong[0] or "not set" in wrong[0]


def test_no_function_imports_a_module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """OmegaConf 2.4 has a function that imports what the text names: it is not known here."""
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert resolved({"args": ["${oc.coerce:evil.X,1}"]})[1] == [
        "args[0]: ${oc.coerce:evil.X,1} is not valid: Unsupported interpolation type oc.coerce"
    ]


def test_run_values_are_bounded_too() -> None:
    """What the folder's name makes of a long text is refused in one sentence; a few are filled in."""
    assert interpolate_run(["${run.dir}/x"], "/r", "i", "n") == ["/r/x"]
    with pytest.raises(ConfigError, match="larger than 4 MiB"):
        interpolate_run(["${run.dir}" * 10_000], "/" + "r" * 1000, "i", "n")


def test_several_jobs_may_share_a_limit() -> None:
    """Points of a sweep take from one limit: each alone would fit."""
    limit, one = limit_for(MOST_MADE), {"args": ["x" * (1 << 20)]}
    for _ in range(3):
        resolve_interpolations(one, ProblemList("job"), limit)
    with pytest.raises(ConfigError, match="larger than"):
        resolve_interpolations(one, ProblemList("job"), limit)
