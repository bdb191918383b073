"""How often the leader has the workers save, in virtual time."""

from __future__ import annotations


def deaths_at(w, steps):
    """Rank 1 dies once at each of these steps."""
    left = set(steps)

    def die(worker):
        if worker.begun in left:
            left.discard(worker.begun)
            w.find(1).die(9)

    for step in steps:
        w.hooks[step] = [die]


def test_the_automatic_interval_follows_cost_and_failures(world, virtual):
    """Young and Daly: cheap saves come often, dear ones seldom, and more often once ranks have begun to die."""
    counts = {}
    for name, blocked_s, deaths in (("cheap", 0.0005, 0), ("dear", 0.05, 0), ("dying", 0.05, 8)):
        w = world(checkpoint={"min_interval_min": 0.05}, restart={"max_restarts": 99}, nodes=1)
        w.total_steps, w.step_s, w.blocked_s = 1500, 0.1, blocked_s
        deaths_at(w, [40 + 7 * n for n in range(deaths)])
        assert virtual(w.attempt_once()).state == "completed"
        assert len(w.events("round_started")) == 1 + deaths
        counts[name] = (
            len({e["step"] for e in w.events("saved")}) - 1
        )  # the last one comes at the end, whatever the interval

    assert counts["cheap"] > 3 * counts["dear"]
    assert counts["dying"] > 2 * counts["dear"]
