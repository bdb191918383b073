"""Commits with injected failures, damaged checkpoints, garbage, claims."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from pathlib import Path

import pytest

from launcher.errors import CheckpointError, RunDirError
from launcher.node.checkpoints import claims, committed, trash
from launcher.node.checkpoints.claims import Claim
from launcher.node.checkpoints.committed import Shard
from launcher.node.leader.verify import Proof
from launcher.run import files as run_files
from launcher.run.manifest import hash_file, new_hash, read_manifest, why_damaged
from launcher.run.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.checkpoints.mkdir()
    claims.claim_attempt(paths, host="h")
    return paths


def hash_bytes(data: bytes) -> str:
    """The digest that the manifest of a checkpoint has of a file with these bytes."""
    made = new_hash()
    made.update(data)
    return str(made.hexdigest())


def write(paths, step, *, attempt=0, round_=0, ranks=2, text="x"):
    """What workers leave behind: durable shards in the temporary folder."""
    tmp = paths.checkpoint_tmp(attempt, round_, step)
    tmp.mkdir()
    shards = []
    for rank in range(ranks):
        data = f"{text} {step} {rank}".encode()
        (tmp / f"rank-{rank}").write_bytes(data)
        shards.append(
            Shard(rank, [{"name": f"rank-{rank}", "size": len(data), "hash": hash_bytes(data)}], meta={"step": step})
        )
    return shards


def commit(paths, step, shards, *, attempt=0, claim=None, round_=0):
    return committed.commit_checkpoint(
        paths,
        step=step,
        claim=claim or Claim(attempt),
        round_=round_,
        world_size=len(shards),
        shards=shards,
        reason="interval",
    )


def test_a_commit_holds_what_the_manifest_says(paths):
    """Folder renamed, manifest inside with sizes, hashes and ranks; it verifies."""
    done = commit(paths, 5, write(paths, 5))

    assert done.path == paths.checkpoint(5)
    assert why_damaged(done.path) is None
    manifest = read_manifest(done.path)
    assert [f["rank"] for f in manifest["files"]] == [0, 1]
    assert (manifest["step"], manifest["world_size"], manifest["bytes"]) == (5, 2, done.bytes)
    assert manifest["meta"]["1"] == {"step": 5}
    assert committed.newest_good(paths).step == 5


def test_files_in_subfolders_are_committed_too(paths):
    """A directory filled by any saver (DCP, FSDP) is one shard with paths."""
    tmp = paths.checkpoint_tmp(0, 0, 3)
    (tmp / "model").mkdir(parents=True)
    (tmp / "model" / "part").write_bytes(b"abc")
    commit(paths, 3, [Shard(0, [{"name": "model/part", "size": 3, "hash": hash_bytes(b"abc")}])])

    assert why_damaged(paths.checkpoint(3)) is None


def dying_after(calls):
    """Have this process end, as SIGKILL would end it, at its ``calls``-th write, fsync, rename or mkdir."""
    left = [calls]

    def guard(real):
        def call(*args, **kwargs):
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return real(*args, **kwargs)

        return call

    for name in ("write", "fsync", "rename", "replace", "mkdir", "open"):
        setattr(os, name, guard(getattr(os, name)))


def save_durably(paths, step, attempt):
    """A whole save: shards written and fsynced as workers do, then the commit and the garbage collection."""
    tmp = paths.checkpoint_tmp(attempt, 0, step)
    os.mkdir(tmp)
    shards = []
    for rank in range(2):
        data = f"{step} {rank}".encode() * 50
        fd = os.open(tmp / f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, data)
        os.fsync(fd)
        os.close(fd)
        shards.append(Shard(rank, [{"name": f"rank-{rank}", "size": len(data), "hash": hash_bytes(data)}]))
    commit(paths, step, shards, attempt=attempt)
    committed.collect_garbage(paths, claim=Claim(attempt), keep_last=2, keep_every_steps=None, good=step)


def test_a_writer_killed_anywhere_leaves_a_whole_checkpoint(paths, monkeypatch):
    """300 saves, each killed at another system call: what is resumed verifies and is at most one interval old."""
    monkeypatch.setattr(
        os, "fsync", lambda fd: None
    )  # a kill, no power cut: waiting for the disk 3000 times shows nothing
    save_durably(paths, 10, 0)
    good, finished = 10, 0
    for trial in range(300):
        claim = claims.claim_attempt(paths)
        trash.move_stale(paths, claim)
        pid = os.fork()
        if pid == 0:
            try:
                dying_after(trial % 33)
                save_durably(paths, good + 10, claim.attempt)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        finished += os.waitstatus_to_exitcode(status) == 0
        found = committed.newest_good(paths, damaged=lambda path, why: pytest.fail(f"{path} {why}"))
        assert found.step in (good, good + 10)
        good = found.step
    assert good > 100
    assert 0 < finished < 300


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_refusing_disk_leaves_the_old_one(paths, monkeypatch, number):
    """ENOSPC, a quota or EIO while the manifest is written: OSError, the older checkpoint stays the newest."""
    commit(paths, 1, write(paths, 1))
    shards = write(paths, 2)

    def refuse(fd):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_files.os, "fsync", refuse)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        commit(paths, 2, shards)

    assert caught.value.errno == number
    assert committed.committed_steps(paths) == [1]


def test_a_shard_that_is_not_as_reported_is_not_committed(paths):
    """A file that is missing or shorter than its rank said."""
    shards = write(paths, 2)
    (paths.checkpoint_tmp(0, 0, 2) / "rank-1").write_bytes(b"")

    with pytest.raises(OSError, match="rank-1 has 0 bytes"):
        commit(paths, 2, shards)
    assert committed.newest_good(paths) is None


def test_damaged_ones_are_passed_over_and_told(paths):
    """Flipped byte, missing file, foreign manifest: each named, the newest good one found."""
    for step in (1, 2, 3, 4):
        commit(paths, step, write(paths, step))
    (paths.checkpoint(4) / "rank-0").write_bytes(b"X 4 0")
    (paths.checkpoint(3) / "rank-1").unlink()
    manifest = json.loads((paths.checkpoint(2) / "manifest.json").read_text())
    (paths.checkpoint(2) / "manifest.json").write_text(json.dumps({**manifest, "step": 9}))
    heard = []

    found = committed.newest_good(paths, damaged=lambda path, why: heard.append((path.name, why)))

    assert found.step == 1
    assert [name for name, _ in heard] == ["step-00000004", "step-00000003", "step-00000002"]
    assert "changed" in heard[0][1]
    assert "missing" in heard[1][1]


def test_a_good_checkpoint_of_that_step_is_kept_and_a_damaged_one_replaced(paths):
    """Saving a step again adds nothing to a good one; a damaged one is replaced."""
    commit(paths, 5, write(paths, 5, text="first"))
    commit(paths, 5, write(paths, 5, round_=1, text="again"), round_=1)
    assert (paths.checkpoint(5) / "rank-0").read_bytes() == b"first 5 0"

    (paths.checkpoint(5) / "rank-0").write_bytes(b"hurt")
    commit(paths, 5, write(paths, 5, round_=2, text="new"), round_=2)
    assert (paths.checkpoint(5) / "rank-0").read_bytes() == b"new 5 0"
    trash.empty(paths)
    assert not list(paths.checkpoints.glob("t*"))


def test_garbage_is_collected_but_never_the_good_one(paths):
    """keep_last of at least 2, multiples and what lies beyond the step just committed stay; the rest is deleted by `trash.empty`, later."""
    for step in (10, 20, 30, 40, 50):
        commit(paths, step, write(paths, step))

    committed.collect_garbage(paths, claim=Claim(0), keep_last=1, keep_every_steps=20, good=40)
    assert committed.committed_steps(paths) == [20, 30, 40, 50]
    (left,) = paths.checkpoints.glob(f"{trash.TRASH}*")
    assert left.name.endswith("step-00000010")

    committed.collect_garbage(paths, claim=Claim(0), keep_last=3, keep_every_steps=None, good=99)
    assert committed.committed_steps(paths) == [20, 30, 40, 50]


def test_a_link_to_nothing_is_damage(paths):
    """What it led to was deleted: an older checkpoint is used, at once. It was taken for a file system that does not answer."""
    commit(paths, 10, write(paths, 10))
    commit(paths, 20, write(paths, 20))
    part = paths.checkpoint(20) / "rank-0"
    part.rename(paths.root / "elsewhere")
    part.symlink_to(paths.root / "elsewhere")
    assert committed.newest_good(paths).step == 20

    (paths.root / "elsewhere").unlink()
    heard = []
    assert committed.newest_good(paths, damaged=lambda path, why: heard.append(why)).step == 10
    assert heard == ["rank-0 is a link to nothing"]


def test_a_second_folder_of_a_step_goes_with_its_round(paths):
    """`save_dir` gives one where a step is saved already, by that very name: it is not kept for ever."""
    paths.checkpoint_tmp(0, 0, 10).with_name(f"{paths.checkpoint_tmp(0, 0, 10).name}-again").mkdir(parents=True)

    trash.move_unfinished(paths, Claim(0))
    trash.empty(paths)

    assert list(paths.checkpoints.iterdir()) == []


def test_resubmit_from_a_step_sets_later_ones_aside(paths):
    """They are kept under another name and never resumed from."""
    for step in (10, 20, 30):
        commit(paths, step, write(paths, step))

    moved = committed.set_aside_beyond(paths, 10, claims.claim_attempt(paths))

    assert [p.name for p in moved] == ["aside.1.step-00000020", "aside.1.step-00000030"]
    assert committed.newest_good(paths).step == 10


def test_another_runs_checkpoint_must_verify(paths):
    """--fork: a good one is used, a damaged one is one sentence."""
    commit(paths, 7, write(paths, 7))
    assert committed.open_foreign(str(paths.checkpoint(7))).step == 7

    (paths.checkpoint(7) / "rank-0").unlink()
    with pytest.raises(CheckpointError, match="rank-0 is missing"):
        committed.open_foreign(str(paths.checkpoint(7)))


def test_attempts_are_claimed_once(paths):
    """Numbers go up; the newest is current; who claimed is noted."""
    assert claims.claim_attempt(paths, host="b", job_id="7") == Claim(1)
    assert claims.attempts(paths) == [0, 1]
    assert claims.is_current(paths, Claim(1))
    assert not claims.is_current(paths, Claim(0))
    assert claims.claimant(paths, 1)["host"] == "b"


def test_racing_claims_get_different_numbers(paths, monkeypatch):
    """Two leaders that both saw attempt 0 as the newest: mkdir lets one through, the other takes the next."""
    real, raced = claims.attempts, []

    def stale(p):
        numbers = real(p)
        if not raced:
            raced.append(True)
            (p.attempts / "1").mkdir()
        return numbers

    monkeypatch.setattr(claims, "attempts", stale)

    assert claims.claim_attempt(paths) == Claim(2)


def test_a_leader_takes_a_dead_ones_place_in_its_attempt(paths):
    """Of the same life, it claims leader-K of that attempt and takes away what was being written; the older one is stale, and says so."""
    first = claims.claim_attempt(paths, life="7.0")
    shards = write(paths, 10, attempt=first.attempt)
    second = claims.claim_takeover(paths, life="7.0", host="h")
    third = claims.claim_takeover(paths, life="7.0")
    assert (second, third) == (Claim(first.attempt, 1), Claim(first.attempt, 2))
    assert [claims.is_current(paths, claim) for claim in (first, second, third)] == [False, False, True]

    trash.move_stale(paths, third)
    with pytest.raises(FileNotFoundError):  # the rename finds nothing, also where the check was passed before
        commit(paths, 10, shards, claim=first)
    again = write(paths, 10, attempt=third.attempt, round_=1)
    with pytest.raises(claims.StaleError, match="attempt 1, leader 1 is over"):
        commit(paths, 10, again, claim=second, round_=1)
    assert commit(paths, 10, again, claim=third, round_=1).step == 10

    claims.depose(paths, third.attempt)
    assert not claims.is_current(paths, third)
    assert claims.claim_takeover(paths, life="7.1") == Claim(2)


def test_two_leaders_cannot_take_the_same_place(paths, monkeypatch):
    """Both saw that nobody had: mkdir lets one through, the other takes the next."""
    claims.claim_attempt(paths, life="7.0")
    monkeypatch.setattr(claims, "_takeovers", lambda inside: [])
    assert [claims.claim_takeover(paths, life="7.0").leader for _ in range(2)] == [1, 2]


def test_a_stale_attempt_can_neither_commit_nor_delete(paths):
    """A newer claim: the old leader's commit fails, its garbage collection does nothing."""
    for step in (1, 2, 3):
        commit(paths, step, write(paths, step))
    shards = write(paths, 4)
    claims.claim_attempt(paths)

    with pytest.raises(OSError, match="attempt 0 is over") as caught:
        commit(paths, 4, shards)
    assert caught.value.errno == errno.ESTALE
    committed.collect_garbage(paths, claim=Claim(0), keep_last=2, keep_every_steps=None, good=3)
    assert committed.committed_steps(paths) == [1, 2, 3]


