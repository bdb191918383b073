"""Saving behind training: what is written is the boundary's state, errors keep their number, training goes on."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import LIMIT_S, Crew, _context, make_spec, run, save_until_write

from launcher.errors import CheckpointError
from launcher.run.manifest import hash_file, why_damaged
from launcher.run.message_lines import Channel, decode_lines
from launcher.run.messages import FromWorker, WorkerSaveFailed
from launcher.run.spec import CheckpointSpec
from launcher.training.checkpoint import read, write
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint
from launcher.training.checkpoint.copies import Reference, Snapshot
from launcher.training.checkpoint.digest import digest

SELDOM = CheckpointSpec(interval_min=1000)


@pytest.fixture
def pair() -> Iterator[tuple[write.CheckpointWriter, socket.socket]]:
    """A saver and the agent's end of its channel."""
    agent, worker = socket.socketpair()
    agent.settimeout(LIMIT_S)
    with agent, worker:
        yield write.CheckpointWriter(Channel(worker), torch.device("cpu")), agent


Pair = tuple[write.CheckpointWriter, socket.socket]


def heard(agent: socket.socket, until: str) -> dict[str, Any]:
    """The first message of a type."""
    buffer = bytearray()
    while True:
        buffer += agent.recv(65536)
        for message in decode_lines(buffer):
            if message["type"] == until:
                return message


def test_what_the_ranks_gather_together_does_not_fail_a_save_alone(tmp_path: Path, pair: Pair) -> None:
    """A rank that went on after a broken collective would meet the others in another one: the error ends it."""

    def gather() -> Any:
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        pair[0].save(1, tmp_path / "tmp", gather, {}, copy=True)


def test_what_is_written_is_the_state_at_the_boundary(tmp_path: Path, pair: Pair) -> None:
    """Tensors changed after `save` (late ones after `settle`) are written as they were; sizes and hashes are the files'."""
    late, early = torch.arange(300_000.0), torch.ones(1000)
    expected = digest({"late": late, "early": early, "n": [1, 2]})
    ours, agent = pair
    numbers = [1, 2]
    tree = {"late": late, "early": early, "n": numbers}

    ours.save(7, tmp_path / "tmp", lambda: [("state.pt", tree)], {"step": 7}, copy=True, late={late.data_ptr()})
    early.zero_()
    numbers.append(3)
    ours.settle()
    late.zero_()
    assert ours.drain() == 7

    message = heard(agent, "shard")
    file = tmp_path / "tmp" / "state.pt"
    assert digest(torch.load(file, weights_only=True)) == expected
    assert message["files"] == [{"name": "state.pt", "size": file.stat().st_size, "hash": hash_file(file)}]
    assert (message["step"], message["meta"]) == (7, {"step": 7})


def test_a_late_tensor_changed_too_early_fails_the_save(tmp_path: Path, pair: Pair) -> None:
    """A half-changed copy is never called a checkpoint: the save fails instead, and leaves nothing behind."""
    tensors = [torch.zeros(2_000_000) for _ in range(20)]
    ours, agent = pair
    with ours._snapshot._lock:  # no late copy is made before the change
        ours.save(
            1, tmp_path / "tmp", lambda: [("state.pt", tensors)], {}, copy=True, late={t.data_ptr() for t in tensors}
        )
        tensors[-1].add_(1)

    assert ours.drain() == -1
    assert ours.torn  # from which a session knows that nothing may be copied late any more
    assert "changed outside" in heard(agent, "save_failed")["error"]
    assert not (tmp_path / "tmp").exists()


