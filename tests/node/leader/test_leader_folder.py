"""The run's folder does not answer for a moment, or for good: no error of a file system decides over a run."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from acts import stop_at
from an_event import an_event

from launcher.errors import RunDirError
from launcher.node.allocation.allocation import SignalMeaning
from launcher.node.checkpoints import claims, committed
from launcher.run import event_lines
from launcher.run.asking import PATIENCE_S


def resumed(w):
    return [e["resume_step"] for e in w.events("round_started")]


def steps(w):
    return [e["step"] for e in w.events("saved")]


def trained(world, virtual, **changes):
    """A run whose first attempt was preempted at step 25, with checkpoints of 10, 20 and 25."""
    w = world(**{"checkpoint": {"interval_steps": 10, "keep_last": 9}, "site": {"grace_s": 20}, **changes})
    assert virtual(w.attempt_once(stop_at(w, 25))).state == "requeued"
    w.allocation.said.clear()
    return w


def dies_at(w, step, before=lambda: None):
    """Rank 1 dies once at ``step``."""
    left = [True]

    def hook(worker):
        if left and worker.rank == 1:
            left.clear()
            before()
            worker.die(9)

    w.hooks[step] = [hook]


def test_agents_are_heard_while_old_saves_are_deleted(world, virtual, monkeypatch):
    """Terabytes that a killed save has left take minutes to delete, and agents give up after one: the attempt does not wait for that."""
    w = trained(world, virtual)
    stale = w.paths.checkpoint_tmp(0, 0, 7)
    stale.mkdir(parents=True)
    ended, deleted, remove = threading.Event(), queue.SimpleQueue(), shutil.rmtree

    def slow(path, **how):
        if path.name.endswith(stale.name) and threading.current_thread() is not threading.main_thread():
            deleted.put(ended.wait(200))
        remove(path, **how)

    monkeypatch.setattr(shutil, "rmtree", slow)

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert not stale.exists()
    ended.set()
    assert deleted.get(timeout=60) is True


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
def test_attempts_that_cannot_be_listed_are_no_newer_attempt(world, virtual, away, number):
    """The look every two seconds fails for a minute, and once in a commit: trained to the end in this attempt, nothing lost."""
    w = world(checkpoint={"interval_steps": 10})
    w.step_s, w.total_steps = 2.0, 40
    w.hooks[15] = [lambda worker: away.refuse(w.paths.attempts, number, times=9)]
    w.hooks[30] = [lambda worker: away.refuse(w.paths.attempts, number, times=1)]

    ending = virtual(w.attempt_once())

    assert len(away.refused) > 30
    assert (ending.state, resumed(w), steps(w)) == ("completed", [None], [10, 20, 30, 40])
    assert not w.events("save_failed")


def test_a_commit_that_could_not_be_made_is_tried_again(world, virtual, away):
    """A stop whose save cannot be committed for some seconds of its grace: 0 steps lost."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 20})

    def refuse(worker):
        away.refuse(w.paths.attempts, errno.ESTALE, times=6)

    w.hooks[15] = [refuse]
    ending = virtual(w.attempt_once(stop_at(w, 15)))

    (stopped,) = w.events("stopped")
    assert ending.state == "requeued"
    assert stopped["lost_steps"] == 0
    assert steps(w) == [stopped["step"]]


def test_a_commit_gives_way_to_the_deadline(world, virtual, away):
    """The folder stays away: the job is handed back in time all the same, from the older checkpoint, which is there."""
    w = world(checkpoint={"interval_steps": 10}, site={"grace_s": 20})
    w.hooks[15] = [lambda worker: away.refuse(w.paths.attempts)]
    at = []

    async def script():
        await stop_at(w, 15)()
        at.append(w.leader._board.now())

    async def attempt():
        ending = await w.attempt_once(script)
        return ending, w.leader._board.now() - at[0]

    ending, took_s = virtual(attempt())

    assert ending.state == "requeued"
    assert took_s < w.spec.site.grace_s + w.spec.site.kill_wait_s
    away.come_back()
    assert committed.newest_good(w.paths).step == 10


@pytest.mark.parametrize("what", ["checkpoints", "checkpoints/step-00000025/manifest.json",
                                  "checkpoints/step-00000025/rank-00001", "events.jsonl", "attempts", "outcome.json"])  # fmt: skip
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOTCONN])
def test_an_attempts_start_waits_for_the_folder(world, virtual, away, what, number):
    """Some looks fail: resumed from the newest checkpoint, as if nothing had been."""
    w = trained(world, virtual)
    away.refuse(w.paths.root / what, number, times=5)

    ending = virtual(w.attempt_once())

    assert len(away.refused) == 5
    assert (ending.state, resumed(w)) == ("completed", [None, 25])
    assert not w.events("checkpoint_damaged")


