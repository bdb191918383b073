"""What a job names of its code directory, and would not find on the nodes, is said before it is queued."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning import facts

from launcher.config.load.load import LoadedJob
from launcher.submission.facts.gather import code_facts
from launcher.submission.plan.plan import plan
from launcher.submission.plan.submission_plan import SubmissionPlan
from launcher.submission.rehearsal import rehearse
from launcher.submission.rehearsal.stages import Stage

Make = Callable[..., LoadedJob]
SAID = "args name {}, which git ignores: it is not copied; if the job reads it, add it to code.link"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A repository that ignores its data, its output and two files beside code."""
    for name in ("data/x/a.bin", "conf/a.yaml", "conf/local.yaml", "out/a", "wandb/a", "runs/old/log", "new.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / ".gitignore").write_text("data\nout\nwandb\nruns\nlocal.yaml\nelsewhere\n")
    (tmp_path / "elsewhere").symlink_to("/usr")
    (tmp_path / "usr").symlink_to("/usr")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def planned(loaded: LoadedJob, code: Path) -> SubmissionPlan:
    """Its plan, runs below the code."""
    return plan(loaded, facts(code=code_facts(loaded, code / "runs")))


def told(made: SubmissionPlan) -> list[str]:
    """The warnings about what is not copied."""
    return [warning for warning in made.warnings if "not copied" in warning]


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("data", "data"),
        ("./data/x/", "data/x"),
        ("--data=data/x/a.bin", "data/x/a.bin"),
        ("data.root=data", "data"),
        ("--config=conf/local.yaml", "conf/local.yaml"),
        ("elsewhere/lib", "elsewhere/lib"),
        ("--init=runs/old/log", "runs/old/log"),
        *((word, "") for word in ("conf", "conf/a.yaml", "new.txt", "train.py", "usr/lib", ".", "", "=", "--data=")),
        *((word, "") for word in ("nowhere", "empty", "wandb", "--report_to=wandb", "runs", "..", "a" * 3000, "/usr")),
    ],
)
def test_a_path_that_is_not_copied_is_named(job: Make, code: Path, word: str, path: str) -> None:
    """Ignored files and folders of the code, also behind "=". What is copied, linked by git or not there is not; nor is a tracker's name."""
    assert told(planned(job(args=["--lr", 3, word]), code)) == ([SAID.format(path)] if path else [])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"args": ["data/x", "--again=data/x"], "code": {"link": []}}, ["args name data/x"]),
        ({"args": ["data/x", "out"], "code": {"link": ["data"]}}, ["args name out"]),
        ({"args": ["data/x"], "code": {"link": ["data/x/"]}}, []),
        ({"args": ["data/x"], "code": {"snapshot": False}}, []),
        (
            {
                "script": None,
                "function": "lab.tasks:work",
                "params": {"in": {"train": ["data/x", "conf"]}, "out": "out"},
            },
            ["params.in.train names data/x", "params.out names out"],
        ),
    ],
)
def test_every_path_is_named_once_unless_it_is_there(
    job: Make, code: Path, values: dict[str, Any], named: list[str]
) -> None:
    """With the key that names it first; below code.link, and where nothing is copied, all is there."""
    assert [warning.partition(",")[0] for warning in told(planned(job(**values), code))] == named


def test_without_git_no_ignoring_is_spoken_of(job: Make, tmp_path: Path) -> None:
    """What is left out there are the runs, with the checkpoints of earlier ones."""
    (tmp_path / "runs" / "old").mkdir(parents=True)
    (tmp_path / "runs" / "old" / "a.pt").touch()
    (warning,) = told(planned(job(args=["runs/old/a.pt"]), tmp_path))

    assert warning == "args name runs/old/a.pt: it is not copied; if the job reads it, add it to code.link"


def test_a_rehearsal_says_it_before_it_starts(job: Make, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dry-run warns of it, too, before the script fails for want of its data."""
    loaded = job(args=["data"])
    here = facts(backend="local", code=code_facts(loaded, code / "runs"))
    monkeypatch.setattr(rehearse, "_run", lambda *_: pytest.fail("started"))
    said: list[str] = []
    with pytest.raises(pytest.fail.Exception):
        rehearse.rehearse(loaded, Stage(here, "1"), steps=3, tell=said.append)

    assert f"  warning  {SAID.format('data')}" in said
