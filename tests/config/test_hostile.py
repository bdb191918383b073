"""Hostile text in every field of a job: refused with its place, or carried to the letter and never run by a shell."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.main import main
from launcher.config.document import schema
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec

HOSTILE = {
    "a line end": "a\nb",
    "a carriage return": "a\rb",
    "an escape": "a\x1b[31mb",
    "NUL": "a\0b",
    "a shell command": "$(touch pwned)",
    "backquotes": "`touch pwned`",
    "a second option": "a --wrap=reboot",
    "a quote": "a'b",
    "a double quote": 'a"b',
    "a semicolon": "a;touch pwned",
    "right to left": "a\u202eb",
    "a line separator": "a\u2028b",
    "a lone surrogate": "a\ud800b",
    "nothing": "",
    "spaces": "  ",
}
SHELL = ("a shell command", "backquotes", "a second option", "a quote", "a double quote", "a semicolon")
BEYOND_UTF8 = ("NUL", "a lone surrogate")
ALL_AT_ONCE = "a'b\"c $(touch pwned) `touch pwned`; touch pwned & > pwned \\ \\n %j ü\U0001f600 --wrap=reboot #"

NARROW = [
    "name", "slurm.partition", "slurm.account", "slurm.qos", "slurm.constraint", "slurm.reservation", "slurm.exclude",
    "slurm.nodelist", "slurm.dependency", "slurm.mail_type", "slurm.mail_user", "slurm.gres", "distributed.interface",
    "task", "function", "environment.pass[0]", "notify.urls[0]", "notify.on[0]", "trackers.wandb.mode",
    "resources.timeout_min", "resources.nodes", "distributed.backend", "distributed.start_method", "share",
    "environment.stage",
]  # fmt: skip
"""Keys whose text reaches a scheduler, a shell variable or an import."""
WIDE = [
    "script", "slurm.comment", "environment.setup[0]", "environment.python", "environment.container", "code.dir",
    "code.link[0]", "runs_dir", "environment.container_args[0]", "slurm.srun_args[0]", "slurm.extra.licenses", "after",
    "after.ok[0]", "after.any[0]", "after.fails[0]", "trackers.mlflow.uri", "trackers.mlflow.experiment",
    "trackers.wandb.project", "checkpoint.watch",
]  # fmt: skip
"""Keys whose text may hold quotes and shell characters (they are quoted on their way), but no control characters."""
FREE = ["args[0]", "params.x", "environment.variables.NOTE"]
"""Keys whose text no shell and no sbatch ever reads: it may hold anything that UTF-8 can and a C string."""
NAMES = ["params", "environment.variables", "slurm.extra", "sweep"]
"""Mappings whose keys a user names."""


def nest(path: str, value: object) -> dict[str, Any]:
    """``a.b[0]`` and a value as the mapping that holds it."""
    first, _, rest = path.partition(".")
    if first.endswith("[0]"):
        return {first[:-3]: [value]}
    return {first: nest(rest, value) if rest else value}


def text_fields(kind: Any, path: str) -> set[str]:
    """Key paths of every text below a type of the schema; ``[0]`` is a list's item, ``*`` a key that the user names."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, vars(schema))
        found = {f"{path}.{name.rstrip('_')}".lstrip("."): hint for name, hint in hints.items()}
        return set().union(*(text_fields(hint, where) for where, hint in found.items()))
    if typing.get_origin(kind) is typing.Literal:
        return {path}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return set().union(*(text_fields(one, path) for one in inner))
    if origin is list:
        return text_fields(inner[0], f"{path}[0]")
    if origin is dict:
        return text_fields(inner[1], f"{path}.*")
    return {path} if kind in (str, Any) else set()


