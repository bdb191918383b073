"""``launcher doctor`` as a user calls it, with commands of SLURM that repeat what recorded sites have said."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from an_event import an_event

from launcher.cli.main import main
from launcher.run import event_lines, index, rehearsals
from launcher.run.paths import RunPaths

SITES = Path(__file__).parents[1] / "slurm" / "sites"
ANSWERS = {
    "scontrol": 'if [ "$2" = config ]; then cat "$SAID/config"; else cat "$SAID/partitions"; fi',
    "sinfo": 'cat "$SAID/nodes"',
    "sacctmgr": 'cat "$SAID/qos"',
    "sbatch": "exit 1", "srun": "exit 1", "squeue": "exit 1", "scancel": "exit 1",
}  # fmt: skip
Doctor = Callable[..., list[dict[str, str]]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """A user at home, whose ``doctor(site, *words)`` calls the verb at a recorded site and returns its findings."""
    monkeypatch.chdir(tmp_path)
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "LAUNCHER_RUNS_DIR", "HOME", "SAID"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    for variable in ("LAUNCHER_SITE", "VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "said").mkdir()
    (tmp_path / "bin").mkdir()
    for name, does in ANSWERS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def call(site: str, *words: str) -> list[dict[str, str]]:
        parts = re.split(r"^### (\w+)\n", (SITES / f"{site}.txt").read_text(), flags=re.MULTILINE)[1:]
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            (tmp_path / "said" / name).write_text(text)
        assert main(["doctor", "--json", *words]) == 0
        findings: list[dict[str, str]] = json.loads(capsys.readouterr().out)["findings"]
        return findings

    return call


def texts(findings: list[dict[str, str]], level: str, topic: str) -> list[str]:
    """What is said at that level about that topic."""
    return [f["text"] for f in findings if (f["level"], f["topic"]) == (level, topic)]


def test_the_profile_it_wrote_is_what_it_goes_by(doctor: Doctor, tmp_path: Path) -> None:
    """What --write-site has settled is not warned of again: the partition, the signal lead, the form of a GPU request."""
    assert texts(doctor("lab-20.11", "--write-site"), "warning", "gpus") != []
    assert texts(doctor("lab-20.11"), "warning", "gpus") == []

    rehearsals.note_rehearsal("net", real=True, save_s=70.0)
    before = doctor("center-24.05", "--write-site", "--force")
    after = doctor("center-24.05")

    assert texts(before, "warning", "partition") == [
        "There is no default partition: set slurm.partition in the job file."
    ]
    assert any(t.startswith("Set restart.signal_lead_s to 150:") for t in texts(before, "warning", "saving"))
    assert texts(after, "warning", "partition") == []
    assert not any("signal_lead_s" in t for t in texts(after, "warning", "saving"))
    assert any("Preempted jobs of h100 " in f["text"] or "Jobs of h100 " in f["text"] for f in after)
    other = doctor("center-24.05", "--partition", "h100-free")  # what is said here comes first
    assert any(" of h100-free " in t for t in texts(other, "ok", "preemption"))


def saved(run: Path, *seconds: float) -> None:
    """A run of this user's whose leader told of saves that took so long."""
    paths = RunPaths(run)
    paths.root.mkdir(parents=True)
    paths.spec.write_text("{}")
    for step, took in enumerate(seconds):
        event_lines.append(
            paths.events, an_event("saved", attempt=0, round=0, step=step, seconds=took, reason="interval")
        )
    index.register(paths.root)


def test_measured_saves_are_held_against_the_grace(doctor: Doctor, tmp_path: Path) -> None:
    """What runs took to save is said, and that the worst does not fit: debian's grace is 20 s, KILL follows 10 s later."""
    (none,) = (f["text"] for f in doctor("debian-22.05") if f["topic"] == "saving")
    saved(tmp_path / "launcher_runs_dir" / "net-1121-0842-k7f", 4.0, 9.0)
    fits = doctor("debian-22.05")
    saved(tmp_path / "elsewhere" / "lm-1122-0842-m3x", 40.0)
    slow = doctor("debian-22.05")
    unhurried = doctor("bare-22.05")

    assert none.startswith("None of your saves has been measured yet")
    assert texts(fits, "ok", "saving") == [
        "Your saves took 6.5 s, at worst 9.0 s (2 measured). That fits the 30 s from preemption to SIGKILL."
    ]
    assert texts(fits, "warning", "saving") == []
    assert texts(slow, "warning", "saving")[0].startswith("Your 40 s save does not fit a 20 s grace: ")
    assert texts(unhurried, "ok", "saving") == [
        "Your saves took 9.0 s, at worst 40 s (3 measured)."
    ]  # nobody is preempted


@pytest.mark.parametrize("place", ["launcher_runs_dir", "launcher_runs_dir/below", "link"])
def test_a_folder_for_runs_that_can_never_be_made_is_a_problem(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """A file or a link to nothing is in its place, or in that of a folder above it."""
    doctor("debian-22.05")
    (tmp_path / "launcher_runs_dir").write_text("a file")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / place))

    assert main(["doctor", "--json"]) == 5
    said = texts(json.loads(capsys.readouterr().out)["findings"], "problem", "runs")
    assert said == [f"{tmp_path / place} cannot be written."]
