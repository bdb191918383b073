"""Commits of checkpoints: side by side, retried, given up at the end of a stop's time; and what a run goes on from, in virtual time."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest
from test_leader_scripts import scripts

from launcher.node.checkpoints import committed
from launcher.node.leader import saving, verify
from launcher.run import manifest


def once(act):
    """A hook that acts on the first rank that comes by."""
    left = [act]
    return [lambda worker: left and left.pop()(worker)]


def hurt(w, *steps):
    """Change one byte of each of these checkpoints, as a bad disk does."""
    for step in steps:
        part = w.paths.checkpoint(step) / "rank-00001"
        part.write_bytes(bytes([part.read_bytes()[0] ^ 1]) + part.read_bytes()[1:])


def seconds_to_leave(w, virtual, ready):
    """Preempt the run once ``ready``; its ending, and how long the leader took."""

    async def main():
        clock, began = asyncio.get_running_loop().time, []

        async def script():
            await w.until(ready)
            began.append(clock())
            w.signal()

        return await w.attempt_once(script), clock() - began[0]

    return virtual(main())


def slow_commits(monkeypatch, seconds):
    """Each commit takes the next of these, of a disk that is slow."""
    ask = saving.until_answered

    async def answered(blocking, work, root, **how):
        await asyncio.sleep(next(seconds))
        return await ask(blocking, work, root, **how)

    monkeypatch.setattr(saving, "until_answered", answered)


def refused_commits(w, monkeypatch, number, times=10**9):
    """The disk refuses commits with this error."""
    left, commit = [times], committed.commit_checkpoint

    def refuse(*args, **how):
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(number, os.strerror(number), str(w.paths.checkpoints))
        return commit(*args, **how)

    monkeypatch.setattr(committed, "commit_checkpoint", refuse)


def begun(w, step, round_=0):
    """Whether a rank has come so far."""
    return lambda: any(x.entered >= step and x.round == round_ for n in w.nodes for x in n.workers)


def test_the_checkpoint_told_last_is_the_newest(world, virtual, monkeypatch):
    """A commit may take longer than the steps to the next one, which overtakes it: the older one is not told after it."""
    slow_commits(monkeypatch, iter([0.0, 0.0, 5.0, 0.0]))
    w = world(nodes=1, checkpoint={"interval_steps": 10})

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["step"] for e in w.events("saved")] == [10, 20, 40]
    assert w.paths.checkpoint(30).is_dir()


def test_a_stops_checkpoint_does_not_wait_for_older_ones(world, virtual, monkeypatch):
    """Four commits of 60 s are under way when the job is preempted: the stop's own begins at once, and is there in time."""
    slow_commits(monkeypatch, iter([60.0] * 99))
    w = world(nodes=1, checkpoint={"interval_steps": 10}, site={"grace_s": 60})
    w.step_s, w.total_steps = 1.5, 4000
    ending, took_s = seconds_to_leave(w, virtual, begun(w, 104))

    assert ending.state == "requeued"
    assert took_s < 70
    assert w.events("saved")[-1]["step"] == w.events("agreed")[0]["step"]


def test_after_a_step_back_every_save_counts_anew(world, virtual):
    """Steps that were committed and are gone, or damaged, are not taken for saved: else what is made again is lost again."""
    w = world(nodes=1, checkpoint={"interval_steps": 10, "keep_last": 2, "keep_every_steps": 40})
    w.total_steps = 100
    w.hooks[85] = once(lambda worker: (hurt(w, 70, 80), worker.die(9)))
    w.hooks[65] = [lambda worker: worker.round == 1 and worker.rank == 0 and worker.die(9)]

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["resume_step"] for e in w.events("round_started")] == [None, 40, 60]


def test_a_preemption_after_a_step_back_saves(world, virtual):
    """The agreed step was committed before, and deleted since: it is saved again."""
    w = world(nodes=1, checkpoint={"interval_steps": 10, "keep_last": 2, "keep_every_steps": 40}, site={"grace_s": 60})
    w.total_steps, w.step_s = 100, 1.0
    w.hooks[85] = once(lambda worker: (hurt(w, 70, 80), worker.die(9)))
    ending, _ = seconds_to_leave(w, virtual, begun(w, 60, round_=1))
    (agreed,), (stopped,) = w.events("agreed"), w.events("stopped")

    assert (ending.state, stopped["lost_steps"]) == ("requeued", 0)
    assert w.events("saved")[-1]["step"] == agreed["step"]