def test_a_stale_commit_that_passed_its_check_finds_nothing_to_rename(paths, monkeypatch):
    """The check and the newer claim race: the new leader has taken the temporary folder away, the rename fails."""
    shards = write(paths, 4)
    monkeypatch.setattr(claims, "is_current", lambda p, claim: trash.move_stale(p, claims.claim_attempt(p)) or True)

    with pytest.raises(FileNotFoundError):
        commit(paths, 4, shards)
    assert committed.committed_steps(paths) == []


@pytest.mark.parametrize("seen", ["nothing", "damaged"])
def test_a_stale_commit_that_passed_its_check_leaves_the_newer_ones_alone(paths, monkeypatch, seen):
    """The newer attempt commits the same step between the stale one's check and its rename: the newer one's stays, as is."""
    if seen == "damaged":
        commit(paths, 4, write(paths, 4))
        (paths.checkpoint(4) / "rank-0").write_bytes(b"hurt")
    shards = write(paths, 4, round_=1)

    def checked(p, claim):
        monkeypatch.setattr(claims, "is_current", lambda p, claim: True)
        newer = claims.claim_attempt(p).attempt
        commit(p, 4, write(p, 4, attempt=newer, text="newer"), attempt=newer)
        return True

    monkeypatch.setattr(claims, "is_current", checked)
    with pytest.raises(OSError, match="step 4 has been saved by a newer leader"):
        commit(paths, 4, shards, round_=1)

    assert (paths.checkpoint(4) / "rank-0").read_bytes() == b"newer 4 0"
    assert committed.newest_good(paths).step == 4