@pytest.mark.parametrize("what", ["checkpoints", "events.jsonl", "attempts", "outcome.json"])
def test_an_attempt_that_cannot_begin_claims_nothing_of_the_run(world, virtual, away, what):
    """For ever: one sentence after minutes, no round, no outcome, the checkpoints as they were."""
    w = trained(world, virtual)
    away.refuse(w.paths.root / what, errno.EIO)

    with pytest.raises(RunDirError, match="does not answer"):
        virtual(w.attempt_once())
    away.come_back()

    assert resumed(w) == [None]
    assert w.outcome is None
    assert committed.committed_steps(w.paths) == [10, 20, 25]


@pytest.mark.parametrize("may", [True, False])
def test_checkpoints_that_stay_unreadable_are_not_none(world, virtual, away, may):
    """Behind a failure: not from scratch, but requeued with that sentence; failed where the run may not be requeued."""
    w = world(checkpoint={"interval_steps": 10, "keep_last": 9}, restart={"requeue": may})
    dies_at(w, 25, lambda: away.refuse(w.paths.checkpoints))
    ending = virtual(w.attempt_once())
    away.come_back()

    assert ending.state == ("requeued" if may else "failed")
    assert "the run's folder did not answer for 5 minutes" in ending.reason.lower()
    assert resumed(w) == [None]
    assert committed.newest_good(w.paths).step == 20
    assert not w.events("node_lost")  # the leader's loop went on: heartbeats were answered
    w.spec = replace(w.spec, restart=replace(w.spec.restart, requeue=True))
    w.paths.outcome.unlink(missing_ok=True)
    w.hooks.clear()
    assert virtual(w.attempt_once()).state == "completed"
    assert resumed(w) == [None, 20]


def test_a_stop_ends_the_wait_for_the_folder(world, virtual, away):
    """Preempted while the checkpoints cannot be asked for: handed back within seconds, as preempted."""
    w = world(checkpoint={"interval_steps": 10}, site={"grace_s": 20})
    dies_at(w, 25, lambda: away.refuse(w.paths.checkpoints))
    took = []

    async def script():
        await w.until(lambda: bool(w.events("warning")))
        began = w.leader._board.now()
        w.signal()
        await w.until(lambda: bool(w.allocation.said))
        took.append(w.leader._board.now() - began)

    ending = virtual(w.attempt_once(script))

    assert (ending.state, "preempted" in ending.reason) == ("requeued", True)
    assert took[0] < 5
    assert resumed(w) == [None]


def test_what_was_set_aside_once_is_not_again(world, virtual, away):
    """`resubmit --from 10` applies to one attempt; a history that cannot be read at the next one's start is not a new one."""
    w = world(checkpoint={"interval_steps": 10, "keep_last": 9}, site={"grace_s": 20}, resume_step=10)
    event_lines.append(w.paths.events, an_event("submitted", attempt=None))
    assert virtual(w.attempt_once(stop_at(w, 25))).state == "requeued"
    away.refuse(w.paths.events, times=2)

    assert virtual(w.attempt_once()).state == "completed"
    assert resumed(w) == [None, 25]


def test_a_sweep_that_fails_is_no_fault_of_the_run(world, virtual, away):
    """What a round that failed was still writing cannot be listed: a new round, and a later sweep takes it away."""
    w = world(checkpoint={"interval_steps": 10})
    w.save_s = 1.0

    def half_saved():
        (w.paths.checkpoint_tmp(0, 0, 23)).mkdir()
        away.refuse(w.paths.checkpoints, times=1)

    dies_at(w, 23, half_saved)
    ending = virtual(w.attempt_once())

    assert len(away.refused) == 1
    assert (ending.state, resumed(w)) == ("completed", [None, 20])
    assert w.leftovers() == []


@pytest.mark.parametrize("others", [True, False])
def test_a_checkpoint_that_the_disk_has_lost_is_kept_and_passed_over(world, virtual, away, others):
    """EIO for ever from one file: after minutes the next older one is used. Without one: nothing is decided, nothing begins."""
    w = world(checkpoint={"interval_steps": 10 if others else 20, "keep_last": 9})
    dies_at(w, 25, lambda: away.refuse(w.paths.checkpoint(20) / "rank-00001"))
    ending = virtual(w.attempt_once())

    assert ending.state == ("completed" if others else "requeued")
    assert resumed(w) == ([None, 10] if others else [None])
    kept = "aside.0.step-00000020" if others else "step-00000020"
    assert sorted(p.name for p in (w.paths.checkpoints / kept).iterdir())[0] == "manifest.json"
    assert [Path(e["path"]).name for e in w.events("checkpoint_damaged")] == ["step-00000020"] * others


