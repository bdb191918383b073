"""The learned limit: finds what hangs, leaves alone what is slow."""

from __future__ import annotations

import math

from launcher.node.policy.hangs import FROZEN_S, LONG_S, HangWatch, RankView, laggards


def watch(floor=60.0):
    return HangWatch(floor_s=floor, start_s=120.0)


def test_training_steps_have_a_learned_limit_above_the_floor():
    """Thirty times the usual or three times the slowest recent step, never below the floor."""
    w = watch(floor=5.0)
    for t in range(20):
        w.progressed(float(t), 0.1)
    assert w.limit_s({"train"}) == 5.0

    w.progressed(30.0, 4.0)
    assert w.limit_s({"train"}) == 12.0
    for t in range(200):
        w.progressed(31.0 + t, 2.0)
    assert w.limit_s({"train"}) == 60.0


def test_steps_twenty_times_as_long_as_usual_are_no_hang():
    """The first such step comes when nothing like it has been seen, and the floor is below it."""
    w = watch(floor=5.0)
    for t in range(50):
        w.progressed(float(t), 0.5)

    assert w.hung(49.0 + 20 * 0.5, {"train"}) is None


def test_every_alarm_makes_the_next_watch_more_patient():
    """Without new progress each restart for a hang has four times the limit: steps up to half an hour, what is long up to four hours."""
    limits = []
    for alarms in range(5):
        w = HangWatch(floor_s=60.0, start_s=120.0, alarms=alarms)
        first = w.limit_s({"train"})
        w.progressed(0.0, 0.1)
        limits.append((w.limit_s({"train"}), w.limit_s({"evaluate"}), w.limit_s({"between"}), first))

    assert [steps for steps, *_ in limits] == [60.0, 240.0, 960.0, 1800.0, 1800.0]
    assert [others for _, *others in limits] == [[s] * 3 for s in (1800.0, 7200.0, 14400.0, 14400.0, 14400.0)]
    for _ in range(9):
        w.progressed(0.0, 1000.0)
    assert w.limit_s({"train"}) == 30_000.0


def test_the_first_step_evaluation_saving_and_loading_are_given_long():
    """Nothing is known of them yet: half an hour, or ten times the longest seen."""
    w = watch(floor=5.0)
    assert w.limit_s({"train"}) == LONG_S

    for t in range(20):
        w.progressed(float(t), 0.1)
    assert w.limit_s({"train", "evaluate"}) == LONG_S
    w.left_phase("evaluate", 400.0)
    assert w.limit_s({"evaluate"}) == 4000.0
    assert w.limit_s({"save"}) == LONG_S
    assert w.limit_s({"init"}) == 120.0


def test_scripts_that_report_nothing_never_hang():
    """Their progress cannot be seen."""
    assert watch().limit_s({"script"}) == math.inf


def test_a_frozen_worker_is_found_whatever_the_limit():
    """State T for some seconds, while nobody progresses."""
    w = watch()
    w.progressed(100.0, 0.1)
    ranks = [RankView(0, "train", 5), RankView(1, "evaluate", 5, frozen_s=FROZEN_S)]

    assert w.hung(100.0 + FROZEN_S, {"train", "evaluate"}, FROZEN_S) == FROZEN_S
    assert w.hung(101.0, {"train", "evaluate"}, FROZEN_S) is None
    assert [r.rank for r in laggards(ranks)] == [1]


def test_a_frozen_worker_harms_nobody_while_others_progress():
    """Somebody looks at one rank with a debugger: as long as steps are made there is no hang."""
    w = watch()
    w.progressed(100.0, 0.1)

    assert w.hung(102.0, {"train"}, 100.0) is None


def test_the_leaders_own_stall_is_nobodys_fault():
    """After SIGSTOP of the leader or a suspended machine, the time it missed is forgiven."""
    w = watch(floor=5.0)
    w.progressed(100.0, 0.1)
    assert w.hung(1000.0, {"train"}) == 5.0

    w.forgive(900.0)
    assert w.hung(1000.0, {"train"}) is None


def test_laggards_are_those_behind():
    """By what they answer, exactly; nobody when all are alike."""

    def named(*at: int | None) -> list[int]:
        return [r.rank for r in laggards([RankView(rank, "train", 5, at=a) for rank, a in enumerate(at)])]

    assert named(5, 4, 5) == [1]
    assert named(5, 5) == []
    assert named() == []


def test_who_does_not_answer_is_the_laggard():
    """Its main thread holds the interpreter in native code; where nobody answers, nothing is known."""
    assert [r.rank for r in laggards([RankView(0, "train", 4, at=5), RankView(1, "train", 5)])] == [1]
    assert laggards([RankView(0, "train", 4), RankView(1, "train", 5)]) == []


def test_who_has_not_started_a_collective_is_the_laggard():
    """In the same unit the counts of collectives tell; most ranks must have started it, and all must have told."""

    def named(*counts: int | None) -> list[int]:
        views = [RankView(rank, "train", 5, at=5, collectives=count) for rank, count in enumerate(counts)]
        return [r.rank for r in laggards(views)]

    assert named(9, 8, 9) == [1]
    assert named(9, 8) == [1]
    assert named(9, 8, 8) == named(9, 9) == named(9, None, 9) == named(None, None) == []
    behind = RankView(2, "train", 4, at=4, collectives=9)
    assert laggards([RankView(0, "train", 5, at=5, collectives=8), behind]) == [behind]


def test_reported_steps_name_nobody():
    """A rank that waits told of its last step a moment before the one it waits for did: short steps look like lagging."""
    assert laggards([RankView(0, "train", 56, at=61), RankView(1, "train", 60, at=61)]) == []


def test_no_false_alarm_in_a_long_run_with_slow_phases():
    """Half an hour: steps of 0.05-0.4 s, evaluations of 200 s, saves of 90 s, a first step of 300 s."""
    w, now = watch(), 0.0
    w.progressed(now)

    def quiet(seconds, phase, step_time=None):
        nonlocal now
        for _ in range(int(seconds / 0.5) + 1):
            assert w.hung(now, {phase, "train"}) is None
            now += min(0.5, seconds)
        w.left_phase(phase, seconds)
        w.progressed(now, step_time)

    quiet(300, "train", 300.0)
    for n in range(900):
        quiet(0.05 + 0.35 * (n % 7) / 6, "train", 0.05 + 0.35 * (n % 7) / 6)
        if n % 150 == 149:
            quiet(200, "evaluate")
            quiet(90, "save")
    assert now > 1800


def test_a_rank_that_has_left_the_loop_does_not_take_the_others_limit_away():
    """What a script does behind its loop has no limit; ranks that wait in a step for it do."""
    w = watch(floor=5.0)
    for t in range(20):
        w.progressed(float(t), 0.1)

    assert w.limit_s({"script"}) == math.inf
    assert w.limit_s({"train", "script"}) == 5.0
