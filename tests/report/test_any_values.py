"""Whatever JSON values stand in a run's files, every reading verb ends with a code of the tree, and so do those that would change the run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from rich_run import make
from test_mutilated import CODES, run

from launcher.errors import LauncherError
from launcher.report.model.runs import all_runs
from launcher.run.paths import RunPaths
from launcher.submission.cancel import cancel_run
from launcher.submission.folder import snapshot
from launcher.submission.liveness import locate
from launcher.submission.sweeps.points import points_of

NOW = 1_790_050_000.0
OBJECTS = ("state.json", "outcome.json", "spec.json", "submission.json", "environment.json")
LINES = ("events.jsonl", "metrics.jsonl", "samples.jsonl")
VERBS = (["ls"], ["ls", "--json"], ["status", "{run}"], ["status", "--json", "{run}"], ["why", "{run}"], ["why", "--json", "{run}"],
         ["nodes"], ["logs", "{run}", "--agents"], ["report", "{run}", "-o", "page.html"], ["report", "--json", "{run}"])  # fmt: skip
WORDS = [
    "",
    "nan",
    "slurm",
    "local",
    "failed",
    "running",
    "requeued",
    "continuation",
    "²",
    "../..",
    "\x1b[2J",
    "a\0b",
    "\ud800",
    "--me",
]
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**400, -(10**16), 2**63]) | st.floats() | st.sampled_from(WORDS)
    | st.text(max_size=4)
)  # fmt: skip


def keys_of(value: Any) -> set[str]:
    """Every key in a value."""
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two whole runs, one of which has ended, in a home of their own; nobody is signalled."""
    home = tmp_path_factory.mktemp("home")
    make(home / "whole", now=NOW, scale=0.005)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAUNCHER_RUNS_DIR", str(home / "runs"))
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        patch.setenv("PATH", str(Path(sys.executable).parent))
        patch.setenv("LAUNCHER_DEBUG", "1")  # a fault of ours is raised, not told
        patch.setattr(
            os, "kill", lambda pid, number: number == 0 or pytest.fail(f"{pid} got {signal.Signals(number).name}")
        )
        patch.chdir(home)
        yield home


@pytest.fixture(scope="module")
def shapes(place: Path) -> dict[str, st.SearchStrategy[Any]]:
    """By file: objects with the keys that such a file has, at any depth, and any values."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for name in (*OBJECTS, *LINES):
        texts = [
            text
            for path in (place / "whole").glob(f"*/{name}")
            for text in path.read_text().split("\n" if name in LINES else "\0")
        ]
        known = sorted(set().union(*(keys_of(json.loads(text)) for text in texts if text.strip())))
        keys = st.sampled_from(known or ["t"]) | st.text(max_size=2)
        inner = st.recursive(
            LEAVES, lambda v, keys=keys: st.lists(v, max_size=3) | st.dictionaries(keys, v, max_size=4), max_leaves=8
        )
        found[name] = st.dictionaries(keys, inner, max_size=12)
    return found


@examples(15)
@given(data=st.data())
def test_no_value_breaks_a_verb(place: Path, shapes: dict[str, st.SearchStrategy[Any]], data: st.DataObject) -> None:
    """Of one file, or of several at once; a value is replaced, added, or the whole file is another object."""
    runs = place / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    original = data.draw(st.sampled_from(sorted((place / "whole").glob("*-*"))), label="run")
    root = runs / original.name
    shutil.copytree(original, root)
    for name in data.draw(
        st.lists(st.sampled_from((*OBJECTS, *LINES)), min_size=1, max_size=3, unique=True), label="files"
    ):
        path, value = root / name, data.draw(shapes[name], label=name)
        if name in LINES:
            lines = path.read_text().splitlines() if path.exists() else []
            at = data.draw(st.integers(0, len(lines)), label="line")
            kept = json.loads(lines[at]) if at < len(lines) and data.draw(st.booleans(), label="keep") else {}
            path.write_text("\n".join([*lines[:at], json.dumps({**kept, **value}), *lines[at + 1 :]]) + "\n")
        else:
            kept = json.loads(path.read_text()) if path.exists() and data.draw(st.booleans(), label="keep") else {}
            path.write_text(json.dumps({**kept, **value}))

    for words in VERBS:
        code, said = run(*(w.format(run=root.name) for w in words))
        assert code in CODES, (words, code, said)
    try:
        where = locate(RunPaths(root))
        where.alive(fresh=True)
        cancel_run(RunPaths(root), save=True)
    except LauncherError:
        pass


ANY = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(["points", "run", "overrides", "train.py"]), v, max_size=3),
    max_leaves=8,
)  # fmt: skip


@examples(40)
@given(value=ANY)
@example(value={"points": 3})
@example(value={"points": [{"run": ".."}, {"run": "/"}, {"run": "a\0b"}, {"run": ["x"], "overrides": {"a": 1}}]})
def test_no_sweep_breaks_a_verb(place: Path, value: Any) -> None:
    """Its points are folders in it, whatever its file says."""
    sweep = place / "runs" / "lr-1121-0900-swp"
    (sweep / "lr-0-1121-0900-swp0000").mkdir(parents=True, exist_ok=True)
    (sweep / "lr-0-1121-0900-swp0000" / "spec.json").write_text("{}")
    (sweep / "sweep.json").write_text(json.dumps(value))

    assert all(paths.root.parent == sweep for paths in points_of(sweep))
    assert all(Path(known.root).parent == sweep for known in all_runs() if known.sweep)
    for words in (["ls"], ["ls", "--json"], ["ls", "--sweep", "swp"], ["status", "swp"]):
        code, said = run(*words)
        assert code in CODES, (words, code, said)
    shutil.rmtree(sweep)


@examples(40)
@given(
    value=ANY
    | st.dictionaries(st.sampled_from(["train.py", "/etc/passwd", "../x", "a\0b", ".", "x" * 300, "\ud800"]), LEAVES)
)
def test_no_list_of_copied_files_breaks_a_resubmission(place: Path, value: Any) -> None:
    """code.json only tells which files the user has changed since."""
    root, paths = place / "source", RunPaths(place / "copied")
    for folder in (root, paths.code):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.py").write_text("print(1)\n")
    paths.copied.write_text(json.dumps(value))

    assert isinstance(snapshot.changed(paths, root, ()), list)
