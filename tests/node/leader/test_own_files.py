"""Which files are checkpoints of a script's own (`checkpoint.watch`)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from acts import plain_script

from launcher.node.leader import leader
from launcher.node.leader.own_files import newest_of
from launcher.run.paths import RunPaths
from launcher.run.spec import Work


@pytest.mark.parametrize(
    "name",
    [
        "state.json",
        "events.jsonl",
        "logs/attempt-0/round-0/rank-00000.log",
        "attempts/0/claim.json",
        "trackers/wandb.json",
        "lib/launcher/x.pyc",
        "checkpoints/tmp.0.0.5/state.pt",
        "checkpoints/step-00000005/state.pt",
        "checkpoints/aside.1.step-00000005/state.pt",
        "checkpoints/trash.77.1.step-00000005/state.pt",
    ],
)
def test_what_the_launcher_writes_is_no_scripts_checkpoint(tmp_path: Path, name: str) -> None:
    """However wide the pattern is, it finds neither the files nor their folders."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    for pattern in ("*", "**", "**/*", "**/*.pt", "*/*", name):
        assert newest_of(tmp_path, pattern, {}) is None


@pytest.mark.parametrize(
    "name", ["last.pt", "out/last.pt", "code/out/last.pt", "checkpoints/last.ckpt", "logs/version_0/last.pt"]
)
def test_a_script_may_write_where_it_likes(tmp_path: Path, name: str) -> None:
    """Also beside the launcher's own: Lightning's documents say so of `checkpoints`, and relative paths lead to `code`."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    assert newest_of(tmp_path, name.rpartition("/")[0] + "/*" if "/" in name else "*", {}) == str(path)


def test_every_place_of_a_run_is_known(tmp_path: Path) -> None:
    """A file that is added to the run's folder needs no word here."""
    paths = RunPaths(tmp_path)
    for place in (paths.secret, paths.room, paths.sbatch, paths.code, paths.checkpoints, paths.logs):
        place.mkdir()
    assert newest_of(tmp_path, "*", {}) is None


def test_the_leader_listens_before_it_looks_at_them(world, virtual, monkeypatch):
    """Very many files on a slow disk take minutes, and agents leave a leader that has begun and does not answer for one."""
    w = world(work=Work(kind="script", target="t.py"), checkpoint={"enabled": False, "watch": "out/**/*.pt"})
    w.worker_class = plain_script(w, 30.0)
    listens = []
    monkeypatch.setattr(leader, "newest_of", lambda *of: listens.append(hasattr(w, "hub")))

    assert virtual(w.attempt_once()).state == "completed"
    assert listens == [True]


def test_what_was_copied_with_the_code_is_no_progress(world, virtual):
    """It is there before the run begins: weights to start from, for instance."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False, "watch": "**/*.pt"})
    (w.paths.root / "code").mkdir()
    (w.paths.root / "code" / "pretrained.pt").write_text("")
    w.worker_class = plain_script(w, seconds=60)

    async def script():
        await w.until(lambda: w.events("round_started"))
        await asyncio.sleep(30)
        (w.paths.root / "code" / "mine.pt").write_text("")

    assert virtual(w.attempt_once(script)).state == "completed"
    assert [Path(e["path"]).name for e in w.events("saved")] == ["mine.pt"]
