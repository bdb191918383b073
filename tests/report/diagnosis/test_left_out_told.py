"""A file that is in the code directory and was not copied into the run: `why` gives the command that links it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_story import Story

from launcher.report.diagnosis.left_out import remedy
from launcher.report.diagnosis.why import explain
from launcher.report.model.summary import summarise_history
from launcher.run.tracebacks import Trace

NO_SUCH = "[Errno 2] No such file or directory: '{}'"
FILES = (
    "data/x/train.bin",
    "sets/a/prepare.py",
    "sets/a/train.bin",
    "vocab.txt",
    "lab/train.py",
    "lab/vocab.txt",
    "odd dir/a",
)
COPIED = ("sets/a/prepare.py", "lab/train.py", "here.txt")


def made(root: Path, names: tuple[str, ...]) -> Path:
    """A folder with empty files of these names."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def next_of(tmp_path: Path, exception: str, message: str, links: tuple[str, ...] = (), target: str = "train.py") -> str:
    """What `why` says to do next of a run whose only rank raised this."""
    story = Story(tmp_path, work={"kind": "script", "target": target}).submitted().begins().round_starts(ranks=1)
    root, code = made(tmp_path / "mine", (*FILES, "here.txt")), made(story.paths.code, COPIED)
    submission = {"code_root": str(root), "code_link": list(links)}
    story.paths.submission.write_text(json.dumps(submission))
    frames = [{"file": f"{code}/{target}", "line": 3, "function": "<module>", "code": "open(path)"}]
    cause = {
        "kind": "exception",
        "exception": exception,
        "message": message.replace("CODE", str(code)),
        "frames": frames,
    }
    story.event("worker_failed", rank=0, host="node1", step=0, cause=cause)
    story.event("decision", evidence="worker_failed", action="fail", reason="It broke; stopped.")
    h = story.outcome("failed", "It broke.").history()
    (said,) = [
        value for label, value in explain(h, summarise_history(h, None, story.t), story.t).rows if label == "next"
    ]
    return said.replace(str(root), "ROOT")


@pytest.mark.parametrize(
    ("message", "path", "link"),
    [
        (NO_SUCH.format("data/x/train.bin"), "data/x/train.bin", "'code.link=[data]'"),
        (NO_SUCH.format("./data/../data/x"), "data/x", "'code.link=[data]'"),
        (NO_SUCH.format("CODE/data/x/train.bin"), "data/x/train.bin", "'code.link=[data]'"),
        (NO_SUCH.format("sets/a/train.bin"), "sets/a/train.bin", "'code.link=[sets/a]'"),
        (NO_SUCH.format("vocab.txt"), "vocab.txt", "'code.link=[vocab.txt]'"),
        ('nothing at "odd dir/a"', "odd dir/a", "'code.link=[odd dir]'"),
    ],
)
def test_what_was_not_copied_is_linked(tmp_path: Path, message: str, path: str, link: str) -> None:
    """The outermost folder that the copy lacks; of a folder that is there, all of it; what lies at the top by itself."""
    said = f"{path} is in ROOT, but is not copied into the run; link it: launcher resubmit resnet50-1121-0842-k7f --code {link}"

    assert next_of(tmp_path, "FileNotFoundError", message) == said


def test_the_folder_of_the_script_is_not_linked(tmp_path: Path) -> None:
    """Beside the script a missing file is linked alone: the code itself stays a copy."""
    said = next_of(tmp_path, "FileNotFoundError", NO_SUCH.format("lab/vocab.txt"), target="lab/train.py")

    assert said.endswith("launcher resubmit resnet50-1121-0842-k7f --code 'code.link=[lab/vocab.txt]'")


def test_earlier_links_are_kept(tmp_path: Path) -> None:
    """The new list names them, too, each once: an override replaces a list."""
    said = next_of(tmp_path, "FileNotFoundError", NO_SUCH.format("data/x/train.bin"), ("sets", "data"))

    assert said.endswith("'code.link=[sets,data]'")


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("ValueError", NO_SUCH.format("data/x/train.bin")),
        *(
            ("FileNotFoundError", NO_SUCH.format(name))
            for name in ("here.txt", "nowhere", "../mine/vocab.txt", "/usr", "a\0b", "\ud800", "a" * 5000, "")
        ),
    ],
)
def test_other_missing_files_are_the_codes_fault(tmp_path: Path, exception: str, message: str) -> None:
    """What was copied, what is in neither place, what lies outside, what is no path: the usual advice."""
    assert (
        next_of(tmp_path, exception, message)
        == "correct the code, then: launcher resubmit resnet50-1121-0842-k7f --code"
    )


def test_a_run_without_its_copy_is_not_judged(tmp_path: Path) -> None:
    """Once the copy of the code is gone, nothing says what was in it."""
    story = Story(tmp_path)
    made(tmp_path / "mine", ("a",))
    story.paths.submission.write_text(json.dumps({"code_root": str(tmp_path / "mine")}))
    trace = Trace("FileNotFoundError", NO_SUCH.format("a"))
    assert remedy(story.history(), trace) == ""
    story.paths.code.mkdir()
    assert remedy(story.history(), trace).endswith("'code.link=[a]'")