def test_a_last_checkpoint_that_is_gone_is_made_again(world, virtual):
    """It was committed, then moved away, and a rank died: "completed" means that it is there."""
    w = world(nodes=1, checkpoint={"interval_steps": 10})

    class Dying(w.worker_class):
        async def save(self, step):
            await super().save(step)
            if step == 40 and self.round == 0:
                await w.until(lambda: any(e["step"] == 40 for e in w.events("saved")))
                if self.rank == 0:
                    os.rename(w.paths.checkpoint(40), w.paths.root / "moved")
                    self.die(9)
                await asyncio.sleep(100)

    w.worker_class = Dying

    assert virtual(w.attempt_once()).state == "completed"
    assert w.paths.checkpoint(40).is_dir()


def test_saves_take_as_long_as_they_take(world, virtual):
    """2 TB that rank 0 gathers at 1 GB/s: 33 minutes. A save that was begun is not given up by the clock."""
    w = world(nodes=1, checkpoint={"interval_steps": 20}, restart={"hang_detection": False})
    w.save_s = 2000.0

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["step"] for e in w.events("saved")] == [20, 40]


@pytest.mark.parametrize("fails", [False, True], ids=["while it trains", "while a round ends"])
def test_a_proof_is_waited_for_until_the_stops_time_is_over(world, virtual, monkeypatch, fails):
    """A large checkpoint is still being compared when the job is preempted: the job is handed back in time, without what builds on it."""
    monkeypatch.setattr(committed, "_SMALL_BYTES", 0)

    async def slowly(blocking, work, root, *, enough, **how):
        end = asyncio.get_running_loop().time() + 5000
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(1)
            if enough():
                raise InterruptedError

    monkeypatch.setattr(verify, "until_answered", slowly)
    w = world(nodes=1, checkpoint={"interval_steps": 10}, site={"grace_s": 60})
    w.total_steps, w.step_s = 4000, 1.0
    w.hooks[25] = once(lambda worker: worker.die(9))
    if fails:  # and its end waits for the commit of step 30
        w.hooks[33] = once(lambda worker: worker.die(9))
    ends = lambda: w.events("worker_failed") and w.leader._board.round.number == 1 and w.leader._board.round.ending  # noqa: E731
    ending, took_s = seconds_to_leave(w, virtual, ends if fails else begun(w, 31, round_=1))

    assert ending.state == "requeued"
    assert took_s < 95  # of GraceTime and KillWait
    assert max(e["step"] for e in w.events("saved")) == 20


@pytest.mark.parametrize("interval", [10, 1000])
def test_a_stop_ends_in_time_although_the_last_commit_is_refused(world, virtual, monkeypatch, interval):
    """All ranks have finished, and the folder does not answer: the run goes on in another attempt, and is not "completed" without its end."""
    w = world(nodes=1, checkpoint={"interval_steps": interval}, site={"grace_s": 60})
    w.step_s = 1.0
    refused_commits(w, monkeypatch, errno.EIO)
    done = lambda: w.leader._board.round is not None and w.leader._board.round.all_finished  # noqa: E731
    ending, took_s = seconds_to_leave(w, virtual, lambda: hasattr(w.leader, "_board") and done())

    assert ending.state == "requeued"
    assert took_s < 90


@pytest.mark.parametrize(("exit_s", "state"), [(0.0, "failed"), (200.0, "requeued")])
def test_a_stopped_script_without_its_last_checkpoint_is_not_completed(world, virtual, exit_s, state):
    """The agreed step was its last one, its save failed, and its processes end at once or late (NCCL, loaders)."""
    w = scripts(world, site={"grace_s": 300})
    w.step_s, w.exit_s = 1.0, exit_s

    class Full(w.worker_class):
        async def save(self, step):
            self.say("save_begun", step=step)
            self.say("save_failed", step=step, error="No space left on device", errno=errno.ENOSPC, last=True)

        def say(self, type_, **values):
            super().say(type_, **values | ({"saved": False} if type_ == "finished" else {}))

    w.worker_class = Full
    ending, _ = seconds_to_leave(w, virtual, begun(w, 40))

    assert ending.state == state


