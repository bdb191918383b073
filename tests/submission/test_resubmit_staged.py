"""A resubmission's archive of the environment: beside its run, wherever it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.config.load.load import LoadedJob
from launcher.run.paths import RunPaths
from launcher.submission import resubmit
from launcher.submission.facts import gather
from launcher.submission.facts.facts import StagedFiles
from launcher.submission.facts.staged_files import folder_beside


@pytest.mark.parametrize(
    ("run", "sweep", "beside"),
    [("runs/net-1", {}, "runs/net-1"), ("runs/nets-1/point-3", {"sweep": "nets-1"}, "runs/nets-1")],
    ids=["a run", "a point of a sweep"],
)
def test_the_archive_is_beside_the_run(
    home: Path,
    slurm: Path,
    job: Callable[..., LoadedJob],
    monkeypatch: pytest.MonkeyPatch,
    run: str,
    sweep: dict[str, Any],
    beside: str,
) -> None:
    """Today's folder of runs may be another (it depends on where the command is typed): nodes may not see it."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", "/elsewhere")
    monkeypatch.setattr(gather, "staged_files", lambda _, folder, *__: StagedFiles(folder, key="feed"))
    again: Any = SimpleNamespace(
        loaded=job(environment={"stage": True}), paths=RunPaths(home / run), how=SimpleNamespace(fresh_code=False),
        code_root="/code", sweep=sweep, after=(), submit_dir="",
    )  # fmt: skip

    staged = resubmit.Resubmission.facts(again, "slurm").staged

    assert staged is not None
    assert staged.archive == f"{folder_beside(home / beside)}/feed.tar"
    assert Path(staged.folder).parent == home / "runs"
