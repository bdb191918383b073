"""The folder that user code fills: what of it is listed."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.training.folder import _names


def test_a_link_within_the_folder_still_leads_there_under_another_name(tmp_path: Path) -> None:
    """Savers link `last.ckpt` by an absolute path. The commit renames the folder, and it would lead to nothing."""
    tmp, outside = tmp_path / "tmp.0.0.10", tmp_path / "vocabulary.json"
    (tmp / "parts").mkdir(parents=True)
    (tmp / "parts" / "a").write_text("weights")
    outside.write_text("{}")
    links = {
        "last": tmp / "parts" / "a",
        "parts/again": tmp / "parts" / "a",
        "all": tmp / "parts",
        "words": outside,
        "void": tmp / "no",
    }
    for name, target in links.items():
        (tmp / name).symlink_to(target)

    assert _names(tmp) == ["last", "parts/a", "parts/again", "words"]
    tmp.rename(tmp_path / "step-10")
    assert (tmp_path / "step-10" / "last").read_text() == (tmp_path / "step-10" / "all" / "a").read_text() == "weights"
    assert (tmp_path / "step-10" / "parts" / "again").read_text() == "weights"
    assert os.readlink(tmp_path / "step-10" / "words") == str(outside)
