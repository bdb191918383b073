"""What went wrong is said once, in the user's words: the user's own frame first, the right kind, no hang."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, make_spec

from launcher.run.spec import CheckpointSpec
from launcher.training.process import failure

SELDOM = CheckpointSpec(interval_min=1000)


def caught(error: BaseException) -> BaseException:
    """``error`` with a traceback, as if user code had raised it."""
    try:
        raise error
    except BaseException as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "kind", "victim"),
    [
        (ValueError("no"), "exception", False),
        (ModuleNotFoundError("No module named 'x'"), "import", False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.20 GiB"), "cuda_oom", False),
        (RuntimeError("CUDA error: out of memory"), "cuda_oom", False),
        (MemoryError(), "host_memory", False),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            "host_memory",
            False,
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "disk_full", False),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "disk_full", False),
        (OSError(errno.ENOENT, "No such file"), "exception", False),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:123"), "exception", True),
        (
            RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"),
            "timeout",
            False,
        ),
        (RuntimeError("the user's request timed out"), "exception", False),
    ],
)
def test_kinds_of_failures(error: BaseException, kind: str, victim: bool) -> None:
    """Each exception gets its kind, and lost connections to other ranks are told from causes."""
    told = failure.describe_error(caught(error))

    assert (told["kind"], told["victim"]) == (kind, victim)
    assert told["frames"][0].function == "caught"


def failing(
    tmp_path: Path, target: str, kind: str = "task", world_size: int = 1, **params: Any
) -> tuple[dict[str, Any], str]:
    """The first ``failed`` message of a job that cannot work, and the log."""
    spec = make_spec(tmp_path / "run", target, world_size, kind=kind, checkpoint=SELDOM, params=params)
    with Crew(spec, world_size) as crew:
        _, message = crew.until(lambda rank, m: m["type"] == "failed")
        crew.finish()
        assert set(crew.exit_codes().values()) == {1}
        return message, (tmp_path / "run" / "rank-0.log").read_text()


def test_the_users_own_frame_comes_first(tmp_path: Path) -> None:
    """An exception deep in torch is told by the user's line; the log shows the traceback without the launcher's frames."""
    message, log = failing(tmp_path, "small_jobs:Net", fail_at=3)

    assert (message["exception"], message["message"], message["step"]) == ("RuntimeError", "planted failure", 3)
    assert message["frames"][0]["code"] == 'raise RuntimeError("planted failure")'
    assert message["frames"][0]["file"].endswith("small_jobs.py")
    assert "planted failure" in log
    assert "launcher/training" not in log


def test_a_failure_on_one_rank_makes_victims_of_the_others(tmp_path: Path) -> None:
    """Rank 1 fails: it says why; the others end too, each as a victim, and nobody hangs."""
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 3, checkpoint=SELDOM, params={"fail_at": 2, "fail_rank": 1})
    with Crew(spec, 3) as crew:
        words = crew.finish()
        codes = crew.exit_codes()

    assert {rank: (w["message"] == "planted failure", w.get("victim", False)) for rank, w in words.items()} == {
        0: (False, True),
        1: (True, False),
        2: (False, True),
    }, crew.logs()
    assert set(codes.values()) == {1}


@pytest.mark.parametrize(
    ("target", "kind", "exception", "words"),
    [
        ("no_such_module:Net", "task", "ModuleNotFoundError", "no_such_module"),
        ("small_jobs:Missing", "task", "launcher.errors.CodeError", "has no Missing"),
        ("small_jobs:numbers", "task", "TypeError", "numbers"),
        ("small_jobs:Incomplete", "task", "TypeError", "abstract"),
    ],
)
def test_wrong_names_are_told_plainly(tmp_path: Path, target: str, kind: str, exception: str, words: str) -> None:
    """A missing module or name, a class that is none, a task that lacks methods: one message each."""
    message, _ = failing(tmp_path, target, kind)

    assert message["exception"] == exception
    assert words in message["message"]


def test_a_straggler_is_waited_for_and_then_named(tmp_path: Path) -> None:
    """A rank that never comes: the others end after ``init_timeout_min`` with one sentence that names it."""
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 3, checkpoint=SELDOM, init_timeout_min=0.05)
    with Crew(spec, 3, absent=(1,)) as crew:
        words = crew.finish()

    assert {rank: (w["kind"], w["message"]) for rank, w in words.items()} == dict.fromkeys(
        (0, 2), ("timeout", "rank 1 of 3 did not arrive within 0.05 min (distributed.init_timeout_min)")
    )


def test_a_collective_that_one_rank_never_joins_times_out(tmp_path: Path) -> None:
    """The group's own time-out ends a collective that waits for a rank: kind ``timeout``."""
    spec = make_spec(tmp_path / "run", "small_jobs:lonely_collective", 2, kind="function", collective_timeout_min=0.05)
    with Crew(spec, 2) as crew:
        _, message = crew.until(lambda rank, m: m["type"] == "failed")

    assert message["kind"] == "timeout", message
    assert message["frames"][0]["code"] == "torch.distributed.all_reduce(torch.ones(1))"
