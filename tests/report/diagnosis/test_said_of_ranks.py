"""What the leader and `launcher why` say of a rank that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_story import Story

from launcher.node.policy.first_failure import Failure, cause_of
from launcher.report.diagnosis.evidence import Root
from launcher.report.diagnosis.explanations import EXPLANATIONS
from launcher.report.model.history import read_history
from launcher.report.model.summary import summarise_history
from launcher.run.tracebacks import Trace

SAID = [
    ({"kind": "exception", "exception": "KeyError", "message": "'x'"}, "raised KeyError at step 1,200: 'x'"),
    ({"kind": "exception", "exception": "pkg.Odd", "message": ""}, "raised Odd at step 1,200"),
    ({"kind": "cuda_oom", "exception": "torch.OutOfMemoryError"}, "ran out of GPU memory at step 1,200"),
    ({"kind": "import", "exception": "ImportError", "message": "No module named 'timm'"}, "could not import timm at step 1,200"),
    ({"kind": "disk_full", "exception": "OSError", "message": "Disk quota exceeded"}, "could not write at step 1,200: the quota is used up"),
    ({"kind": "host_memory", "exception": "MemoryError"}, "could not get the memory it asked for at step 1,200"),
    ({"kind": "shm", "exception": "OSError"}, "ran out of shared memory (/dev/shm) at step 1,200"),
    ({"signal": 11}, "crashed with a segmentation fault (SIGSEGV) at step 1,200"),
    ({"signal": 10}, "was killed by SIGUSR1 at step 1,200"),
    ({"signal": 9, "oom": True}, "was killed for exceeding the memory limit at step 1,200"),
    ({"exit_code": 3}, "exited with code 3 at step 1,200"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "clause"), SAID, ids=[clause for _, clause in SAID])
def test_the_leader_and_why_say_the_same_of_a_rank(values: dict[str, Any], clause: str, tmp_path: Path) -> None:
    """What a rank did has one author: a history's cause and the answer of `launcher why` differ in how they name the rank."""
    cause = cause_of(Failure(rank=3, host="n2", t=1.0, step=1200, **values))
    assert cause.text == f"rank 3 on n2 {clause}"

    root = Root(cause.kind or "", cause=cause, rank=3, host="n2", step=1200)
    root.trace = Trace(cause.exception, cause.message or "", []) if cause.exception else None
    history = read_history(Story(tmp_path).submitted().begins().paths)
    assert (
        EXPLANATIONS[root.kind](root, history, summarise_history(history, None, 0.0)).sentence
        == f"Rank 3 (n2) {clause}."
    )
