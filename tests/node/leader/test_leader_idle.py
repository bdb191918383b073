"""Caps on allocations: one in which nothing progresses is given back, and all together last no longer than they may."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from acts import plain_script
from an_event import an_event

from launcher.node.leader import timed_checks, wait_for_runs
from launcher.run import event_lines
from launcher.run.spec import Work

IDLE_MIN = 1.0
AFTER_S = 120.0
"""The stop is tried for so long before the allocation goes."""


def stuck(w, phase_s: dict[str, float], *, steps: int = 5):
    """Workers that do ``steps``, spend so many seconds in each phase, and then do nothing any more."""

    class Stuck(w.worker_class):
        async def main(self) -> None:
            self.say("hello", pid=1000 + self.rank)
            await self.group.meet(("ready", 0), self)
            self.say("ready")
            self.say("phase", name="train")
            for step in range(1, steps + 1):
                self.entered = self.begun = step
                await asyncio.sleep(1.0)
                self.say("progress", step=step, epoch=0, total_steps=100, step_time_s=1.0)
            for name, seconds in phase_s.items():
                self.say("phase", name=name)
                await asyncio.sleep(seconds)
            self.say("phase", name="train")
            await asyncio.sleep(100_000)

    return Stuck


def ended_after_s(w, virtual) -> float:
    """Seconds from the leader's start to the end, which is a failure that says why."""
    began: list[float] = []

    async def watch() -> float:
        began.append(asyncio.get_running_loop().time())
        ending = await w.attempt_once()
        assert ending.state == "failed"
        assert ending.reason.startswith(
            "No progress for 1 minutes (restart.idle_timeout_min); the allocation was given back."
        )
        return asyncio.get_running_loop().time() - began[0]

    return virtual(watch())


def guarded(world, **changes):
    """A world with the guard on and hang detection off: the guard alone is to act."""
    return world(restart={"idle_timeout_min": IDLE_MIN, "hang_detection": False}, **changes)


def test_an_allocation_without_progress_is_given_back(world, virtual):
    """A minute after the last step: one sentence, requeueing forbidden, never a second attempt."""
    w = guarded(world)
    w.worker_class = stuck(w, {})

    took = ended_after_s(w, virtual)

    assert 65 <= took <= 70 + AFTER_S
    assert w.allocation.said == [("forbid_requeue",)]
    assert w.events("stop_requested")[0]["cause"] == "idle"


@pytest.mark.parametrize("phase", ["save", "load", "evaluate"])
def test_saving_loading_and_evaluating_are_progress(world, virtual, phase):
    """Five minutes of it are left alone; a minute after its end the guard acts."""
    w = guarded(world)
    w.worker_class = stuck(w, {phase: 300.0})

    took = ended_after_s(w, virtual)

    assert 300 + 60 <= took <= 300 + 80 + AFTER_S


@pytest.mark.parametrize(("phase", "steps"), [("setup", 0), ("between", 5), ("script", 5)])
def test_a_long_first_step_that_computes_is_progress(world, virtual, phase, steps):
    """Compiling for five minutes, or the user's own work between steps: the CPUs are used, and the GPUs need not be; one that sleeps is idle."""
    busy, lazy = guarded(world), guarded(world)
    busy.worker_class = stuck(busy, {phase: 300.0}, steps=steps)
    lazy.worker_class = stuck(lazy, {phase: 300.0}, steps=steps)
    busy.gpu_percent = lazy.gpu_percent = 0.0

    async def compute():
        await busy.until(lambda: sum(len(n.workers) for n in busy.nodes) == 4)
        worker = busy.find(0)
        worker.cpu_percent = 95.0
        await asyncio.sleep(300)
        worker.cpu_percent = 0.3

    took_lazy = ended_after_s(lazy, virtual)
    once = busy.attempt_once
    busy.attempt_once = lambda: once(compute)
    took_busy = ended_after_s(busy, virtual)

    assert 60 <= took_lazy <= 80 + AFTER_S
    assert 360 <= took_busy <= 380 + AFTER_S


def test_a_silent_script_that_computes_is_left_alone(world, virtual):
    """A plain script reports no steps: as long as it uses its CPUs it runs to its end."""

    w = guarded(world, work=Work(kind="script", target="train.py"), checkpoint={"enabled": False})

    class Script(w.worker_class):
        async def main(self) -> None:
            self.cpu_percent = 80.0
            self.say("phase", name="script")
            await asyncio.sleep(900)
            self.done = True
            self.node.exited(self, 0, None)

    w.worker_class = Script

    assert virtual(w.attempt_once()).state == "completed"


@pytest.mark.parametrize(("idle_min", "most"), [(IDLE_MIN, 62), (0.0, 0)])
def test_what_ranks_use_is_looked_at_once_a_second(world, virtual, monkeypatch, idle_min, most):
    """A minute of a plain script, ten ticks a second: each look goes through all ranks; none where no limit is set."""
    looks = []
    monkeypatch.setattr(
        timed_checks, "_occupied", lambda round_, real=timed_checks._occupied: looks.append(1) or real(round_)
    )
    w = world(
        work=Work(kind="script", target="train.py"),
        checkpoint={"enabled": False},
        restart={"idle_timeout_min": idle_min},
    )
    w.worker_class = plain_script(w, seconds=60.0)

    assert virtual(w.attempt_once()).state == "completed"

    assert most * 0.9 <= len(looks) <= most


def test_the_cap_over_all_attempts_ends_one_that_reaches_it(world, virtual):
    """restart.max_total_hours is reached while it trains: stopped at an agreed step, saved, ended, never requeued."""
    w = world(restart={"max_total_hours": 10 / 3600}, checkpoint={"interval_steps": 1000})
    w.total_steps = 4000

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert "max_total_hours" in ending.reason
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert w.events("saved")[-1]["reason"] == "stop"
    assert 100 < w.outcome["step"] < 300
    assert w.allocation.said == [("forbid_requeue",)]


def test_waiting_for_other_runs_uses_no_hours(world, virtual, tmp_path, monkeypatch):
    """A run on one's own machine waits for a run that it comes after: its hours begin with its first round."""
    monkeypatch.setattr(wait_for_runs, "_gone", lambda paths: False)
    other = tmp_path / "run-other"
    other.mkdir()
    after = [{"kind": "ok", "run_dir": str(other)}]
    w = world(batch="local", after=after, restart={"max_total_hours": 100 / 3600})
    w.allocation.job_id, w.allocation.requeues = None, False

    async def script():
        await asyncio.sleep(200)
        (other / "outcome.json").write_text(json.dumps({"state": "completed", "reason": "", "exit_code": 0}))

    assert virtual(w.attempt_once(script)).state == "completed"


def test_an_attempt_that_begins_beyond_the_cap_trains_nothing(world, virtual):
    """The hours were used up by attempts before it, whose leaders died: no round is started."""
    w = world(restart={"max_total_hours": 1.0})
    now = time.time()
    past = [("attempt_started", now - 7200), ("saved", now - 7000), ("attempt_ended", now - 3000)]
    for type_, t in past:
        event_lines.append(w.paths.events, an_event(type_, t=t, attempt=0, job_id="77", step=1))

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert "max_total_hours" in ending.reason
    assert not w.events("round_started")
