"""Events in words."""

from __future__ import annotations

from random import Random

import pytest
from an_event import an_event

from launcher.report.text.words import level, words
from launcher.run.events import Event, ProgressAssumed

KNOWN = sorted(Event.kinds)


def tell(type_: str, **values: object) -> str:
    """An event of attempt 1, round 2 in words."""
    return words(an_event(type_, t=1000.0, attempt=1, round=2, **values))


def test_the_vocabulary_is_complete() -> None:
    """Every event type of the contract has words of its own: none falls back to its bare name."""
    from launcher.report.text.words import _WORDS

    assert len(KNOWN) > 25
    assert {Event.kinds[kind] for kind in KNOWN} - set(_WORDS) == {ProgressAssumed}  # no reader shows it


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (("submitted", {"job_id": "7", "backend": "slurm", "by": "submit"}), "submitted as job 7"),
        (("submitted", {"backend": "local"}), "submitted on this machine"),
        (("submitted", {"job_id": "8", "by": "resubmit", "changes": ["a=1"]}), "resubmitted as job 8 with a=1"),
        (("attempt_started", {"host": "n1", "submitted_t": 900.0}), "attempt 1 started on n1 after 100 s"),
        (("node_missing", {"nodes": ["n2"], "ranks": [4, 5, 6], "waited_s": 95}), "waiting for n2 (ranks 4-6), 95 s so far"),
        (("round_started", {"world_size": 2, "ranks": [{"host": "n1"}, {"host": "n2"}], "resume_step": 40}),
         "round 2 started from step 40: 2 ranks on n1, n2"),
        (("saved", {"step": 1200, "seconds": 4.0, "blocked_s": 0.5, "bytes": 3_100_000}),
         "saved step 1,200: 3.1 MB in 4.0 s, training paused for 0.5 s of it"),
        (("worker_failed", {"rank": 5, "host": "n2", "step": 9, "cause": {"signal": 9}}),
         "rank 5 on n2 failed at step 9: killed by SIGKILL"),
        (("worker_failed", {"rank": 0, "host": "n1", "cause": {"exit_code": 2, "text": "all 2 ranks exited with code 2: no"},
                            "ranks": [{"rank": 0, "host": "n1"}, {"rank": 1, "host": "n2"}]}), "all 2 ranks exited with code 2: no"),
        (("victims", {"ranks": [{"rank": 0}, {"rank": 1}, {"rank": 2}]}), "ranks 0-2 failed because of the first failure"),
        (("node_lost", {"host": "n2", "why": "silent"}), "lost n2: it stopped responding"),
        (("node_lost", {"host": "n2", "why": "cut_off"}), "lost n2: it stopped responding with all others"),
        (("hang", {"limit_s": 60, "laggards": [{"rank": 3, "host": "n2"}]}), "no rank progressed for 60 s; furthest behind: rank 3 on n2"),
        (("stop_requested", {"cause": "preempted", "deadline_s": 20}), "stopping: preempted, 20 s left"),
        (("stopped", {"step": 31, "lost_steps": 0}), "stopped at step 31, 0 steps lost"),
        (("stopped", {"step": 0, "lost_steps": None}), "stopped"),
        (("ended", {"state": "completed", "step": 0, "reason": "The work is done."}), "completed: The work is done."),
        (("requeued", {"how": "requeue", "job_id": "7"}), "requeued as job 7"),
        (("ended", {"state": "failed", "step": 3, "reason": "it broke."}), "failed at step 3: it broke."),
        (("preflight", {"ok": False, "checks": [{"host": "n2", "name": "gpus", "ok": False, "detail": "3 of 4"}]}),
         "node check failed: n2: gpus (3 of 4)"),
        (("from_the_future", {}), "from the future"),
    ],
)  # fmt: skip
def test_events_read_as_sentences(event: tuple[str, dict[str, object]], expected: str) -> None:
    """Each says what happened, with the figures that matter."""
    assert tell(event[0], **event[1]) == expected


KEYS = [
    "step",
    "ranks",
    "rank",
    "host",
    "cause",
    "metrics",
    "nodes",
    "facts",
    "checks",
    "world_size",
    "laggards",
    "seconds",
]


def junk(random: Random, depth: int = 0) -> object:
    """A value as no leader would write it."""
    kind = random.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [junk(random, depth + 1) for _ in range(random.randrange(4))]
    if kind == 7:
        return {random.choice([*KEYS, "ok", "text"]): junk(random, depth + 1) for _ in range(random.randrange(4))}
    return [None, True, -3, float("nan"), 10**30, "\x1b[31mé\n<b>"][kind]


@pytest.mark.parametrize("type_", KNOWN)
def test_no_event_breaks_the_telling(type_: str) -> None:
    """Whatever another version wrote into an event, one printable line comes out."""
    random = Random(type_)
    for _ in range(300):
        event = {key: junk(random) for key in random.sample(KEYS, random.randrange(len(KEYS)))}
        line = tell(type_, **event)
        assert line
        assert line.isprintable()
        assert level({"t": 1.0, "type": type_, **event}) in ("bad", "warning", "good", "plain")
