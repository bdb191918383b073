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
    """A pause is two heartbeats and a half at least, and five usual steps; the question goes out once in it."""
    pauses = Pauses()

    assert not pauses.may_begin(102.4, progressed(100.0, 0.02))
    assert not pauses.may_begin(104.0, progressed(100.0, 1.0))
    assert not pauses.may_begin(104.0, progressed(100.0, None))
    assert pauses.may_begin(102.6, progressed(100.0, 0.02))
    pauses.begin(102.6, progressed(100.0, 0.02), set(RANKS))
    assert not pauses.may_begin(109.0, progressed(100.0, 0.02))
    assert pauses.may_begin(113.0, progressed(110.0, 0.02))


def test_the_leader_asks_in_a_pause_and_the_picture_tells(world, virtual):
    """Three long steps, in which rank 2 alone answers that it does not wait."""
    w = world()
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
        w.hooks[step], w.hooks[step + 1] = [long_step(10.0)], [long_step(0.02)]
    virtual(w.attempt_once(script))

    assert seen == {0: 0, 1: 0, 2: 3, 3: 0}
