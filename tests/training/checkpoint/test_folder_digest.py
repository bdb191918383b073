"""What the drill compares of a folder that a script filled itself."""

from __future__ import annotations

import json
import warnings
from fractions import Fraction
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from launcher.run.manifest import hash_file
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint


def commit(folder: Path) -> Path:
    """As the leader does: a manifest of all that is there."""
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    files = [{"name": name, "size": (folder / name).stat().st_size, "hash": hash_file(folder / name)} for name in names]
    (folder / "manifest.json").write_text(json.dumps({"step": 1, "files": files}))
    return folder


def save(folder: Path, state: dict[str, object], within: str = ".") -> dict[str, str]:
    """Saved by DCP, and digested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.save(state, checkpoint_id=folder / within)
    return digest_checkpoint(commit(folder))


def state(moment: float = 0.5, note: object = "as it was") -> dict[str, object]:
    """Tensors, plain values, and what only a class of its own can hold."""
    optimizer = {"state": {"exp_avg": torch.full((4,), moment), "step": 3}, "lr": 0.1}
    return {"model": {"weight": torch.ones(2, 3)}, "optimizer": optimizer, "note": note}


def test_two_saves_of_one_state_are_equal(tmp_path: Path) -> None:
    """DCP's metadata holds a fresh uuid and the folder's own path; the state is what counts."""
    one, two = save(tmp_path / "one", state()), save(tmp_path / "two", state())

    assert (tmp_path / "one" / ".metadata").read_bytes() != (tmp_path / "two" / ".metadata").read_bytes()
    assert one == two
    assert set(one) == {"model", "optimizer", "note", "all"}


def test_the_part_that_differs_is_named(tmp_path: Path) -> None:
    """One moment of the optimizer, or an object of a class that torch does not load: that part alone, and the whole."""
    one = save(tmp_path / "one", state(note=Fraction(1, 3)))
    moment, note = (
        save(tmp_path / "two", state(0.25, Fraction(1, 3))),
        save(tmp_path / "three", state(note=Fraction(2, 3))),
    )

    assert {part for part in one if one[part] != moment[part]} == {"optimizer", "all"}
    assert {part for part in one if one[part] != note[part]} == {"note", "all"}


def test_a_state_with_one_key_is_told_apart_below_it(tmp_path: Path) -> None:
    """As in torch's own examples, where everything is \"app\"; in a folder of its own the folder's name leads."""
    found = save(tmp_path / "one", {"app": state()}, within="sharded")

    assert set(found) == {"sharded/app.model", "sharded/app.optimizer", "sharded/app.note", "all"}


def test_files_of_another_saver_are_compared_whole(tmp_path: Path) -> None:
    """A file beside DCP's counts by its content; metadata that nothing here can read costs DCP's names alone."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "scaler.json").write_text("1")
    (tmp_path / "one" / "__0_0.distcp").write_text("of Megatron's")
    (tmp_path / "one" / ".metadata").write_text("no pickle")

    assert set(digest_checkpoint(commit(tmp_path / "one"))) == {"scaler.json", "__0_0.distcp", "all"}
