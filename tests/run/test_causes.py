"""The one table of what can end a rank, a round, an attempt or a run."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.node.policy.decisions import Kind
from launcher.report.diagnosis.explanations import EXPLANATIONS
from launcher.run.causes import CAUSES, MEANINGS, rank_kind

ENDS_NOTHING = {Kind.DONE, Kind.DAMAGED, Kind.FALSE_ALARM, Kind.FENCED, Kind.MORE_NODES, Kind.WORKER_FAILED}
"""Done, passed over by the next round, no end, another leader's, a larger round; a worker's cause has a kind of its own."""
TRACEBACK = ["Traceback (most recent call last):", '  File "t.py", line 3, in <module>', "    import x"]


INLINE = "[enforce fail at inline_container.cc:672]"
OBJECT = "RuntimeError: unable to open shared memory object </torch_1_2>"


def end(**values: Any) -> str:
    """The kind of a rank's end."""
    nothing = {"told": None, "signal": None, "oom": False, "log": ()}
    return rank_kind(**{**nothing, **values})


def test_every_row_is_explained_and_every_explanation_has_its_row() -> None:
    """The nodes can name no kind that `launcher why` has no words for, nor the other way round."""
    assert set(CAUSES) == set(EXPLANATIONS)
    assert {row.ends for row in CAUSES.values()} == {"rank", "round", "attempt", "run"}


def test_every_evidence_is_of_one_kind() -> None:
    """What a leader, or who acts for it, decides upon stands in one row of the table."""
    told = [evidence for row in CAUSES.values() for evidence in row.evidence]
    assert len(told) == len(set(told))
    assert set(told) == {kind.value for kind in Kind} - {kind.value for kind in ENDS_NOTHING}


def test_every_wish_to_stop_has_words() -> None:
    """A signal's meanings are evidence, so that the leader's sentence and the report's line come from the same row."""
    assert {name for name, words in MEANINGS.items() if words.clause} <= {kind.value for kind in Kind}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, "exit"),
        ({"signal": 9, "oom": True}, "oom"),
        ({"signal": 9}, "signal"),
        ({"signal": 7, "log": ["ERROR: insufficient shared memory (shm)"]}, "shm"),
        ({"signal": 6, "log": ["Watchdog caught collective operation timeout: WorkNCCL"]}, "timeout"),
        ({"signal": 6, "log": ["terminate called"]}, "signal"),
        ({"told": "exception"}, "exception"),
        ({"told": "host_memory"}, "host_memory"),
        ({"told": "exception", "log": ["RuntimeError: CUDA out of memory"]}, "exception"),
        ({"told": "exit", "log": ["the store's barrier timed out"]}, "exit"),
        ({"told": "exception", "signal": 11}, "exception"),
        ({"told": "exit", "signal": 11}, "signal"),
        ({"log": [*TRACEBACK, "ModuleNotFoundError: No module named 'x'"]}, "import"),
        ({"log": [*TRACEBACK, "ValueError: bad"]}, "exception"),
        ({"log": [*TRACEBACK, "MemoryError: "]}, "host_memory"),
        ({"log": [*TRACEBACK, "torch.cuda.OutOfMemoryError: CUDA out of memory"]}, "cuda_oom"),
        ({"log": [*TRACEBACK, "RuntimeError: CUDA error: an illegal memory access was encountered"]}, "cuda"),
        ({"log": [*TRACEBACK, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"]}, "gpu"),
        (
            {
                "signal": 6,
                "log": ["  what():  CUDA error: device-side assert triggered", "NCCL communicator was aborted"],
            },
            "cuda",
        ),
        (
            {"signal": 6, "log": ["ncclUnhandledCudaError: Cuda failure 214 'uncorrectable ECC error encountered'"]},
            "gpu",
        ),
        ({"log": [*TRACEBACK, "OSError: [Errno 122] Disk quota exceeded"]}, "disk_full"),
        ({"log": [*TRACEBACK, f"RuntimeError: {INLINE} . unexpected pos 704 vs 598"]}, "disk_full"),
        ({"log": [*TRACEBACK, f"RuntimeError: {INLINE} . PytorchStreamWriter failed: file write failed"]}, "disk_full"),
        ({"log": [*TRACEBACK, f"RuntimeError: {INLINE}: invalid header"]}, "exception"),
        ({"log": [*TRACEBACK, "OSError: [Errno 28] No space left on device: '/dev/shm/x'"]}, "shm"),
        (
            {"log": [*TRACEBACK, "FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/train.npy'"]},
            "exception",
        ),
        ({"log": [*TRACEBACK, f"{OBJECT} in read-write mode: Too many open files (24)"]}, "exception"),
        (
            {
                "log": [
                    *TRACEBACK,
                    "RuntimeError: unable to mmap 128 bytes from file </torch_1>: Cannot allocate memory (12)",
                ]
            },
            "host_memory",
        ),
        ({"signal": 9, "log": ["copied data to /dev/shm/imagenet"]}, "signal"),
        ({"signal": 6, "log": ["args: backend=nccl timeout=1800", "double free or corruption (!prev)"]}, "signal"),
        ({"log": [*TRACEBACK, "RuntimeError: Failed to restore shard from s3://x: request timed out"]}, "exception"),
        (
            {"log": [*TRACEBACK, "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms"]},
            "timeout",
        ),
        (
            {
                "signal": 6,
                "log": ["terminate called after throwing", "  what():  CUDA out of memory. Tried to allocate"],
            },
            "cuda_oom",
        ),
        ({"signal": 6, "log": ["terminate called after throwing", "  what():  std::bad_alloc"]}, "host_memory"),
        ({"log": [*TRACEBACK, "ValueError: bad", *["went on"] * 9]}, "exit"),
        ({"signal": 6, "log": [*TRACEBACK, "RuntimeError: CUDA error: out of memory"]}, "cuda_oom"),
    ],
)
def test_each_end_of_a_rank_has_its_kind(values: dict[str, Any], kind: str) -> None:
    """The kernel's word before the worker's own word, this before the signal, the signal before its last lines."""
    assert end(**values) == kind
