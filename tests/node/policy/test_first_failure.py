"""Which of many failures came first, and what it was."""

from __future__ import annotations

import json

import pytest

from launcher.node.policy.first_failure import (
    Failure,
    cause_of,
    first_failure,
    is_victim,
    same_failures,
    signature,
    symptom_only,
    victims,
)
from launcher.node.wire.messages import WorkerExit
from launcher.run import events
from launcher.run.event_parts import Frame

RESET = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:50072"


def failure(rank=0, t=0.0, **values):
    return Failure(rank, f"n{rank}", t, **values)


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ({"signal": 9}, "signal", "rank 0 on n0 was killed from outside (SIGKILL) at step 7"),
        ({"signal": 11}, "signal", "rank 0 on n0 crashed with a segmentation fault (SIGSEGV) at step 7"),
        ({"exit_code": 3}, "exit", "rank 0 on n0 exited with code 3 at step 7"),
        ({"exit_code": 0}, "exit", "rank 0 on n0 exited with code 0 at step 7 before the work was done"),
        ({"signal": 9, "oom": True}, "oom", "rank 0 on n0 was killed for exceeding the memory limit at step 7"),
        (
            {"kind": "exception", "exception": "ValueError", "message": "bad\nmore"},
            "exception",
            "rank 0 on n0 raised ValueError at step 7: bad",
        ),
        (
            {"kind": "import", "exception": "ModuleNotFoundError", "message": "No module named 'x'"},
            "import",
            "rank 0 on n0 could not import x at step 7",
        ),
        (
            {"kind": "exception", "exception": "RuntimeError", "message": "the store's barrier timed out"},
            "exception",
            "rank 0 on n0 raised RuntimeError at step 7: the store's barrier timed out",
        ),
        (  # its process aborted while it ended
            {"kind": "exception", "exception": "ValueError", "message": "bad", "signal": 6},
            "exception",
            "rank 0 on n0 raised ValueError at step 7: bad",
        ),
        ({"kind": "timeout", "exception": "RuntimeError", "message": "x"}, "timeout", None),
    ],
)
def test_each_end_has_its_kind(values, kind, text):
    """Signals, exits, exceptions and their special cases are told apart."""
    cause = cause_of(failure(step=7, **values))

    assert cause.kind == kind
    assert text is None or cause.text == text


@pytest.mark.parametrize(
    "message",
    [
        RESET,
        "Connection reset by peer",
        "NCCL error: remote process exited or there was a network error",
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, ...)",
        "recvValue failed on SocketImpl(fd=57, ...): failed to recv, got 0 bytes",
        "Timed out waiting 1800000ms for recv operation to complete",
        "Application timeout caused pair closure",
    ],
)
def test_what_peers_say_of_a_dead_rank_makes_victims(message):
    """A process that told of nothing, and whose log ends with torch's word that the other side is gone."""
    assert is_victim(failure(exit_code=1, last_lines=["Traceback", f"RuntimeError: {message}"]))


def test_the_workers_own_word_makes_victims():
    """A worker says itself whether torch told it that another rank is gone; its message may hold the same words and mean its own."""
    assert is_victim(failure(kind="exception", exception="RuntimeError", message=RESET, victim=True))
    assert not is_victim(failure(kind="exception", exception="RuntimeError", message=RESET, victim=False))
    assert not is_victim(failure(kind="host_memory", exception="RuntimeError", message=RESET, victim=True))


def test_real_errors_are_no_victims():
    """A user's own exception, a signal, an exit and running out of memory are causes."""
    assert not is_victim(failure(exception="ValueError", message="bad label"))
    assert not is_victim(failure(signal=9))
    assert not is_victim(failure(exit_code=1, last_lines=["nothing about peers"]))
    assert not is_victim(failure(signal=6, oom=True, last_lines=[RESET]))
    assert not is_victim(failure(kind="shm", exception="torch.distributed.DistBackendError", message="x", victim=True))


def test_the_same_failure_of_several_ranks_is_one():
    """Exception, message, place and step alike, or the same SystemExit: one failure; a victim, a signal or os._exit never is."""
    frames = [Frame(file="t.py", line=3, function="f", code="")]
    raised = [failure(rank=r, exception="ValueError", message="bad", frames=frames) for r in range(3)]
    elsewhere = failure(
        rank=3, exception="ValueError", message="bad", frames=[Frame(file="t.py", line=4, function="f", code="")]
    )
    left = [failure(rank=r, kind="exit", exit_code=2, last_lines=["usage", "no --lrr", ""]) for r in range(2)]
    other = failure(rank=2, kind="exit", exit_code=3)
    killed = [failure(rank=r, signal=9) for r in range(2)]
    hard = [failure(rank=r, exit_code=2) for r in range(2)]
    lost = [failure(rank=r, exception="RuntimeError", message=RESET, victim=True) for r in range(2)]

    assert same_failures(raised[1], [*raised, elsewhere]) == raised
    assert same_failures(left[0], [*left, other, *hard]) == left
    for alone in (killed, hard, lost):
        assert same_failures(alone[0], alone) == alone[:1]
    assert cause_of(left[0], "both ranks").text == "both ranks exited with code 2: no --lrr"