def test_a_copy_that_fails_is_reported_with_its_reason(
    tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that could be saved and cannot be copied (no memory is left) fails the save; training goes on."""
    ours, agent = pair

    def take(tree: object, late: object) -> None:
        raise MemoryError("no memory is left")

    monkeypatch.setattr(ours._snapshot, "take", take)
    ours.save(3, tmp_path / "tmp", lambda: [("state.pt", {"w": torch.zeros(1)})], {}, copy=True)

    failed = heard(agent, "save_failed")
    assert ("no memory is left", False) == (failed["error"], failed.get("permanent", False))


def be_full(path: Path) -> None:
    """Make a device at ``path`` that is always full, like /dev/full: a link there would be refused."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.stat("/dev/full").st_rdev)
    except PermissionError:
        pytest.skip("only root makes devices")


def test_a_full_disk_is_reported_by_number_and_cleaned_up(tmp_path: Path, pair: Pair) -> None:
    """ENOSPC reaches the leader as errno 28 through torch.save; the files written so far are removed."""
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    be_full(tmp / "state.pt")
    ours, agent = pair
    parts = [("rank-00000.pt", {"a": 1}), ("state.pt", {"w": torch.zeros(100_000)})]
    ours.save(3, tmp, lambda: parts, {}, copy=True)

    assert ours.drain() == -1
    assert heard(agent, "save_failed")["errno"] == errno.ENOSPC
    assert not tmp.exists()


def test_a_failure_is_reported_before_the_folder_goes(
    tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank that misses the folder reports that later than the rank that took it away reports why."""
    ours, _ = pair
    seen: list[bool] = []
    tmp = tmp_path / "tmp"

    def send(message: FromWorker) -> None:
        if isinstance(message, WorkerSaveFailed):
            seen.append(tmp.exists())

    monkeypatch.setattr(ours._channel, "send", send)
    monkeypatch.setattr(os, "fsync", lambda fd: os.write(-1, b""))  # EBADF
    tmp.mkdir()
    ours.save(1, tmp, lambda: [("state.pt", {"w": torch.zeros(100)})], {}, copy=True)

    assert ours.drain() == -1
    assert seen == [True]
    assert not tmp.exists()


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EIO])
def test_a_quota_that_shows_at_fsync_alone_is_reported(
    tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """NFS says at fsync what it could not write: the save fails with that number, its files go, the next one is good."""
    real, refusals = os.fsync, [number]

    def refusing(fd: int) -> None:
        if refusals:
            raise OSError(refusals.pop(), "refused")
        real(fd)

    monkeypatch.setattr(os, "fsync", refusing)
    ours, agent = pair
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    ours.save(1, tmp, lambda: [("state.pt", {"w": torch.zeros(100)})], {}, copy=True)
    assert ours.drain() == -1
    assert heard(agent, "save_failed")["errno"] == number
    assert not tmp.exists()
    ours.save(2, tmp_path / "next", lambda: [("state.pt", {"w": torch.zeros(100)})], {}, copy=True)

    assert ours.drain() == 2


def test_training_survives_a_save_that_fails(tmp_path: Path) -> None:
    """The disk is full at one save: it is reported, training goes on, the next save and the end are good."""
    rules = CheckpointSpec(interval_steps=5)
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 2, checkpoint=rules)
    full = tmp_path / "run" / "checkpoints" / "tmp.0.0.5"
    full.mkdir(parents=True)
    be_full(full / "state.pt")
    crew = run(spec, 2)
    whole = run(make_spec(tmp_path / "whole", "small_jobs:Net", 2, checkpoint=SELDOM), 2)

    # The other rank, when it is slower, finds the folder gone and says so, too: the leader waits for the cause.
    assert [(m["step"], m["errno"]) for m in crew.messages("save_failed", 0)] == [(5, errno.ENOSPC)]
    assert {(m["step"], m["errno"]) for m in crew.messages("save_failed", 1)} <= {(5, errno.ENOENT)}
    assert [path.name for path in crew.committed] == ["step-00000010", "step-00000015", "step-00000016"]
    assert digest_checkpoint(crew.committed[-1]) == digest_checkpoint(whole.committed[-1])


def test_committed_checkpoints_verify_and_load_safely(tmp_path: Path) -> None:
    """What workers report is what the leader's check finds; every file loads with weights_only."""
    crew = run(make_spec(tmp_path / "run", "small_jobs:Net", 3, checkpoint=SELDOM), 3)
    path = crew.committed[-1]

    assert why_damaged(path) is None
    assert sorted(p.name for p in path.glob("*.pt")) == ["rank-00000.pt", "rank-00001.pt", "rank-00002.pt", "state.pt"]
    assert {p.stat().st_mode & 0o777 for p in path.glob("*.pt")} == {0o600}
    assert path.stat().st_mode & 0o777 == 0o700
    for file in path.glob("*.pt"):
        torch.load(file, weights_only=True)


def test_a_worker_killed_in_a_save_tells_nobody_of_it(tmp_path: Path) -> None:
    """Killed at its n-th write, until one n is past the last: no ``shard`` before the last byte is durable."""
    heard_of = []
    for number in range(100):
        agent, worker = socket.socketpair()
        process = _context.Process(target=save_until_write, args=(worker, str(tmp_path / f"tmp.{number}"), number))
        process.start()
        worker.close()
        process.join(LIMIT_S)
        with agent:
            said = agent.recv(65536)
        heard_of.append(b'"shard"' in said)
        if process.exitcode == 0:
            break

    assert heard_of == [False] * (len(heard_of) - 1) + [True]
    assert len(heard_of) > 3


def test_errors_of_loading_are_one_sentence(tmp_path: Path) -> None:
    """A missing, a damaged and a foreign file each raise CheckpointError that names the file."""
    with pytest.raises(CheckpointError, match=r"state\.pt is missing"):
        read.load_shared(tmp_path)
    (tmp_path / "state.pt").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match=r"state\.pt cannot be loaded"):
        read.load_shared(tmp_path)
    torch.save({"epoch": 1}, tmp_path / "state.pt")
    with pytest.raises(CheckpointError, match="has a format that this version"):
        read.load_shared(tmp_path)


def test_a_checkpoint_with_code_in_it_is_refused(tmp_path: Path) -> None:
    """A pickle that would run something does not: it is an error."""
    torch.save(_Evil(tmp_path / "ran"), tmp_path / "state.pt")

    with pytest.raises(CheckpointError):
        read.load_shared(tmp_path)
    assert not (tmp_path / "ran").exists()


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_snapshots_keep_structure_and_reuse_memory() -> None:
    """Types, metadata and shared tensors stay; the second copy lies where the first one lay."""
    shared = torch.randn(5)
    tree = {"a": shared, "b": (shared, [1, "x"]), "o": OrderedDict(w=torch.eye(3).t())}
    tree["o"]._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    snapshot = Snapshot(torch.device("cpu"))
    first = snapshot.take(tree)
    addresses = [first["a"].data_ptr(), first["o"]["w"].data_ptr()]
    second = snapshot.take(tree)

    assert digest(second) == digest(tree)
    assert second["a"] is second["b"][0]
    assert second["o"]._metadata == {"": {"version": 1}}
    assert [second["a"].data_ptr(), second["o"]["w"].data_ptr()] == addresses


def test_a_reference_knows_when_a_tensor_was_written_to() -> None:
    """Small tensors are copied; large ones are held, and an in-place change is noticed."""
    small, large = torch.zeros(3), torch.zeros(100_000)
    held = Reference({"small": small, "large": large})
    small.add_(1)
    assert held.intact
    assert held.tree["small"].sum() == 0
    large[5] = 1
    assert not held.intact


def test_a_save_waits_for_the_one_before(tmp_path: Path, pair: Pair) -> None:
    """One save in flight: both are durable in the end, in order."""
    ours, _ = pair
    order: list[int] = []
    original = ours._write

    def recording(step: int, *rest: Any) -> None:
        original(step, *rest)
        order.append(step)

    ours._write = recording  # type: ignore[method-assign]
    for step in (1, 2, 3):
        ours.save(step, tmp_path / f"tmp.{step}", lambda: [("state.pt", {"w": torch.zeros(100)})], {}, copy=True)
    ours.drain()

    assert order == [1, 2, 3]


def test_the_loader_names_state_that_does_not_fit(tmp_path: Path) -> None:
    """A resume into another model fails with one sentence that names the part."""
    crew = run(make_spec(tmp_path / "run", "small_jobs:Net", 1, checkpoint=SELDOM), 1)
    spec = make_spec(tmp_path / "other", "small_jobs:Net", 1, checkpoint=SELDOM, params={"hidden": 7})
    with Crew(spec, 1, resume=crew.committed[-1]) as other:
        word = other.finish()[0]

    assert word["type"] == "failed"
    assert word["exception"] == "launcher.errors.CheckpointError"
    assert "state of 'model' does not fit" in word["message"]


UNPICKLABLE = """
import threading
import launcher, torch


class Holds:
    held = 0

    def state_dict(self):
        return {"lock": self.held}

    def load_state_dict(self, state):
        pass


run = launcher.attach()
holds = Holds()
run.register(model=torch.nn.Linear(2, 2), holds=holds)
for step in run.steps(5):
    holds.held = threading.Lock()
    run.step()
"""


def test_a_state_that_cannot_be_pickled_is_not_tried_again(tmp_path: Path) -> None:
    """The failure is told as one that no other try mends, and the last save is given up at once, not after minutes."""
    (tmp_path / "train.py").write_text(UNPICKLABLE)
    with Crew(make_spec(tmp_path / "run", "train.py", 1, kind="script", code_dir=str(tmp_path)), 1) as crew:
        word = crew.finish()[0]

    assert (word["type"], word["saved"]) == ("finished", False)
    (failed,) = crew.messages("save_failed")
    assert (failed["permanent"], failed["last"], failed["errno"]) == (True, True, None)
    assert "lock" in failed["error"]
