"""A run whose folder is gone: every verb says that, with the run's last words and what SLURM knows of its job."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from explained import gives_up, training, why
from in_process import launcher
from squeue import squeue_line

from launcher.cli.main import main
from launcher.run import index


def slurm(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, squeue: str = "", sacct: str = "", scontrol: str = ""
) -> None:
    """SLURM's commands say this."""
    tools = folder / "tools"
    tools.mkdir()
    for name, text in (("squeue", squeue), ("sacct", sacct), ("scontrol", scontrol)):
        (tools / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")


def lost(home: Path) -> str:
    """A run that is in the user's list, and whose folder was deleted; its id."""
    story = training(home)
    index.register(story.paths.root)
    shutil.rmtree(story.paths.root)
    return story.paths.id


@pytest.mark.parametrize("verb", ["why", "status", "logs", "cancel"])
def test_every_verb_says_so(home: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """By id, by its ending and by its path; it had been `no run answers to`."""
    name = lost(home)
    for word in (name, name[-3:], str(home / name)):
        assert main([verb, word]) == 7
        said = capsys.readouterr().err
        assert f"the folder of {name}, {home / name}, is not there: it was deleted or moved" in said


@pytest.mark.parametrize("where", ["squeue", "sacct"])
def test_slurm_is_asked_by_the_runs_name(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """State and exit code of the job, from squeue and scontrol for the first minutes, from accounting after that."""
    name = lost(home)
    facts = "JobId=17 JobName=x\n   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)\n   Requeue=0 Restarts=0 x ExitCode=66:0"
    rows = {
        "squeue": squeue_line("17", "FAILED", name=name),
        "sacct": f"17|17|FAILED|66:0|1790000000|1790000000|1790000300|node1|None|{name}",
    }
    slurm(tmp_path, monkeypatch, scontrol=facts, **{where: rows[where]})

    assert main(["why", name]) == 7
    assert capsys.readouterr().err.endswith("is away. SLURM job 17: FAILED, exit code 66:0.\n")


def test_a_job_that_still_runs_is_named(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is what `scancel` needs."""
    name = lost(home)
    slurm(tmp_path, monkeypatch, squeue=squeue_line("17", "RUNNING", name=name))

    assert main(["cancel", name]) == 7
    assert capsys.readouterr().err.endswith("SLURM job 17: RUNNING.\n")


def test_last_words_are_kept_with_the_users_list_of_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the leader said at the end is told, since the folder cannot."""
    name = lost(home)
    index.note_gone(home / name, None, "The run's folder is gone: it was deleted.", "17")

    assert main(["why", name]) == 7
    assert "The run ended with: The run's folder is gone: it was deleted." in capsys.readouterr().err


def test_a_name_leads_to_where_the_folder_was_moved(home: Path, tmp_path: Path) -> None:
    """The leader has followed its folder, and noted that."""
    story = gives_up(training(home), "folder_gone")
    index.register(story.paths.root)
    new = tmp_path / "archive"
    story.paths.root.rename(new)
    index.note_gone(story.paths.root, new, "It was moved.", "17")

    assert index.resolve(story.paths.id) == new


def test_a_run_that_was_deleted_is_not_shown_as_one_that_waits(home: Path) -> None:
    """`launcher status` without a name shows what has not ended."""
    name = lost(home)

    assert name not in launcher("status").output


def test_why_tells_of_a_moved_folder(home: Path) -> None:
    """Read in its new place: what happened and the command that goes on there."""
    story = training(home)
    text = "The run's folder /old was moved to /new; a running job cannot follow it: resubmit."
    story.event("decision", evidence="folder_gone", action="fail", reason=text)
    story.outcome("failed", text, cause={"kind": "gone", "text": "x", "place": "/new"})

    told = why(story)
    assert (told.kind, told.sentence) == ("gone", "The run's folder /old was moved to /new.")
    assert dict(told.rows)["next"] == "launcher resubmit /new"


def test_why_tells_of_a_folder_that_did_not_answer(home: Path) -> None:
    """A requeue because of it had been `Nothing has gone wrong`."""
    story = training(home)
    text = "The run's folder did not answer for 5 minutes (EIO); the run goes on in another attempt."
    story.event("decision", evidence="folder_unreadable", action="requeue", reason=text)
    story.event("attempt_ended", why=text).event("requeued", how="requeue", job_id="17", seconds=1.0)

    told = why(story)
    assert told.kind == "unreadable"
    assert told.sentence.startswith("The run's folder did not answer for 5 minutes (EIO).")