def test_the_last_line_is_a_reason_only_where_a_usage_error_is_told():
    """``exited with code 3: resumed 40`` took a harmless line for the reason; argparse and click name the wrong argument last."""
    left = failure(kind="exit", exit_code=3, last_lines=["restoring", "resumed 40.", ""])
    assert cause_of(left).text == "rank 0 on n0 exited with code 3 (last line: resumed 40)"

    usage = failure(kind="exit", exit_code=2, last_lines=["usage", "train.py: error: no --lrr"])
    assert cause_of(usage).text == "rank 0 on n0 exited with code 2: train.py: error: no --lrr"

    said = failure(kind="exit", exit_code=1, message="no data", last_lines=["resumed 40"])
    assert cause_of(said).text == "rank 0 on n0 exited with code 1: no data"


def test_aborts_of_a_watchdog_are_victims():
    """SIGABRT whose last lines tell of a peer's end, and a script's exit 1 after such a traceback."""
    assert is_victim(failure(signal=6, last_lines=["terminate called", RESET]))
    assert is_victim(failure(exit_code=1, last_lines=["Traceback", f"RuntimeError: {RESET}"]))


def test_a_cause_heard_late_still_comes_first():
    """Victims are heard at once, the killed rank's exit 400 ms later: it is the first failure all the same."""
    heard = [failure(rank=r, t=r * 0.001, exception="RuntimeError", victim=True) for r in (0, 1, 3)]
    dead = failure(rank=2, t=0.4, signal=9)

    assert symptom_only(heard)
    assert not symptom_only([*heard, dead])
    assert first_failure([*heard, dead]) is dead


def test_of_two_causes_the_earlier_one_counts():
    """Time decides among equals; our own kills at the end of a round never count."""
    late, early = failure(rank=0, t=2.0, exit_code=1), failure(rank=1, t=1.0, exit_code=1)
    killed = failure(rank=2, t=0.5, signal=9, after_end=True)

    assert first_failure([late, early, killed]) is early
    assert first_failure([]) is None


def test_two_exceptions_are_the_same_by_type_place_and_step():
    """The message may differ (addresses, ids); place and step may not."""
    frames = [Frame(file="a.py", line=3, function="f", code="")]
    a = failure(exception="ValueError", message="at 0x1", frames=frames, step=5)
    b = failure(rank=1, exception="ValueError", message="at 0x2", frames=frames, step=5)
    c = failure(exception="ValueError", message="at 0x1", frames=frames, step=6)

    assert signature(a, a.step) == signature(b, b.step)
    assert signature(a, a.step) != signature(c, c.step)
    assert signature(failure(signal=9), 1) is None


@pytest.mark.parametrize(("by_us", "after_end", "signal"), [(True, False, None), (False, False, 9)])
def test_our_own_kill_hides_no_exception(by_us, after_end, signal):
    """A rank that had told of its exception and is then killed has still failed by itself."""
    failed = failure(exception="ValueError", message="bad label")
    end = WorkerExit(round=0, rank=0, exit_code=None, signal=9, last_lines=[], oom=False)
    failed.add_exit(end, by_us=by_us)

    assert (failed.after_end, failed.signal) == (after_end, signal)


def test_the_history_has_the_whole_causes_of_sixteen_victims_and_who_all_were():
    """16,000 victims with forty lines of log each take less than 1.5 MB of events.jsonl; each is read back with its rank and delay."""
    failed = [
        failure(rank, t=1.0 + rank / 1000, signal=6, last_lines=[f"{RESET} {line}" for line in range(40)])
        for rank in range(16_000)
    ]

    written = events.event("victims", attempt=0, ranks=victims(failed, after=1.0)).raw
    problems: list[str] = []
    read = events.parse_event(written, problems)

    assert len(json.dumps(written)) < 1.5e6
    assert problems == []
    assert isinstance(read, events.Victims)
    assert [(v.rank, v.host, v.after_s) for v in read.ranks] == [(n, f"n{n}", n / 1000) for n in range(16_000)]
    assert [v.rank for v in read.ranks if v.cause is not None] == list(range(16))
    assert all(v.cause is not None and len(v.cause.last_lines) == 40 for v in read.ranks[:16])


def test_the_end_of_a_log_that_arrives_later_makes_a_victim():
    """A script told its exit code alone, and the leader looked; then its agent told the end of its log, which blames a peer."""
    it = failure(kind="exit", exit_code=1)
    assert not is_victim(it)

    it.add_exit(WorkerExit(round=0, rank=0, exit_code=1, signal=None, last_lines=[RESET], oom=False))

    assert is_victim(it)
