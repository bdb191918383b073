"""Who keeps the others waiting between steps: once a pause, by what all ranks answer."""

from __future__ import annotations

from launcher.node.leader.pauses import Pauses
from launcher.node.policy.hangs import HangWatch
from launcher.run.state import read_state

RANKS = {0, 1, 2, 3}


def progressed(at: float, usual_s: float | None) -> HangWatch:
    """A watch that has seen the last progress then, with steps of that time."""
    watch = HangWatch(floor_s=60.0, start_s=60.0)
    watch.progressed(at, usual_s)
    return watch


def pause(pauses: Pauses, at: float, waits: dict[int, bool | None]) -> None:
    """A pause that began at ``at``, in which all ranks answer."""
    hangs = progressed(at, 0.1)
    pauses.quiet_at = at + 3.0
    assert pauses.may_begin(at + 3.0, hangs)
    pauses.begin(at + 3.0, hangs, set(RANKS))
    for rank, waiting in waits.items():
        pauses.answered(rank, waiting)


def test_the_rank_that_is_at_work_while_the_others_wait_is_counted() -> None:
    """Three pauses, the same rank; after five minutes they no longer count."""
    pauses = Pauses()
    for number in range(3):
        pause(pauses, 10.0 * number, {0: False, 1: True, 2: True, 3: True})

    assert [pauses.count(rank, 30.0) for rank in sorted(RANKS)] == [3, 0, 0, 0]
    assert pauses.count(0, 315.0) == 1


def test_a_pause_of_all_blames_nobody() -> None:
    """Everybody evaluates, or waits for a store; or one has not answered."""
    pauses = Pauses()
    pause(pauses, 0.0, dict.fromkeys(RANKS, False))
    pause(pauses, 10.0, dict.fromkeys(RANKS, True))
    pause(pauses, 20.0, {0: False, 1: True, 2: True, 3: None})

    assert [pauses.count(rank, 30.0) for rank in RANKS] == [0, 0, 0, 0]


def test_each_pause_is_asked_about_once_and_short_ones_never() -> None:
    """A pause is a second at least, as heartbeats have told, and five usual steps; the question goes out once in it."""
    pauses = Pauses()

    def may_begin(now: float, last: float, usual_s: float | None, quiet_at: float | None = None) -> bool:
        pauses.quiet_at = now if quiet_at is None else quiet_at
        return pauses.may_begin(now, progressed(last, usual_s))

    assert not may_begin(100.9, 100.0, 0.02)
    assert not may_begin(104.0, 100.0, 0.02, quiet_at=100.9)  # nobody has told since then
    assert not may_begin(104.0, 100.0, 1.0)
    assert not may_begin(104.0, 100.0, None)
    assert may_begin(101.1, 100.0, 0.02)
    pauses.begin(101.1, progressed(100.0, 0.02), set(RANKS))
    assert not may_begin(109.0, 100.0, 0.02)
    assert may_begin(113.0, 110.0, 0.02)


def test_the_leader_asks_in_a_pause_and_the_picture_tells(world, virtual):
    """Three pauses of two seconds, in which rank 2 alone answers that it does not wait. Progress is told once a second."""
    w = world()
    w.detail_every_s = 1.0
    w.total_steps, w.step_s = 120, 0.02
    seen: dict[int, int] = {}

    class Answering(w.worker_class):
        def hear(self, m):
            if m["type"] == "where":
                self.say("at", step=self.entered, waits=self.rank != 2)
            else:
                super().hear(m)

    def long_step(seconds):
        return lambda worker: setattr(w, "step_s", seconds)

    async def script():
        await w.until(lambda: (read_state(w.paths.state).get("step") or 0) >= 100)
        seen.update({r["rank"]: r["kept_waiting"] for r in read_state(w.paths.state)["ranks"]})

    w.worker_class = Answering
    for step in (30, 60, 90):
        w.hooks[step], w.hooks[step + 1] = [long_step(2.0)], [long_step(0.02)]
    virtual(w.attempt_once(script))

    assert seen == {0: 0, 1: 0, 2: 3, 3: 0}