def test_a_large_checkpoint_that_cannot_be_read_at_once_is_sound(world, virtual, away, monkeypatch):
    """Read while the round runs already: an error that passes is no damage, and ends no round."""
    monkeypatch.setattr(committed, "_SMALL_BYTES", 0)
    w = world(checkpoint={"interval_steps": 10})
    w.step_s = 1.0
    dies_at(w, 25, lambda: away.refuse(w.paths.checkpoint(20) / "rank-00000", times=4))

    ending = virtual(w.attempt_once())

    assert any(said.endswith("rank-00000") for said in away.refused)
    assert (ending.state, resumed(w)) == ("completed", [None, 20])


def test_training_goes_on_while_the_folder_is_away(world, virtual, away):
    """Beyond everybody's patience, as long as little work is at risk: the saves are made up for."""
    w = world(checkpoint={"interval_min": 2.0})
    w.step_s, w.total_steps = 5.0, 300
    w.hooks[50] = [lambda worker: away.refuse(w.paths.attempts)]
    w.hooks[200] = [lambda worker: away.come_back()]  # after 750 s and more

    ending = virtual(w.attempt_once())

    assert (ending.state, resumed(w)) == ("completed", [None])
    assert len(away.refused) > PATIENCE_S
    assert steps(w)[-1] == 300


def test_too_much_work_at_risk_in_a_folder_that_is_away_is_requeued(world, virtual, away):
    """A full disk is the user's; a mount that is away on these nodes may be there on others."""
    w = world(checkpoint={"interval_min": 2.0}, restart={"max_at_risk_min": 12.0})
    w.step_s, w.total_steps = 5.0, 4000
    w.hooks[50] = [lambda worker: away.refuse(w.paths.attempts, errno.ESTALE)]

    ending = virtual(w.attempt_once())

    assert ending.state == "requeued"
    assert "does not answer" in ending.reason
    assert w.outcome is None


def test_a_request_that_cannot_be_asked_for_at_first_is_heard(world, virtual, away):
    """`launcher cancel` before this attempt; its file cannot be looked at for some seconds."""
    w = trained(world, virtual)
    w.paths.request.write_text("{}")
    away.refuse(w.paths.request, times=3)

    assert virtual(w.attempt_once()).state == "cancelled"


def test_a_request_that_cannot_be_asked_for_is_looked_for_longer(world, virtual, away):
    """USR2 and nothing to be seen for two minutes, since nothing can be: the minute of NFS's delay begins after that."""
    w = world(checkpoint={"interval_steps": 10})
    w.step_s, w.total_steps = 5.0, 400
    w.allocation.means = SignalMeaning("nothing")

    async def script():
        await w.until(lambda: any(x.entered >= 5 for n in w.nodes for x in n.workers))
        away.refuse(w.paths.request)
        w.paths.root.joinpath("asked").write_text("{}")
        w.signal("USR2")
        entered = w.find(0).entered
        await w.until(lambda: w.find(0).entered >= entered + 24)
        away.come_back()
        os.rename(w.paths.root / "asked", w.paths.request)

    assert virtual(w.attempt_once(script)).state == "cancelled"


def test_a_claim_that_was_made_behind_an_error_is_nobodys(world, virtual, away, monkeypatch):
    """The number is taken and its note cannot be written: the next number is claimed, by the same leader."""
    w = world()
    real = os.replace

    def replace(source, target):
        if not away.refused:
            away.refused.append(str(target))
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        return real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    w.attempt = 0  # the workers' folders are those of the attempt after it

    assert virtual(w.attempt_once()).state == "completed"
    assert away.refused[0].endswith("attempts/0/claim.json")
    assert claims.attempts(w.paths) == [0, 1]


def test_an_older_file_that_is_the_newest_to_be_seen_is_no_progress(world, virtual, away):
    """`checkpoint.watch`: the script's newest file cannot be looked at for a while; nothing was saved then, nor afterwards."""
    w = world(checkpoint={"watch": "ckpt/*", "interval_steps": 1000})
    w.step_s = 2.0
    (w.paths.root / "ckpt").mkdir()

    def write(worker):
        for name in ("1", "2"):
            (w.paths.root / "ckpt" / name).write_text("")
            os.utime(w.paths.root / "ckpt" / name, (int(name), int(name)))

    w.hooks[2] = [lambda worker: worker.rank or write(worker)]
    w.hooks[10] = [lambda worker: away.refuse(w.paths.root / "ckpt" / "2")]
    w.hooks[25] = [lambda worker: away.come_back()]

    assert virtual(w.attempt_once()).state == "completed"

    assert away.refused
    assert [Path(e["path"]).name for e in w.events("saved") if e["reason"] == "watch"] == ["2"]
