"""A sentence in a job's comment: what the user had written there stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.slurm import handback


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(null)", "launcher: gone"),
        ("", "launcher: gone"),
        ("project 7; nightly", "project 7; nightly; launcher: gone"),
        ("launcher: an earlier word", "launcher: gone"),
    ],
)
def test_the_users_own_comment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str) -> None:
    """Sites have users name projects in it; the launcher's own word of before is replaced."""
    tool = tmp_path / "scontrol"
    shown = f"JobId=5 JobName=x\n   JobState=RUNNING\n   Comment={before} "
    (tmp_path / "shown").write_text(shown)
    tool.write_text(
        f"#!/bin/sh\nif [ $1 = show ]; then cat {tmp_path}/shown; else printf '%s\\n' \"$@\" > {tmp_path}/said; fi\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert handback.remark("5", "gone").ok
    assert (tmp_path / "said").read_text().splitlines() == ["update", "JobId=5", f"Comment={after}"]


def test_a_comment_that_is_not_known_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmctld is away for a moment: what the user has written would be replaced."""
    tool = tmp_path / "scontrol"
    tool.write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/said; echo 'slurm_load_jobs error: Invalid job' >&2; exit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert not handback.remark("5", "gone").ok
    assert (tmp_path / "said").read_text().split() == ["show"]