def test_every_text_of_the_schema_is_tried() -> None:
    """No field that takes text is missing from the lists above."""
    tried = {re.sub(r"\.(x|NOTE|licenses)$", ".*", path) for path in [*NARROW, *WIDE, *FREE]}

    assert text_fields(schema.Job, "") - {"sweep.*"} == tried - {"resources.timeout_min"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with code, current for the test, and a SLURM that runs batch scripts, its srun and reboot leaving traces."""
    home = tmp_path / "project"
    home.mkdir()
    (home / "train.py").write_text("print('training')\n")
    (tmp_path / "bin").mkdir()
    traces = {
        "sbatch": 'for last; do :; done\ncp "$last" "$TRACES/script"\n'
        'bash "$last" >"$TRACES/said" 2>&1 </dev/null\necho "Submitted batch job 7"\n',
        "srun": 'printf "%s\\0" "$@" >"$TRACES/srun"\n',
        "squeue": "",
        "scancel": "",
        "scontrol": "",
        "sinfo": "",
        "reboot": 'touch "$TRACES/pwned"\n',
    }
    for command, text in traces.items():
        (tmp_path / "bin" / command).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / "bin" / command).chmod(0o755)
    monkeypatch.chdir(home)
    for name in ("LAUNCHER_SITE", "LAUNCHER_RUNS_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRACES", str(tmp_path))
    return home


def everything(folder: Path) -> list[Path]:
    """All files below, caches of Python aside."""
    return sorted(p for p in folder.rglob("*") if "__pycache__" not in p.parts)


@pytest.mark.parametrize("path", [*NARROW, *WIDE, *FREE])
def test_hostile_text_is_refused(path: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each kind that the field cannot carry: one sentence with its place, and nothing created, nothing submitted."""
    work = {} if path in ("task", "function", "script") else {"script": "train.py"}
    job = project / "job.yaml"
    for kind, text in HOSTILE.items():
        if (path in WIDE and kind in SHELL) or (path in FREE and kind not in BEYOND_UTF8):
            continue
        job.write_text(json.dumps({**work, **nest(path, text)}))
        before = everything(project.parent)
        code = main(["submit", "job.yaml"])
        said = capsys.readouterr().err.splitlines()

        assert code in (3, 4), (kind, said)
        assert len(said) == 1, (kind, said)
        assert said[0].startswith("launcher: job.yaml:1:"), (kind, said)
        assert f": {path}: " in said[0], (kind, said)
        assert said[0].isprintable(), kind
        assert everything(project.parent) == before, kind


@pytest.mark.parametrize("path", NAMES)
def test_hostile_names_are_refused(path: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of variables, options, swept keys and, where they would become keywords, parameters are names."""
    (project / "tasks.py").write_text(
        "import launcher\nclass Net(launcher.Training):\n    model = train_data = loss = optimizer = None\n"
        "    def __init__(self, **options): pass\n"
    )
    value: object = ["a"] if path == "sweep" else "a"
    for kind in (*SHELL, "a line end", "NUL", "a lone surrogate", "nothing"):
        (project / "job.yaml").write_text(json.dumps({"task": "tasks:Net", **_named(path, HOSTILE[kind], value)}))
        before = everything(project.parent)
        code = main(["submit", "job.yaml"])
        said = capsys.readouterr().err.splitlines()

        assert code in (3, 4), (kind, said)
        assert all(line.isprintable() for line in said), (kind, said)
        assert said[0].startswith("launcher: job.yaml:1:"), (kind, said)
        assert everything(project.parent) == before, kind


def _named(path: str, name: str, value: object) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: _named(rest, name, value) if rest else {name: value}}


CARRIED = [*FREE, "slurm.comment", "slurm.extra.licenses", "slurm.srun_args[0]", "environment.container",
           "environment.container_args[0]", "runs_dir", "code.dir", "code.link[0]", "script", "trackers.mlflow.uri",
           "trackers.wandb.project", "checkpoint.watch"]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("path", CARRIED)
def test_what_is_taken_is_carried_to_the_letter(path: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Quotes, commands, backslashes and unicode: bash runs the batch script, nothing of the text is run, all of it arrives."""
    text = re.sub(r"[$%\\]", "", ALL_AT_ONCE) if path == "runs_dir" else ALL_AT_ONCE  # these three are refused there
    text = text.replace("> pwned", "> pwned\n\tx") if path in FREE else text
    if path in ("code.link[0]", "code.dir"):
        (project / text).mkdir(parents=True)
        (project / text / "train.py").write_text("print('training')\n")
    if path == "script":
        (project / text).write_text("print('training')\n")
    values = {**({} if path == "script" else {"script": "train.py"}), **nest(path, text)}
    if path == "environment.container_args[0]":
        values["environment"]["container"] = "image"
    (project / "job.yaml").write_text(json.dumps(values))
    code = main(["submit", "job.yaml"])
    said = capsys.readouterr()

    assert code == 0, said.err
    (root,) = (p for p in (project / text if path == "runs_dir" else project / "runs").iterdir())
    assert [p for p in everything(project.parent) if p.name == "pwned"] == []
    assert arrived(path, RunPaths(root), project.parent) == text


def arrived(path: str, paths: RunPaths, traces: Path) -> str | None:
    """What of a field reached the place where it is used."""
    spec = RunSpec.read(paths.spec)
    srun = (traces / "srun").read_text().split("\0")
    options = [
        shlex.split(x[8:])[0] for x in (traces / "script").read_text().splitlines() if x.startswith("#SBATCH --")
    ]
    given = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    found: dict[str, Any] = {
        "args[0]": lambda: spec.work.args[0],
        "params.x": lambda: spec.work.params["x"],
        "environment.variables.NOTE": lambda: spec.variables["NOTE"],
        "slurm.comment": lambda: given["comment"].replace("\\\\", "\\"),  # sbatch takes one of two away
        "slurm.extra.licenses": lambda: given["licenses"].replace("\\\\", "\\"),
        "slurm.srun_args[0]": lambda: next(x for x in srun if "touch" in x),
        "environment.container": lambda: next(x for x in srun if x.startswith("--container-image=")).partition("=")[2],
        "environment.container_args[0]": lambda: next(x for x in srun if "touch" in x),
        "runs_dir": lambda: str(Path(spec.run_dir).parent.relative_to(traces / "project")),
        "code.dir": lambda: json.loads(paths.environment.read_text())["code"]["root"].removeprefix(
            f"{traces}/project/"
        ),
        "code.link[0]": lambda: next(p.name for p in paths.code.iterdir() if p.is_symlink()),
        "script": lambda: spec.work.target if (paths.code / spec.work.target).is_file() else None,
        "trackers.mlflow.uri": lambda: spec.trackers["mlflow"]["uri"],
        "trackers.wandb.project": lambda: spec.trackers["wandb"]["project"],
        "checkpoint.watch": lambda: spec.checkpoint.watch,
    }
    value: str | None = found[path]()
    return value
