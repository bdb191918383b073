"""A run's folder is made whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from launcher.errors import RunDirError
from launcher.submission.folder import make_folder


def test_a_full_quota_is_found_before_anything_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotas show only in writing: one sentence that names the folder, and no empty run in `ls`."""

    def full(fd: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(make_folder.os, "fsync", full)
    with pytest.raises(RunDirError, match=r"runs/net: disk quota exceeded; set runs_dir"):
        make_folder.make_run_folder(tmp_path / "runs" / "net")

    assert list((tmp_path / "runs").iterdir()) == []


def test_an_interrupted_one_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the folder is made leaves nothing."""

    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(make_folder.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_folder.make_run_folder(tmp_path / "net")

    assert not (tmp_path / "net").exists()


def test_a_folder_that_exists_is_left(tmp_path: Path) -> None:
    """Two submissions that draw the same name: the second is told so and touches nothing."""
    assert make_folder.make_run_folder(tmp_path / "net")
    assert not make_folder.make_run_folder(tmp_path / "net")
    assert stat.S_IMODE((tmp_path / "net" / "logs").stat().st_mode) == 0o700
