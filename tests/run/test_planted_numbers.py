"""Names of files that look like numbers, and manifests that name what is no file of theirs: nobody falls, hangs or looks elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import CheckpointError
from launcher.node.agent.membership import node_index
from launcher.node.checkpoints import claims, committed, trash
from launcher.run.manifest import hash_file, read_manifest, why_damaged
from launcher.run.paths import RunPaths
from launcher.run.units import is_job_id, whole_number
from launcher.submission.resubmit import checkpoint_steps

STRANGE = ["²", "٣", "1²", "-1", " 1", "1e3", "0x1", "١", "９", "9" * 200, "", "1__0", "+1"]


def run_at(root: Path) -> RunPaths:
    paths = RunPaths(root)
    for folder in (paths.attempts, paths.checkpoints):
        folder.mkdir(parents=True)
    return paths


def test_a_strange_attempt_kills_no_leader(tmp_path: Path) -> None:
    """``attempts/²`` and the like are no attempts: the next one is claimed, is current, and may delete and commit."""
    paths = run_at(tmp_path / "run")
    for name in filter(None, STRANGE):
        (paths.attempts / name).mkdir()
        (paths.checkpoints / f"tmp.{name}.0.5").mkdir()
        (paths.checkpoints / f"step-{name}").mkdir()
        (paths.checkpoints / f"step-{name}" / "manifest.json").write_text("{}")

    claim = claims.claim_attempt(paths)

    assert (claim.attempt, claims.attempts(paths), claims.is_current(paths, claim)) == (0, [0], True)
    trash.move_stale(paths, claim)
    trash.move_unfinished(paths, claim)
    assert committed.committed_steps(paths) == checkpoint_steps(paths) == []
    assert committed.newest_good(paths) is None


@pytest.mark.parametrize("text", STRANGE)
def test_only_plain_digits_are_a_number(text: str) -> None:
    """What int() would refuse, or take in another script, is none."""
    assert whole_number(text) is None
    assert not is_job_id(text)


@examples(100)
@given(st.text(max_size=20) | st.text("0123456789_+", max_size=12))
def test_a_number_is_never_an_error(text: str) -> None:
    """Whatever the text is; a job id holds digits and one sign."""
    number = whole_number(text)

    assert number is None or (text.isascii() and int(text) == number)
    assert not is_job_id(text) or set(text) <= set("0123456789_+")


def checkpoint(folder: Path, name: str, size: int, digest: str = "0", **more: object) -> Path:
    """A checkpoint whose manifest names one file."""
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"name": name, "size": size, "hash": digest, "rank": 0}
    manifest = {
        "version": 1,
        "step": 5,
        "world_size": 1,
        "hash_name": "sha256",
        "bytes": size,
        "files": [entry],
        **more,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "sub/../../outside", "..", "", "/dev/zero"])
def test_a_manifest_names_files_of_its_checkpoint_alone(tmp_path: Path, name: str) -> None:
    """An absolute path, or one that leads out, is damage, also where the file there is as the manifest says."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    found = tmp_path / name if name else outside
    right = found.is_file()
    folder = checkpoint(
        tmp_path / "step-00000005",
        name,
        found.stat().st_size if right else 0,
        hash_file(found, "sha256") if right else "0",
    )

    for content in (True, False):
        assert "which is no file of the checkpoint" in (why_damaged(folder, content=content) or "")


@pytest.mark.parametrize("kind", ["pipe", "device", "sparse", "folder"])
def test_a_shard_that_is_none_is_not_read(tmp_path: Path, kind: str) -> None:
    """A pipe, a device and a folder are told at once, a file of another size before it is hashed."""
    folder = checkpoint(tmp_path / "step-00000005", "rank-00000.pt", 7)
    shard = folder / "rank-00000.pt"
    if kind == "pipe":
        os.mkfifo(shard)
    elif kind == "device":
        shard.symlink_to("/dev/zero")
    elif kind == "folder":
        shard.mkdir()
    else:
        with shard.open("wb") as f:
            f.truncate(1 << 40)

    assert why_damaged(folder) == (
        "rank-00000.pt has 1099511627776 bytes instead of 7"
        if kind == "sparse"
        else "rank-00000.pt is not a regular file"
    )


def test_a_linked_shard_of_the_same_content_is_good(tmp_path: Path) -> None:
    """A script's own saver may link what has not changed."""
    kept = tmp_path / "kept.pt"
    kept.write_bytes(b"weights")
    folder = checkpoint(tmp_path / "step-00000005", "rank-00000.pt", 7, hash_file(kept, "sha256"))
    (folder / "rank-00000.pt").symlink_to(kept)

    assert why_damaged(folder) is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["../x", "/dev/zero", "a\0b", "."]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "size", "hash", "rank"]), inner, max_size=4)
    ),
    max_leaves=8,
)
KEYS = ("step", "files", "bytes", "hash_name", "world_size", "meta")


@examples(100)
@given(value=st.dictionaries(st.sampled_from(KEYS), VALUES) | VALUES)
def test_no_manifest_breaks_its_readers(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    """Whatever JSON it is: the checkpoint is good or damaged, and a fork refuses it in one sentence."""
    paths = RunPaths(tmp_path_factory.getbasetemp() / "any-manifest")
    folder = paths.checkpoint(5)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(value))

    read_manifest(folder)
    why = why_damaged(folder)
    assert committed.newest_good(paths) is None or why is None
    with contextlib.suppress(CheckpointError):
        committed.open_foreign(str(folder))


def test_a_strange_node_number_is_refused(tmp_path: Path) -> None:
    """A variable that int() would fall over is no number."""
    from types import SimpleNamespace
    from typing import Any

    from launcher.errors import ProtocolError

    spec: Any = SimpleNamespace(batch="slurm")
    with pytest.raises(ProtocolError, match="must hold a number"):
        node_index(spec, {"SLURM_NODEID": "²"})
