"""Whatever is thrown at it, loading answers with a job or with sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.config.document.schema import Job
from launcher.config.document.source import read_yaml
from launcher.config.load.load import LoadedJob, load_job
from launcher.errors import ConfigError

FAST = examples(40)
KEYS = st.sampled_from(
    [
        *Job.__dataclass_fields__,
        "nodes",
        "gpus_per_node",
        "timeout_min",
        "partition",
        "extra",
        "variables",
        "pass",
        "on",
        "x",
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["${run.dir}", "${", "tasks:Net"])
)
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS | st.text(), v, max_size=4), max_leaves=12
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script, current for the test."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(*overrides: str, sites: Sequence[Path] = ()) -> LoadedJob | list[str]:
    """The job of job.yaml, or its problems, each of which must be one printable line."""
    try:
        return load_job("job.yaml", overrides, sites=list(sites))
    except ConfigError as error:
        problems = error.problems
    assert problems
    assert all(line.isprintable() for line in problems), problems
    return problems


@FAST
@given(
    text=st.text(alphabet=st.characters(codec="utf-8"))
    | st.text(alphabet="ab:{}[]-\n \"'&*<!|>%@$0123\t,", max_size=60)
)
@example(text="a: &a [*a]\n")
@example(text="[" * 2000)
@example(text="{a: " * 300)
@example(text="? [a]\n: b\n")
@example(text="--- a\n--- b\n")
@example(text="x: 0x" + "f" * 5000)
@example(text="x: " + "9" * 5000)
def test_any_text(text: str, project: Path) -> None:
    """Any text as a job file ends in sentences, never in another exception."""
    (project / "job.yaml").write_bytes(text.encode())

    answer()


@FAST
@given(data=st.binary(max_size=60))
def test_any_bytes(data: bytes, project: Path) -> None:
    """Any bytes as a job file end in sentences."""
    (project / "job.yaml").write_bytes(data)

    answer()


@FAST
@given(values=st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_values(values: dict[str, Any], project: Path) -> None:
    """Any values under the schema's own keys end in a job or in sentences."""
    (project / "job.yaml").write_text(json.dumps({"script": "train.py", **values}))

    answer()


@FAST
@given(lower=st.dictionaries(KEYS, VALUES, max_size=4), upper=st.dictionaries(KEYS, VALUES, max_size=4))
@example(lower={"args": {"a": 1}}, upper={"args": [1]})
@example(lower={"slurm": "gpu"}, upper={"slurm": {"qos": "a"}})
@example(lower={"slurm": {"qos": "a"}, "locked": ["slurm"]}, upper={"slurm": None})
@example(lower={"params": {"a": "${params.b}"}}, upper={"params": "${run.dir}"})
@example(lower={"locked": ["params.a.b"]}, upper={"params": {"a": 3}})
def test_any_two_layers(lower: dict[str, Any], upper: dict[str, Any], project: Path) -> None:
    """Any profile below any job ends in a job or in sentences."""
    (project / "site.yaml").write_text(json.dumps(lower))
    (project / "job.yaml").write_text(json.dumps({"script": "train.py", **upper}))

    answer(sites=[project / "site.yaml"])


@FAST
@given(items=st.lists(st.text() | st.builds("{}={}".format, KEYS | st.just("a[0].b"), st.text()), max_size=3))
@example(items=["args[3]=1"])
@example(items=["args=[1]", "args[0][1]=2"])
@example(items=["params=1", "params.x=2"])
@example(items=["=", "==", "a=="])
def test_any_overrides(items: list[str], project: Path) -> None:
    """Any words on the command line end in a job or in sentences."""
    (project / "job.yaml").write_text("script: train.py\n")

    answer(*items)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda v: (
        st.lists(v, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), v, max_size=3)
    ),
    max_leaves=8,
)


@FAST
@example(
    params={
        "a": [
            "\x85",
            "\u2028",
            "\ufeff",
            "12:30:00",
            "0:30:00",
            "09:30",
            "0123",
            "08",
            "on",
            "3e5",
            "1_0",
            "\U00010000",
            "=",
            "<<",
            "~",
        ]
    }
)
@given(params=st.dictionaries(st.from_regex(r"[a-z]\w{0,8}", fullmatch=True), PLAIN, max_size=4))
def test_params_survive_the_written_job(params: dict[str, Any], project: Path) -> None:
    """What a job's own YAML text is read back to equals the job, whatever its params hold."""
    (project / "job.yaml").write_text(json.dumps({"script": "train.py", "params": params}))
    first = answer()
    if isinstance(first, list):
        return
    (project / "job.yaml").write_text(first.yaml)
    again = answer()

    assert isinstance(again, LoadedJob)
    assert again.job == first.job


@FAST
@given(
    value=st.dictionaries(
        st.from_regex(r"[a-z]{1,4}", fullmatch=True), st.integers() | st.text("abc: ", max_size=5), min_size=1
    )
)
def test_every_value_has_a_place(value: dict[str, Any]) -> None:
    """Each key of a text is found at the line and column that are said."""
    text = "\n".join(f"{k}: {json.dumps(v)}" for k, v in value.items())
    document = read_yaml(text, "f")
    lines = text.splitlines()

    for key, where in document.origins.items():
        assert lines[where.line - 1][where.column - 1 :].startswith(key)
        assert lines[where.line - 1][where.value_column - 1 :] == json.dumps(value[key])
