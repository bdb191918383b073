"""The leader while the clock of its host, of the login host or of the file server is an hour wrong, or is set."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest
from an_event import an_event

from launcher.run import event_lines
from launcher.run.spec import Work

HOUR = 3600.0


@pytest.fixture
def jump(monkeypatch):
    """Sets the clock by so many seconds."""
    real, by = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + by[0])
    return lambda seconds: by.__setitem__(0, seconds)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_what_failed_first_is_what_was_heard_first(world, virtual, jump, seconds):
    """The clock is set between two failures: the first one is the cause, the other its victim, and none came an hour later."""
    w = world()

    def second():
        jump(seconds)
        w.find(2).fail("RuntimeError", "b")

    def strike(worker):
        if worker.rank == 1 and worker.round == 0:
            worker.fail("RuntimeError", "a")
            asyncio.get_running_loop().call_later(0.02, second)

    w.max_delay_s = 0.0
    w.hooks[12] = [strike]

    assert virtual(w.attempt_once()).state == "completed"

    assert [e["rank"] for e in w.events("worker_failed")] == [1]
    assert w.events("victims")
    assert all(v["after_s"] < 60 for e in w.events("victims") for v in e["ranks"])


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_a_clock_that_is_set_uses_up_no_hours(world, virtual, jump, seconds):
    """Half an hour is all that the run may have. It is told and decided in order, and the picture says seconds."""
    w = world(restart={"max_total_hours": 0.5})
    w.hooks[8] = [lambda worker: jump(seconds)]
    w.hooks[12] = [lambda worker: worker.die() if worker.rank == 1 and worker.round == 0 else None]

    assert virtual(w.attempt_once()).state == "completed"

    times = [e["t"] for e in w.events()]
    assert times == sorted(times)
    assert times[-1] - times[0] < 600
    assert [e["action"] for e in w.events("decision")] == ["new_round", "complete"]
    picture = json.loads(w.paths.state.read_text())
    assert 0 <= picture["t"] - picture["saved_t"] < 600
    assert 0 <= picture["spent_s"] < 600


def test_a_request_counts_whatever_its_files_time_is(world, virtual):
    """`launcher cancel --save` of a host, or a file server, whose clock is behind: whoever submits takes older requests away."""
    w = world()
    event_lines.append(w.paths.events, an_event("submitted", attempt=None))
    w.paths.request.write_text("{}")
    os.utime(w.paths.request, (time.time() - HOUR, time.time() - HOUR))

    assert virtual(w.attempt_once()).state == "cancelled"


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_a_scripts_files_are_progress_whatever_their_times_are(world, virtual, seconds):
    """The file server's clock is set back between two files of the script, and is not that of the leader's host at all."""
    w = world(work=Work(kind="script", target="train.py"), checkpoint={"watch": "ckpt/*"}, restart={"max_restarts": 1})
    folder = w.paths.root / "ckpt"
    folder.mkdir()

    class Saves(w.worker_class):
        async def main(self):
            self.say("phase", name="script")
            await asyncio.sleep(1.0)
            if self.rank == 0 and self.round < 4:
                written = folder / f"{self.world.attempt}.{self.round}"
                written.write_text("")
                stamp = time.time() + seconds - 600 * self.round
                os.utime(written, (stamp, stamp))
                self.die(None, 3)
            else:
                await asyncio.sleep(5.0)
                self.node.exited(self, 0, None)

    w.worker_class = Saves

    for attempt in range(2):
        assert virtual(w.attempt_once()).state == "completed"
        w.paths.outcome.unlink()
        told = [e["path"].rsplit("/", 1)[1] for e in w.events("saved") if e["attempt"] == attempt]
        assert told == [f"{attempt}.{number}" for number in range(4)]