def test_a_script_that_ends_by_os_exit_has_done_what_it_saved(world, virtual, monkeypatch):
    """Its report of the last steps never came, its checkpoint did, and is being committed: that is its end, not step 37."""
    slow_commits(monkeypatch, iter([0.2] * 99))
    w = scripts(world, checkpoint={"interval_steps": 10})

    class Abrupt(w.worker_class):
        def say(self, type_, **values):
            if type_ != "finished" and not (type_ == "progress" and values["step"] >= 38):
                super().say(type_, **values)

    w.worker_class = Abrupt
    ending = virtual(w.attempt_once())

    assert (ending.state, ending.reason) == ("completed", "All 40 steps are done.")
    assert w.events("saved")[-1]["step"] == 40
    assert not w.events("save_failed")


def test_a_script_that_ends_while_it_saves_is_not_completed(world, virtual):
    """os._exit took what wrote the last checkpoint along: the run says so, and its newest checkpoint is an older one."""
    w = scripts(world, checkpoint={"interval_steps": 10})

    class Abrupt(w.worker_class):
        async def save(self, step):
            if step < 40:
                return await super().save(step)
            self.say("save_begun", step=step)

        def say(self, type_, **values):
            if type_ != "finished":
                super().say(type_, **values)

    w.worker_class = Abrupt
    ending = virtual(w.attempt_once())

    assert (ending.state, w.events("saved")[-1]["step"]) == ("failed", 30)
    assert ending.reason.startswith("The last checkpoint could not be written: not every rank saved")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_manifest_that_finds_no_room_is_tried_again(world, virtual, monkeypatch, number):
    """The ranks' parts are there and a few kilobytes are missing: room comes, and nothing is lost."""
    w = world(nodes=1, checkpoint={"interval_steps": 1000})
    refused_commits(w, monkeypatch, number, times=30)

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["step"] for e in w.events("saved")] == [40]
    assert len([e for e in w.events("warning") if "cannot be committed" in e["text"]]) == 1


def test_damaged_checkpoints_beyond_take_no_good_ones_place(world, virtual):
    """After a step back keep_last counts what the run can go on from: two good ones are always kept."""
    w = world(nodes=1, checkpoint={"interval_steps": 10, "keep_last": 2})
    w.total_steps, kept = 100, {}
    w.hooks[75] = once(lambda worker: (hurt(w, 60, 70), worker.die(9)))
    for step in (35, 55):
        w.hooks[step] = [
            lambda worker: worker.round == 1 and kept.update({worker.begun: committed.committed_steps(w.paths)})
        ]

    assert virtual(w.attempt_once()).state == "completed"
    assert kept == {35: [20, 30, 60, 70], 55: [40, 50, 60, 70]}


def test_without_xxhash_nothing_is_begun_anew(world, virtual, monkeypatch):
    """Another image lacks it: the checkpoints cannot be verified there, which is no damage. They stay, and the sentence says what helps."""
    w = world(nodes=1, checkpoint={"interval_steps": 10}, site={"grace_s": 60})
    w.step_s = 1.0
    seconds_to_leave(w, virtual, begun(w, 25))
    kept = committed.committed_steps(w.paths)
    monkeypatch.setattr(manifest, "HASH_NAME", "sha256")
    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert "can only be verified with xxhash, which this Python lacks" in ending.reason
    assert (committed.committed_steps(w.paths), w.events("checkpoint_damaged")) == (kept, [])


def test_a_fork_whose_origin_is_gone_has_an_outcome(world, virtual, tmp_path):
    """It waited in the queue while the other run deleted the checkpoint: one sentence, on file."""
    w = world(nodes=1, resume=str(tmp_path / "step-00000010"))

    assert virtual(w.attempt_once()).state == "failed"
    assert "step-00000010 cannot be used: it is missing; another attempt would find the same." in w.outcome["reason"]
