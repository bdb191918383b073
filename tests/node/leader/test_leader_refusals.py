"""A script that every rank ends by itself, and one failure of several ranks: told as one, tried no more than it needs."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from an_event import an_event

from launcher.run import event_lines
from launcher.run.spec import Work

USAGE = ["usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --lrr 3"]


def leaving(w, codes, *, spread_s=3.0, own=True, begun=None):
    """Scripts that end with ``codes[rank]`` (None: they go on) up to ``spread_s`` apart; not ``own``: by os._exit."""

    class Leaving(w.worker_class):
        async def main(self):
            if begun is not None and self.rank == 0:
                begun.append(asyncio.get_running_loop().time())
            self.say("hello", pid=1000 + self.rank)
            self.say("phase", name="script")
            await asyncio.sleep(spread_s * self.rank / self.group.size)
            code = codes[self.rank]
            if code is None:
                await asyncio.sleep(3600)
            self.done = True
            if own and code:
                self.say("failed", step=None, kind="exit", exit_code=code, message="", frames=[])
            self.node.exited(self, code, None, USAGE)

    return Leaving


def script(world, **changes):
    return world(work=Work(kind="script", target="train.py"), checkpoint={"enabled": False}, **changes)


def test_a_usage_error_is_tried_twice_ten_seconds_apart(world, virtual):
    """All ranks exit with code 2 at once: one more look, 10 s later; then failed, with the script's last line."""
    w, begun = script(world), []
    w.worker_class = leaving(w, [2, 2, 2, 2], begun=begun)

    ending = virtual(w.attempt_once())

    assert (ending.state, ending.exit_code) == ("failed", 8)
    assert ending.reason == (
        "All 4 ranks exited with code 2: train.py: error: unrecognized arguments: --lrr 3; the script ended itself in this"
        " way twice, before any progress."
    )
    assert len(w.events("round_started")) == 2
    assert 10.0 <= begun[1] - begun[0] <= 20.0
    assert w.events("victims") == []
    assert [r["rank"] for r in w.events("worker_failed")[0]["ranks"]] == [0, 1, 2, 3]
    assert w.events("excluded") == []


@pytest.mark.parametrize(
    ("codes", "own"), [([2, 2, 3, 2], True), ([2, 2, 2, 2], False), ([2, None, 2, 2], True), ([2, 0, 2, 2], True)]
)
def test_other_exits_are_restarted_as_ever(world, virtual, codes, own):
    """Codes that differ, os._exit, a rank that went on or one that finished: four rounds, without a pause between."""
    w, begun = script(world, restart={"max_restarts": 3}), []
    w.worker_class = leaving(w, codes, own=own, begun=begun)

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert "max_restarts" in ending.reason
    assert len(w.events("round_started")) == 4
    assert max(b - a for a, b in itertools.pairwise(begun)) < 8.0


def test_one_hiccup_is_no_refusal(world, virtual):
    """All ranks exit with code 1 once, and go on the second time: the run completes."""
    w = script(world)
    w.worker_class = leaving(w, [1, 1, 1, 1])

    async def recovers():
        await w.until(lambda: w.events("decision"))
        w.worker_class = leaving(w, [0, 0, 0, 0])

    assert virtual(w.attempt_once(recovers)).state == "completed"


def test_after_progress_an_exit_is_no_refusal(world, virtual):
    """The run has saved something since it was submitted: the exit may be the machine's fault, max_restarts decides."""
    w = script(world, restart={"max_restarts": 3})
    event_lines.append(w.paths.events, an_event("attempt_started", attempt=0, job_id="77"))
    event_lines.append(w.paths.events, an_event("saved", attempt=0, step=None, path="x", reason="watch"))
    w.worker_class = leaving(w, [2, 2, 2, 2])

    assert "max_restarts" in virtual(w.attempt_once()).reason
    assert len(w.events("round_started")) == 4


def test_a_person_who_submits_again_gets_two_looks(world, virtual):
    """Refusals of an earlier submission are forgiven, and so is its progress."""
    w = script(world)
    for type_ in ("saved", "submitted"):
        event_lines.append(w.paths.events, an_event(type_, attempt=None, step=None))
    w.worker_class = leaving(w, [2, 2, 2, 2])

    assert "twice" in virtual(w.attempt_once()).reason
    w.paths.outcome.unlink()
    event_lines.append(w.paths.events, an_event("submitted", attempt=None))

    assert "twice" in virtual(w.attempt_once()).reason
    assert len(w.events("round_started")) == 4


def test_a_cancel_is_heard_while_it_waits_to_look_again(world, virtual):
    """TERM in the ten seconds between: the run ends cancelled at once."""
    w, begun = script(world), []
    w.allocation.means = w.allocation.means.__class__("cancelled")
    w.worker_class = leaving(w, [2, 2, 2, 2], begun=begun)
    ended = []

    async def cancels():
        await w.until(lambda: w.events("decision"))
        ended.append(asyncio.get_running_loop().time())
        w.signal()
        await w.until(lambda: len(w.events("ended")) > 0)
        ended.append(asyncio.get_running_loop().time())

    assert virtual(w.attempt_once(cancels)).state == "cancelled"
    assert len(begun) == 1
    assert ended[1] - ended[0] < 5.0


def together(w, ranks, exception, message):
    """A hook: these ranks raise the same at one place; the others lose their peers."""

    def hook(worker):
        if worker.rank != ranks[0]:
            return
        group, own = worker.group, [w.find(rank) for rank in ranks]
        others, group.members = [m for m in group.members if m not in own], []
        for one in own:
            one.fail(exception, message)
        for other in others:
            other.fail("RuntimeError", "Connection closed by peer [10.0.0.1]:4242")

    return hook


def test_the_same_exception_everywhere_is_one_failure(world, virtual):
    """All ranks raise one exception at one place: all are named, nobody is a victim, no host is blamed."""
    w = world(restart={"max_restarts": 1})
    w.hooks[3] = [together(w, [0, 1, 2, 3], "ModuleNotFoundError", "No module named 'x'")]

    ending = virtual(w.attempt_once())

    assert ending.reason.startswith("All 4 ranks could not import x at step 3;")
    assert len(w.events("worker_failed")) == 2
    assert w.events("victims") == w.events("excluded") == []
    assert {n.suspect for n in w.leader._board.nodes.all} == {None}


def test_some_ranks_that_fail_alike_are_named_and_the_others_are_victims(world, virtual):
    """Two ranks of one host raise the same: both are the failure; who only lost a peer is its victim."""
    w = world(restart={"max_restarts": 0})
    w.hooks[3] = [together(w, [2, 3], "ValueError", "bad disk")]

    virtual(w.attempt_once())
    (failed,), (victims,) = w.events("worker_failed"), w.events("victims")

    assert failed["cause"]["text"].startswith("ranks 2, 3 raised ValueError at step 3: bad disk")
    assert {v["rank"] for v in victims["ranks"]} <= {0, 1}


def test_lost_peers_everywhere_are_not_one_failure_of_all(world, virtual):
    """All ranks say in the same words that a peer is gone: the one that was killed is the cause, they are its victims."""
    w = world(restart={"max_restarts": 0})
    w.hooks[3] = [lambda worker: worker.die(9) if worker.rank == 1 else None]

    virtual(w.attempt_once())
    (failed,), (victims,) = w.events("worker_failed"), w.events("victims")

    assert (failed["rank"], "ranks" in failed) == (1, False)
    assert {v["rank"] for v in victims["ranks"]} == {0, 2, 3}
