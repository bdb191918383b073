"""The folder that user code fills: what of it is listed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, make_spec, run, script_spec

from launcher.training.folder import _names


def _spec(folder: Path, target: str, **params: Any) -> Any:
    return make_spec(folder, f"folder_jobs:{target}", 1, kind="function", params=params)


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


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("registers", "asks", "should_save() was called although something is registered"),
        ("registers", "fills", "save_dir() was called although something is registered"),
        ("asks", "registers", "register(model) came after save_dir() or should_save()"),
        ("loops", "fills in it", "should_save() was called in a loop over batches(), or after it"),
        ("loops", "fills", "save_dir() was called in a loop over batches(), or after it"),
        ("fills", "loops", "batches() was called in a run that saves by save_dir()"),
    ],
)
def test_two_ways_of_saving_are_refused_together(tmp_path: Path, first: str, then: str, said: str) -> None:
    """A resume would find one of both: the user's files would be missing, or the data would begin anew."""
    with Crew(_spec(tmp_path, "two_ways", first=first, then=then), 1) as crew:
        word = crew.finish()[0]

    assert word.get("exception") == "launcher.errors.CodeError", word
    assert word["message"].startswith(said)


def test_a_loop_over_data_does_not_begin_anew_from_a_folder(tmp_path: Path) -> None:
    """A checkpoint that is a folder of the script's own holds no position: `batches` refuses it, rather than repeat an epoch."""
    full = run(_spec(tmp_path / "full", "fills"), 1)
    with Crew(_spec(tmp_path / "again", "two_ways", first="loops", then=""), 1, resume=full.committed[0]) as crew:
        word = crew.finish()[0]

    assert word["message"].startswith("batches() was called in a run that saves by save_dir()"), word


def test_a_block_that_raises_is_a_save_that_failed(tmp_path: Path) -> None:
    """The leader hears of it at once, with the errno, although the function catches the error; the next save counts."""
    crew = run(_spec(tmp_path, "fails_once"), 1)

    failed = crew.messages("save_failed")
    assert [(m["step"], m["error"], m["errno"]) for m in failed] == [
        (1, "[Errno 28] No space left on device", errno.ENOSPC)
    ]
    heard = [m.get("name", m["type"]) for _, m in crew.seen if m["type"] in ("phase", "save_begun", "save_failed")]
    assert heard[heard.index("save_failed") + 1] == "train"
    assert [path.name for path in crew.committed] == ["step-00000002"]


FAILS_AT_ITS_STOP = """
import os, time, launcher
run = launcher.attach()
for _ in run.steps():
    run.step()
try:
    with run.save_dir():
        raise ValueError
except ValueError:
    while not os.path.exists(os.environ["LAUNCHER_RUN_DIR"] + "/go"):
        time.sleep(0.01)
"""


def test_a_block_that_raises_at_a_stop_has_saved_nothing(tmp_path: Path) -> None:
    """The rank tells so as it leaves the block, not when the script ends; an error without words has its name."""
    with Crew(script_spec(tmp_path, FAILS_AT_ITS_STOP, 1), 1) as crew:
        crew.until(lambda _, m: m["type"] == "progress" and m["step"] > 0)
        step = crew.stop_now()
        _, word = crew.until(lambda _, m: m["type"] == "stopped")
        (tmp_path / "go").touch()

        assert (word["step"], word["saved"]) == (step, False)
        assert [m["error"] for m in crew.messages("save_failed")] == ["ValueError"]
        assert crew.exit_codes() == {0: 0}
