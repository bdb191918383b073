"""Files that a resubmission replaces: back after an error, never back once SLURM has the job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.run.files import read_lines, write_atomic
from launcher.run.paths import RunPaths
from launcher.submission.folder import replace_files
from launcher.submission.folder.replace_files import replacing, restore_kept

NAMES = ("outcome.json", "lib")


def _runs(tmp_path: Path) -> list[RunPaths]:
    runs = [RunPaths(tmp_path / name) for name in ("a", "b")]
    for paths in runs:
        paths.root.mkdir()
        paths.outcome.write_text("old")
        paths.spec.write_text("old")
    return runs


def test_after_an_error_every_run_is_as_before(tmp_path: Path) -> None:
    """The old files are back, the spec, too, which others read meanwhile; what is new is gone; each history says why."""
    runs = _runs(tmp_path)

    def resubmit() -> None:
        with replacing(runs, NAMES):
            for paths in runs:
                assert not paths.outcome.exists()
                paths.outcome.write_text("new")
                paths.lib.symlink_to("../elsewhere")
                assert paths.spec.read_text() == "old"
                write_atomic(paths.spec, "new")
                write_atomic(paths.job, "new")
            raise ValueError("SLURM refuses")

    with pytest.raises(ValueError, match="SLURM refuses"):
        resubmit()

    for paths in runs:
        assert [p.name for p in sorted(paths.root.iterdir())] == ["events.jsonl", "outcome.json", "spec.json"]
        assert paths.outcome.read_text() == paths.spec.read_text() == "old"
        assert read_lines(paths.events)[0]["text"] == "it was not resubmitted: SLURM refuses"


def test_a_file_that_cannot_be_put_back_keeps_no_other_run_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of one point does not answer any more: the others have their old outcome again."""
    runs, replace = _runs(tmp_path), os.replace

    def failing(source: Path, target: Path) -> None:
        if source.name.startswith(".before.") and source.parent == runs[1].root:
            raise OSError("stale")
        replace(source, target)

    def resubmit() -> None:
        with replacing(runs, NAMES):
            monkeypatch.setattr(replace_files.os, "replace", failing)
            raise ValueError("SLURM refuses")

    with pytest.raises(OSError, match="stale"):
        resubmit()

    assert [paths.outcome.exists() for paths in runs] == [True, False]
    assert all(paths.events.exists() for paths in runs)


@pytest.mark.parametrize("problem", [OSError("stale"), KeyboardInterrupt()])
def test_once_queued_no_failure_puts_the_old_files_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException
) -> None:
    """A removal that fails afterwards, or Ctrl-C in it, leaves the new files: the job that reads them is queued."""
    runs, remove = _runs(tmp_path), replace_files.remove

    def failing(path: Path) -> None:
        if path.exists() and path.name.startswith(".before."):
            raise problem
        remove(path)

    monkeypatch.setattr(replace_files, "remove", failing)
    try:
        with replacing(runs, NAMES):
            for paths in runs:
                paths.outcome.write_text("new")
    except KeyboardInterrupt:
        pass

    assert [paths.outcome.read_text() for paths in runs] == ["new", "new"]
    assert not any(paths.events.exists() for paths in runs)


@pytest.mark.parametrize("recorded", [False, True])
def test_what_a_killed_resubmission_left_is_put_back_unless_it_was_recorded(tmp_path: Path, recorded: bool) -> None:
    """The next one finds the old code, or the new one where SLURM has the job; nothing else is left of it."""
    (paths, other) = _runs(tmp_path)
    paths.submission.write_text('{"job_id": "42"}')
    (paths.lib / "old").mkdir(parents=True)

    class Killed(BaseException):
        """Stands for SIGKILL: nothing is put back."""

    def resubmit() -> None:
        with replacing([paths, other], NAMES):
            (paths.lib / "new").mkdir(parents=True)
            write_atomic(paths.spec, "new")
            if recorded:
                write_atomic(paths.submission, '{"job_id": "43"}')
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replace_files, "_put_back", lambda *_, **__: None)
        with pytest.raises(Killed):
            resubmit()
    restore_kept([paths, other])

    assert [p.name for p in paths.lib.iterdir()] == ["new" if recorded else "old"]
    assert (paths.spec.read_text(), paths.outcome.exists()) == (("new", False) if recorded else ("old", True))
    assert list(tmp_path.glob("*/.before.*")) == []
