"""The folder that user code fills: what of it is listed, and what training waits for."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, make_spec, run, script_spec, wait_for

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


HASHES_SLOWLY = """
import errno, os, pathlib, sys, time
import torch
import launcher, launcher.training.folder as folder_module
here = pathlib.Path(os.environ["LAUNCHER_RUN_DIR"])
plain = folder_module.hash_file
def slow(path):
    name = path.read_text()
    (here / f"hashing-{name}").touch()
    while not (here / f"hash-{name}").exists():
        time.sleep(0.01)
    if (here / "breaks").exists():
        raise OSError(errno.EIO, "Input/output error")
    return plain(path)
folder_module.hash_file = slow
run = launcher.attach()
def save():
    with run.save_dir() as folder:
        (folder / "mine").write_text(str(run.steps_done))
"""
KNOWN = "for _ in run.steps(4):\n    run.step()\n    if run.steps_done in SAVES: save()\n"
UNKNOWN = "while run.steps_done < 4:\n    run.step()\n    if run.steps_done in SAVES: save()\n"
ENDLESS = "for _ in run.steps():\n    run.step(x=1.0)\n    time.sleep(0.001)\n"


def _slow_hash(folder: Path, text: str) -> Crew:
    return Crew(script_spec(folder, HASHES_SLOWLY + text, 1), 1)


def _heard(crew: Crew, *types: str) -> list[tuple[str, int]]:
    return [(m["type"], m["step"]) for _, m in crew.seen if m["type"] in types]


def test_training_goes_on_while_a_folder_is_made_durable(tmp_path: Path) -> None:
    """What DCP has written takes minutes to sync and hash: steps are done meanwhile, and are no part of what training waited for."""
    with _slow_hash(tmp_path, KNOWN.replace("SAVES", "(1,)") + "(here / 'done').touch()") as crew:
        wait_for((tmp_path / "hashing-1").exists)
        began = time.monotonic()
        wait_for((tmp_path / "done").exists)  # all four steps
        waited_s = time.monotonic() - began
        (tmp_path / "hash-1").touch()
        crew.finish()
        (shard,) = crew.messages("shard")

    assert shard["seconds"] - shard["blocked_s"] > waited_s
    assert [path.name for path in crew.committed] == ["step-00000001"]


def test_the_random_numbers_of_a_folder_are_those_of_its_block(tmp_path: Path) -> None:
    """Training draws while they are written: a resume would go on with numbers of a later step."""
    text = "save()\nexpected = torch.rand(3)\ntorch.save(expected, here / 'expected.pt')\n(here / 'hash-1').touch()\n"
    slow = "wait = folder_module._generators\ndef late(*what):\n    while not (here / 'hash-1').exists(): time.sleep(0.01)\n"
    with _slow_hash(
        tmp_path, slow + "    return wait(*what)\nfolder_module._generators = late\nrun.step()\n" + text
    ) as crew:
        crew.finish()
    (saved,) = (crew.committed[0] / "launcher").glob("*.pt")
    torch.set_rng_state(torch.load(saved, weights_only=True)["rng"]["torch"])

    assert torch.equal(torch.rand(3), torch.load(tmp_path / "expected.pt", weights_only=True))


@pytest.mark.parametrize(("loop", "phases"), [(KNOWN + "os._exit(0)", 3), (UNKNOWN, 5)], ids=["planned", "unplanned"])
def test_the_last_folder_is_durable_before_the_script_ends(tmp_path: Path, loop: str, phases: int) -> None:
    """At the last of the planned steps the block waits, as scripts may end by os._exit; else what reports the end does."""
    with _slow_hash(tmp_path, loop.replace("SAVES", "(4,)")) as crew:
        crew.until(lambda _, m: m["type"] == "phase" and len(crew.messages("phase")) == phases)
        assert crew.messages("phase")[-1]["name"] == "save"  # no hang, however long it takes
        wait_for((tmp_path / "hashing-4").exists)
        (tmp_path / "hash-4").touch()
        crew.finish()

    assert _heard(crew, "shard", "finished")[0] == ("shard", 4)
    assert [path.name for path in crew.committed] == ["step-00000004"]


def test_a_second_folder_waits_for_the_first(tmp_path: Path) -> None:
    """One save at a time: the block of the second is entered when the first is durable."""
    with _slow_hash(tmp_path, KNOWN.replace("SAVES", "(1, 2)")) as crew:
        crew.until(lambda _, m: len([m for m in crew.messages("phase") if m["name"] == "save"]) == 2)
        (tmp_path / "hash-1").touch()
        wait_for((tmp_path / "hashing-2").exists)
        (tmp_path / "hash-2").touch()
        crew.finish()

    assert _heard(crew, "shard", "save_begun") == [("save_begun", 1), ("shard", 1), ("save_begun", 2), ("shard", 2)]


@pytest.mark.parametrize("breaks", [False, True])
def test_a_stop_waits_until_the_folder_is_durable(tmp_path: Path, breaks: bool) -> None:
    """The leader requeues the job once all have stopped: a rank says so behind its shard, and that nothing is saved where that failed."""
    with _slow_hash(tmp_path, ENDLESS + "    if run.should_stop(): save()\n    if run.should_stop(): break\n") as crew:
        crew.until(lambda _, m: m["type"] == "progress" and m["step"] > 0)
        step = crew.stop_now()
        wait_for((tmp_path / f"hashing-{step}").exists)
        if breaks:
            (tmp_path / "breaks").touch()
        (tmp_path / f"hash-{step}").touch()
        (word,) = crew.finish().values()

    first = "save_failed" if breaks else "shard"
    assert _heard(crew, "shard", "save_failed", "stopped") == [(first, step), ("stopped", step)]
    assert word["saved"] is not breaks
    assert [m["errno"] for m in crew.messages("save_failed")] == [errno.EIO] * breaks


def test_a_stop_without_a_save_waits_for_the_folder_before(tmp_path: Path) -> None:
    """A script that leaves at once, where a stop is not saved: the folder of an earlier step is durable before it says that it stopped."""
    text = ENDLESS + "    if run.steps_done == 1: save()\n    if run.should_stop(): break\n(here / 'hash-1').touch()\n"
    with _slow_hash(tmp_path, text) as crew:
        crew.until(lambda _, m: m["type"] == "progress" and m["step"] > 1)
        step = crew.stop_now(save=False)
        (tmp_path / "hash-1").touch()
        crew.finish()

    assert _heard(crew, "shard", "stopped") == [("shard", 1), ("stopped", step)]