def test_a_damaged_one_that_a_newer_attempt_has_replaced_is_put_back(paths, monkeypatch):
    """The stale leader saw a damaged checkpoint; what it finds there when it takes it away is the newer attempt's."""
    commit(paths, 4, write(paths, 4))
    (paths.checkpoint(4) / "rank-0").write_bytes(b"hurt")
    shards, real = write(paths, 4, round_=1), committed.write_atomic

    def replaced(*args):
        monkeypatch.setattr(committed, "write_atomic", real)
        newer = claims.claim_attempt(paths).attempt
        commit(paths, 4, write(paths, 4, attempt=newer, text="newer"), attempt=newer)
        real(*args)

    monkeypatch.setattr(committed, "write_atomic", replaced)
    with pytest.raises(OSError, match="attempt 0 is over"):
        commit(paths, 4, shards, round_=1)

    assert (paths.checkpoint(4) / "rank-0").read_bytes() == b"newer 4 0"


def test_a_stale_garbage_collection_that_passed_its_check_deletes_nothing(paths, monkeypatch):
    """A newer attempt is claimed between the check and the deletion: every checkpoint is there when it looks."""
    for step in (1, 2, 3):
        commit(paths, step, write(paths, step))
    answers = iter([True])
    monkeypatch.setattr(claims, "is_current", lambda p, claim: next(answers, False))
    claims.claim_attempt(paths)

    committed.collect_garbage(paths, claim=Claim(0), keep_last=2, keep_every_steps=None, good=3)

    assert committed.committed_steps(paths) == [1, 2, 3]


