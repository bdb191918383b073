"""A worker and a run's folder that does not answer: nothing is written where nobody finds it, and nothing is left out."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from away import Away

from launcher.run import asking
from launcher.run.paths import RunPaths
from launcher.training import folder
from launcher.training.checkpoint import write
from launcher.training.checkpoint.registered import Registered
from launcher.training.process.place import WorkerPlace
from launcher.training.step.session import Session
from launcher.training.step.stopping import Gate


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "AGAIN_S", 0.001)


def test_a_run_folder_that_is_away_is_never_made_anew(tmp_path: Path) -> None:
    """Below a mount point that is empty for a while, a save would succeed and be lost. A checkpoints folder alone is made."""
    tmp = tmp_path / "run" / "checkpoints" / "tmp.0.0.5"

    with pytest.raises(FileNotFoundError):
        write.make_folder(tmp, 0o700)
    assert not (tmp_path / "run").exists()

    (tmp_path / "run").mkdir()
    write.make_folder(tmp, 0o700)
    write.make_folder(tmp, 0o700)  # another rank's
    assert tmp.is_dir()


def test_a_folder_that_user_code_fills_is_waited_for(tmp_path: Path, away: Away) -> None:
    """It cannot be made at first."""
    (tmp_path / "checkpoints").mkdir()
    session = Session(WorkerPlace(paths=RunPaths(tmp_path)), Gate(), torch.device("cpu"))
    away.refuse(tmp_path / "checkpoints" / "tmp.0.0.0", errno.ESTALE, times=3)

    with folder.save_folder(session) as tmp:
        assert tmp is not None
        assert (tmp.is_dir(), len(away.refused)) == (True, 3)


@pytest.mark.parametrize("what", ["", "part", "part/0.bin"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_no_file_is_left_out_of_a_checkpoint(tmp_path: Path, away: Away, what: str, number: int) -> None:
    """A listing or a look that fails is an error: without its file, a checkpoint would verify and could not be loaded."""
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "0.bin").write_bytes(b"0")
    (tmp_path / "1.bin").write_bytes(b"1")
    os.symlink("nowhere", tmp_path / "part" / "dangling")
    os.mkfifo(tmp_path / "pipe")
    assert folder._names(tmp_path) == ["1.bin", "part/0.bin"]

    away.refuse(tmp_path / what, number)
    with pytest.raises(OSError, match=os.strerror(number)):
        folder._names(tmp_path)


def test_a_state_that_cannot_be_seen_is_still_there(tmp_path: Path, away: Away) -> None:
    """Without it the script would go on from scratch at the checkpoint's step."""
    path = tmp_path / "step-00000005"
    path.mkdir()
    model = torch.nn.Linear(1, 1)
    state = {"format": write.FORMAT, "world_size": 1, "objects": {"model": model.state_dict()}, "position": {}}
    torch.save(state, path / write.SHARED)
    torch.save({"objects": {}}, path / write.rank_file(0))
    away.refuse(path / write.SHARED, times=3)

    registered = Registered(
        WorkerPlace(resume_path=path), torch.device("cpu"), settle=lambda: None, watch=lambda _: None
    )

    assert len(away.refused) == 3
    assert registered.loaded is not None


def test_random_numbers_that_cannot_be_listed_are_still_there(tmp_path: Path, away: Away) -> None:
    """How many ranks wrote them decides whether a rank gets its own back."""
    path = tmp_path / "step-00000005"
    (path / write.GENERATORS).mkdir(parents=True)
    for rank in range(3):
        (path / write.GENERATORS / write.rank_file(rank)).touch()
    registered = Registered(
        WorkerPlace(resume_path=path), torch.device("cpu"), settle=lambda: None, watch=lambda _: None
    )
    away.refuse(path / write.GENERATORS, times=3)

    assert registered.ranks_then == 3
    assert len(away.refused) == 3