def test_a_deletion_that_was_not_yet_allowed_is_undone(paths):
    """A leader killed between moving a checkpoint out of sight and its check: the next attempt finds it in place."""
    commit(paths, 1, write(paths, 1))
    os.rename(paths.checkpoint(1), paths.checkpoints / "leaving.0.step-00000001")

    trash.move_stale(paths, claims.claim_attempt(paths))

    assert committed.newest_good(paths).step == 1
    assert [p.name for p in paths.checkpoints.iterdir()] == ["step-00000001"]


def test_a_stale_attempt_sets_nothing_aside(paths):
    """`resubmit --from` of an older attempt: checkpoints beyond that step may be the newer one's."""
    commit(paths, 9, write(paths, 9))
    claims.claim_attempt(paths)

    assert committed.set_aside_beyond(paths, 1, Claim(0)) == []
    assert committed.committed_steps(paths) == [9]


def test_a_new_attempt_takes_away_what_older_ones_were_writing(paths):
    """tmp folders of older claims and unfinished deletions go; committed ones stay."""
    commit(paths, 1, write(paths, 1))
    write(paths, 2)
    claim = claims.claim_attempt(paths)
    write(paths, 3, attempt=claim.attempt)
    (paths.checkpoints / "trash.1.2.step-00000000").mkdir()

    trash.move_stale(paths, claim)
    trash.empty(paths)

    assert sorted(p.name for p in paths.checkpoints.iterdir()) == ["step-00000001"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_disk_that_does_not_answer_is_no_newer_attempt(paths, away, number):
    """NFS says ESTALE behind a server's failover: the error is the disk's, not that this attempt is over."""
    shards = write(paths, 1)
    away.refuse(paths.attempts, number)

    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        commit(paths, 1, shards)
    assert not isinstance(caught.value, claims.StaleError)
    away.come_back()
    assert commit(paths, 1, shards).step == 1  # what the ranks have written is there still


def test_a_good_checkpoint_that_cannot_be_read_is_not_replaced(paths, away):
    """The same step is saved again, and the one that is there cannot be compared: it stays."""
    commit(paths, 5, write(paths, 5, text="first"))
    shards = write(paths, 5, round_=1, text="again")
    away.refuse(paths.checkpoint(5) / "rank-0")

    with pytest.raises(OSError, match="Input/output"):
        commit(paths, 5, shards, round_=1)
    away.come_back()
    assert (paths.checkpoint(5) / "rank-0").read_bytes() == b"first 5 0"


def test_a_commit_is_done_behind_an_error_too(paths, monkeypatch):
    """The rename was made and the error came after it: the next try finds the checkpoint."""
    shards, real = write(paths, 5), os.fsync
    failing = [True]

    def rename(source, target, rename=os.rename):
        rename(source, target)
        monkeypatch.setattr(os, "fsync", lambda fd: real(fd) if not failing else failing.clear() or os.close(-1))

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="Bad file descriptor"):
        commit(paths, 5, shards)

    assert commit(paths, 5, shards).path == paths.checkpoint(5)
    assert committed.newest_good(paths).step == 5


def test_no_checkpoint_is_deleted_by_who_does_not_know_that_it_may(paths, away, monkeypatch):
    """The check behind the move out of sight cannot be made: every checkpoint is put back."""
    for step in (1, 2, 3):
        commit(paths, step, write(paths, step))
    real, looks = claims.is_current, []

    def once(p, claim):
        looks.append(claim)
        if len(looks) == 2:
            away.refuse(paths.attempts, times=1)
        return real(p, claim)

    monkeypatch.setattr(claims, "is_current", once)
    with pytest.raises(OSError, match="Input/output"):
        committed.collect_garbage(paths, claim=Claim(0), keep_last=2, keep_every_steps=None, good=3)

    assert len(looks) == 2
    assert [p.name for p in sorted(paths.checkpoints.iterdir())] == [f"step-0000000{n}" for n in (1, 2, 3)]


def test_what_cannot_be_put_back_is_not_deleted(paths, away):
    """A deletion that was not yet allowed is undone by the next attempt, which tries again when the disk refuses that."""
    commit(paths, 1, write(paths, 1))
    leaving = paths.checkpoints / "leaving.0.step-00000001"
    os.rename(paths.checkpoint(1), leaving)
    away.refuse(leaving, times=1)
    claim = claims.claim_attempt(paths)

    with pytest.raises(OSError, match="Input/output"):
        trash.move_stale(paths, claim)
    trash.move_stale(paths, claim)

    assert committed.newest_good(paths).step == 1


def test_what_an_older_attempt_was_writing_is_taken_away_or_it_is_said(paths, away):
    """Its rename would still commit it: an attempt does not begin before that is gone."""
    write(paths, 2)
    claim = claims.claim_attempt(paths)
    away.refuse(paths.checkpoint_tmp(0, 0, 2), times=1)

    with pytest.raises(OSError, match="Input/output"):
        trash.move_stale(paths, claim)
    trash.move_stale(paths, claim)
    trash.empty(paths)

    assert list(paths.checkpoints.iterdir()) == []


def test_a_run_directory_that_cannot_be_written_is_one_sentence(tmp_path):
    """A file where attempts/ should be."""
    (tmp_path / "attempts").write_text("")

    with pytest.raises(RunDirError, match="cannot be written"):
        claims.claim_attempt(RunPaths(tmp_path))


def test_reading_stops_when_the_round_is_over(paths):
    """A proof that nobody waits for any more reads no further than the piece it is at, and accuses nobody."""
    commit(paths, 1, write(paths, 1))

    async def halted():
        asked = threading.Event()

        async def blocking(work):
            await asyncio.to_thread(asked.wait)
            return work()

        proof = Proof(committed.CommittedCheckpoint(1, paths.checkpoint(1)), blocking, lambda: None)
        part = next(p for p in sorted(paths.checkpoint(1).iterdir()) if p.name != "manifest.json")
        part.write_bytes(b"?" * part.stat().st_size)
        over = asyncio.ensure_future(proof.halt())
        await asyncio.sleep(0)
        asked.set()
        await over
        return proof.pending, proof.damage

    assert asyncio.run(halted()) == (False, None)
    with pytest.raises(InterruptedError):
        hash_file(paths.checkpoint(1) / "manifest.json", halted=lambda: True)
