"""The root cause in one sentence, for every kind of failure: from made-up histories with the evidence a leader writes."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from explained import commit, gives_up, training, why
from run_story import Story

from launcher.node.policy.first_failure import Failure, cause_of
from launcher.report.diagnosis import stacks
from launcher.report.diagnosis.explanations import EXPLANATIONS
from launcher.report.model.summary import summarise_history


def here(root: Path) -> Story:
    """One that runs on this machine."""
    return Story(root).submitted(backend="local", job_id="8210").wait(1).begins(job_id="8210").round_starts()


def fails(story: Story, cause: dict[str, object], *, rank: int = 3, step: int | None = 120, reason: str = "") -> Story:
    """Rank ``rank`` fails for ``cause``; the others are victims; the leader gives up."""
    story.wait(10).event("worker_failed", rank=rank, host=f"node{1 + rank // 2}", step=step, cause=cause)
    others = [{"rank": r, "host": "node1", "after_s": 0.2 + 0.3 * r, "cause": {}} for r in range(4) if r != rank]
    story.event("victims", ranks=others).event("round_ended", why="x")
    return gives_up(story, "worker_failed", reason)


def raised(exception: str, message: str, **more: object) -> dict[str, object]:
    """The cause of a worker that raised."""
    frames = [{"file": "/runs/r/code/train.py", "line": 118, "function": "step", "code": "loss = criterion(model(x), y)"},
              {"file": "/runs/r/code/main.py", "line": 9, "function": "<module>", "code": "main()"}]  # fmt: skip
    return {"kind": "exception", "exception": exception, "message": message, "frames": frames, "caused_by": [], **more}


def ended(**values: Any) -> dict[str, Any]:
    """The cause of a worker that told of nothing, as the leader makes it from its exit and its last lines."""
    return cause_of(Failure(3, "node2", 1.0, step=120, **values)).to_wire()


TRACEBACK = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/runs/r/code/train.py", line 7, in <module>
[rank3]:     main()
[rank3]:   File "/runs/r/code/data.py", line 31, in load
[rank3]:     raise ValueError("bad label 11")
[rank3]: ValueError: bad label 11"""
USAGE = ["usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --lrr 3"]
SEGFAULT = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f1 (most recent call first):
  File "/runs/r/code/ops.py", line 12 in scale
  File "/runs/r/code/train.py", line 40 in main
  File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9 in call
"""
OOM_TEXT = (
    "CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of 79.2 GiB of which 317.00 MiB is free. "
    "Including non-PyTorch memory, this process has 78.8 GiB memory in use."
)
NCCL_LATE = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1) ran for 1800000 "
    "milliseconds before timing out."
)

_LATER = "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
ILLEGAL = f"CUDA error: an illegal memory access was encountered{_LATER}"
ECC = f"CUDA error: uncorrectable ECC error encountered{_LATER}"
ASSERTED = """\
/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [2,0,0], thread: [64,0,0] Assertion `srcIndex < n` failed.
[rank3]:[E1125 ProcessGroupNCCL.cpp:2057] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception:
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0] Process group watchdog thread terminated with exception: CUDA error: device-side assert triggered
"""

Make = Callable[[Path], Story]
CASES: dict[str, tuple[Make, str, str]] = {
    "exception": (
        lambda p: fails(training(p), raised("ValueError", "bad label 11")),
        "exception", "Rank 3 (node2) raised ValueError at step 120: bad label 11."),
    "exception of a package": (
        lambda p: fails(training(p), raised("lab.errors.DataError", "shard 7 is empty\nsecond line")),
        "exception", "Rank 3 (node2) raised DataError at step 120: shard 7 is empty."),
    "script traceback": (
        lambda p: fails(training(p), ended(exit_code=1, last_lines=TRACEBACK.splitlines()), step=None),
        "exception", "Rank 3 (node2) raised ValueError: bad label 11."),
    "a checkpoint that holds what cannot be loaded": (
        lambda p: fails(training(p), raised("CheckpointError", "it holds a lab.Config", kind="unloadable")),
        "unloadable", "Rank 3 (node2) raised CheckpointError at step 120: it holds a lab.Config."),
    "cuda oom": (
        lambda p: fails(training(p, gpus_per_node=2), raised("torch.OutOfMemoryError", OOM_TEXT, kind="cuda_oom")),
        "cuda_oom", "Rank 3 (node2, GPU 1) ran out of GPU memory at step 120."),
    "cuda oom in a script": (
        lambda p: fails(training(p, gpus_per_node=2), ended(exit_code=1,
                        last_lines=["Traceback (most recent call last):", f"torch.cuda.OutOfMemoryError: {OOM_TEXT}"])),
        "cuda_oom", "Rank 3 (node2, GPU 1) ran out of GPU memory at step 120."),
    "cuda oom on a gpu that ranks share": (
        lambda p: fails(training(p, gpus_per_node=1), raised("torch.OutOfMemoryError", OOM_TEXT, kind="cuda_oom")),
        "cuda_oom", "Rank 3 (node2, GPU 0) ran out of GPU memory at step 120."),
    "illegal memory on a gpu": (
        lambda p: fails(training(p, gpus_per_node=2), raised("torch.AcceleratorError", ILLEGAL, kind="cuda")),
        "cuda", "Rank 3 (node2, GPU 1) accessed illegal memory in a CUDA kernel at step 120."),
    "a misaligned address on a gpu": (
        lambda p: fails(training(p), raised("RuntimeError", "CUDA error: misaligned address", kind="cuda")),
        "cuda", "Rank 3 (node2) failed in a CUDA kernel at step 120: misaligned address."),
    "an assertion in a kernel, found by the watchdog": (
        lambda p: fails(training(p, gpus_per_node=2), ended(signal=6, last_lines=ASSERTED.splitlines())),
        "cuda", "Rank 3 (node2, GPU 1) failed an assertion in a CUDA kernel at step 120."),
    "a memory error of a gpu": (
        lambda p: fails(training(p, gpus_per_node=2), raised("torch.AcceleratorError", ECC, kind="gpu")),
        "gpu", "Rank 3 (node2, GPU 1) lost its GPU at step 120: uncorrectable ECC error encountered."),
    "oom kill": (
        lambda p: fails(training(p, mem_gb=16), ended(signal=9, oom=True, last_lines=["loading"])),
        "oom", "Rank 3 (node2) was killed for exceeding the memory limit of 16 GB per node at step 120."),
    "memory error": (
        lambda p: fails(training(p), raised("MemoryError", "", kind="host_memory")),
        "host_memory", "Rank 3 (node2) could not get the memory it asked for at step 120."),
    "numpy memory error": (
        lambda p: fails(training(p), raised("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 9 TiB", kind="host_memory")),
        "host_memory", "Rank 3 (node2) could not get the memory it asked for at step 120."),
    "shared memory": (
        lambda p: fails(training(p), raised("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Bus error. It is "
                        "possible that dataloader's workers are out of shared memory. Please try to raise your shared memory "
                        "limit. unable to write to file </torch_7>: insufficient shared memory (shm)", kind="shm")),
        "shm", "Rank 3 (node2) ran out of shared memory (/dev/shm) at step 120."),
    "segfault": (
        lambda p: fails(training(p), ended(signal=11, last_lines=SEGFAULT.splitlines())),
        "signal", "Rank 3 (node2) crashed with a segmentation fault (SIGSEGV) at step 120."),
    "kill -9": (
        lambda p: fails(training(p), ended(signal=9)),
        "signal", "Rank 3 (node2) was killed from outside (SIGKILL) at step 120."),
    "abort": (
        lambda p: fails(training(p), ended(signal=6, last_lines=["terminate called after x"])),
        "signal", "Rank 3 (node2) crashed with an abort (SIGABRT) at step 120."),
    "floating point": (
        lambda p: fails(training(p), ended(signal=8)),
        "signal", "Rank 3 (node2) crashed with a floating-point error (SIGFPE) at step 120."),
    "import of a module": (
        lambda p: fails(training(p), raised("ModuleNotFoundError", "No module named 'timm'", kind="import"), step=None),
        "import", "Rank 3 (node2) could not import timm."),
    "import of a name": (
        lambda p: fails(training(p), raised("ImportError", "libcudnn.so.9: cannot open shared object file", kind="import"), step=None),
        "import", "Rank 3 (node2) could not import what it needs: libcudnn.so.9: cannot open shared object file."),
    "import of a module on all ranks": (
        lambda p: together(training(p), raised("ModuleNotFoundError", "No module named 'timm'", kind="import")),
        "import", "All 4 ranks could not import timm."),
    "exception on some ranks": (
        lambda p: together(training(p), raised("ValueError", "bad label 11"), (1, 2, 3)),
        "exception", "Ranks 1-3 raised ValueError at step 0: bad label 11."),
    "usage error": (
        lambda p: together(training(p, work={"kind": "script"}), {"kind": "exit", "exit_code": 2, "last_lines": USAGE}, refused=True),
        "exit", "All 4 ranks exited with code 2 at step 0: train.py: error: unrecognized arguments: --lrr 3."),
    "exit code": (
        lambda p: fails(training(p, work={"kind": "script"}), ended(exit_code=3, last_lines=["giving up"])),
        "exit", "Rank 3 (node2) exited with code 3 at step 120."),
    "os._exit": (
        lambda p: fails(training(p), ended(exit_code=0)),
        "exit", "Rank 3 (node2) exited with code 0 at step 120 before the work was done."),
    "gloo time-out": (
        lambda p: gives_up(late(training(p, collective_timeout_min=0.5), raised(
            "RuntimeError", "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation", kind="timeout")),
            "worker_failed"),
        "timeout", "Rank 2 (node2) did not take part in a collective; rank 0 gave up waiting after 30 s at step 120."),
    "nccl time-out": (
        lambda p: gives_up(late(training(p), ended(signal=6, last_lines=[NCCL_LATE])), "worker_failed"),
        "timeout", "Rank 2 (node2) did not take part in a collective; rank 0 gave up waiting after 30 min at step 120."),
    "time-out without a figure": (
        lambda p: gives_up(late(training(p), raised("RuntimeError", "gloo: timed out", kind="timeout",
            last_lines=["step took 35 ms"])), "worker_failed"),
        "timeout", "Rank 2 (node2) did not take part in a collective; rank 0 gave up waiting at step 120."),
    "monitored barrier": (
        lambda p: fails(training(p), raised(
            "RuntimeError", "Ranks 1, 2 failed to pass monitoredBarrier in 5000 ms: timed out", kind="timeout"), rank=0),
        "timeout", "Ranks 1, 2 (node1, node2) did not take part in a collective; rank 0 gave up waiting after 5.0 s at step 120."),
    "disk full in user code": (
        lambda p: fails(training(p), raised("OSError", "[Errno 28] No space left on device: '/scratch/x'", kind="disk_full")),
        "disk_full", "Rank 3 (node2) could not write at step 120: the disk is full."),
    "quota": (
        lambda p: fails(training(p), raised("OSError", "[Errno 122] Disk quota exceeded", kind="disk_full")),
        "disk_full", "Rank 3 (node2) could not write at step 120: the quota is used up."),
    "checkpoints cannot be written": (
        lambda p: gives_up(training(p).event("save_failed", step=140, error="No space left on device", errno_name="ENOSPC"),
                           "disk_at_risk"),
        "disk_full", "The disk is full: no checkpoint could be written since step 140."),
    "a state that cannot be saved": (
        lambda p: gives_up(training(p).event("save_failed", step=140, error="model: cannot pickle 'generator' object", errno_name=None),
                           "cannot_save"),
        "save", "No checkpoint could be written: model: cannot pickle 'generator' object."),
    "a last save that failed": (
        lambda p: gives_up(training(p).event("save_failed", step=140, error="Permission denied", errno_name="EACCES"), "last_save_failed"),
        "save", "The training is done, but its last checkpoint could not be written: Permission denied."),
    "checkpoints that cannot be verified here": (
        lambda p: gives_up(training(p), "no_resume"), "no_resume", "It broke."),
    "state that cannot be loaded again": (
        lambda p: gives_up(training(p).event("save_failed", step=140, error="the state of 'model': best.foo is a train.Foo"),
                           "disk_at_risk"),
        "disk_full", "No checkpoint could be written since step 140."),
    "node silent": (
        lambda p: gives_up(training(p).event("node_lost", host="node2", why="silent"), "node_lost"),
        "node", "Node node2 stopped responding (its host or its network is down)."),
    "a leader that was cut off": (
        lambda p: gives_up(training(p).event("node_lost", host="node2", why="cut_off"), "node_lost"),
        "node", "Node node2 stopped responding with all others (the network of the leader's host is down)."),
    "node down": (
        lambda p: gives_up(training(p).event("node_lost", host="node2", why="slurm"), "node_lost"),
        "node", "Node node2 was reported down by SLURM."),
    "a replacement whose job has ended": (
        lambda p: gives_up(training(p).event("signal", host="node9", name="TERM", meaning="node_leaves"), "node_leaves"),
        "node", "Node node9 was taken away: it had a job of its own (resources.replace), and SLURM has ended that."),
    "a host that is shut down": (
        lambda p: gives_up(training(p).event("signal", host="node2", name="TERM", meaning="host_leaves"), "node_leaves"),
        "node", "SIGTERM was sent to the processes on node2 alone, as when a host is shut down (a reboot, or a cloud that takes it back)."),
    "hang": (
        lambda p: hung(training(p)),
        "hang", "Rank 2 (node2) hung at step 40: no progress for 60 s in wait_for_lock."),
    "frozen": (
        lambda p: hung(training(p), frozen=True),
        "hang", "Rank 2 (node2) was frozen at step 40 (process state T) for 60 s."),
    "left early": (
        lambda p: fails(training(p, work={"kind": "script"}), ended(kind="exit", exit_code=0)),
        "exit", "Rank 3 (node2) exited with code 0 at step 120 before the work was done."),
    "store": (
        lambda p: gives_up(training(p).event("store_lost", host="node1"), "store_failed"),
        "store", "The rendezvous store on node1 was lost."),
    "missing node": (
        lambda p: gives_up(Story(p).submitted().begins().wait(30).event(
            "node_missing", nodes=["node2"], ranks=[2, 3], waited_s=30.0), "nodes_missing", "the run cannot start", cause={
            "kind": "start", "text": "node node2 (ranks 2-3) did not start within 0.5 min (distributed.init_timeout_min)"}),
        "start", "Node node2 (ranks 2-3) did not start within 0.5 min (distributed.init_timeout_min)."),
    "preflight": (
        lambda p: gives_up(Story(p).submitted().begins().event("preflight", ok=False, checks=[
            {"host": "node2", "name": "gpus", "ok": False, "detail": "3 of 4"}]), "preflight_failed"),
        "preflight", "Node node2 failed the check before the start."),
    "time limit": (
        lambda p: gives_up(training(p).event("signal", host="node1", name="USR2", meaning="time_limit"), "time_limit",
                           "the run may not be requeued"),
        "time_limit", "The run reached its time limit of 1 h."),
    "preempted": (
        lambda p: gives_up(training(p).event("signal", host="node1", name="TERM", meaning="preempted"), "preempted",
                           "the run may not be requeued"),
        "preempted", "SLURM preempted the run."),
    "scancel": (
        lambda p: gives_up(training(p).event("signal", host="node1", name="TERM", meaning="cancelled"), "cancelled",
                           "cancelled runs never come back", state="cancelled"),
        "cancelled", "The job 482913 was cancelled (scancel, by its owner or an administrator)."),
    "launcher cancel": (
        lambda p: gives_up(training(p).event("stop_requested", cause="user"), "user", state="cancelled"),
        "user", "The run was cancelled with `launcher cancel`."),
    "TERM here": (
        lambda p: gives_up(here(p).event("signal", host="vm/0", name="TERM", meaning="cancelled"), "cancelled",
                           "cancelled runs never come back", state="cancelled"),
        "cancelled", "The run was cancelled on this machine (`launcher cancel`, Ctrl-C or a signal to its processes)."),
    "cancelled and saved here": (
        lambda p: gives_up(here(p).event("stop_requested", cause="user"), "user", state="cancelled"),
        "user", "The run was cancelled with `launcher cancel` or Ctrl-C."),
    "TERM by hand": (
        lambda p: gives_up(training(p).event("signal", host="node1", name="TERM", meaning="terminated"), "terminated", state="cancelled"),
        "terminated",
        "The job received SIGTERM, which SLURM did not send (scancel --signal=TERM, by a user or an administrator): it saved and ended."),
    "batch script killed": (
        lambda p: gives_up(training(p).event("signal", host="node1", name="TERM", meaning="script_gone"), "script_gone",
                           "the run may not be requeued"),
        "script_gone", "The job's batch script was killed, and SLURM then ends the whole job."),
    "chain": (
        lambda p: gives_up(chained(p), "cancelled", state="cancelled"),
        "chain", "It never started: first, which had to complete first, failed."),
    "slurm is mute": (
        lambda p: gives_up(training(p).event("signal", host="node1", name="TERM", meaning="unknown"), "unknown"),
        "unknown_signal", "SIGTERM came, and SLURM did not answer why; the run saved and stopped."),
    "idle": (
        lambda p: gives_up(training(p, restart={"idle_timeout_min": 20}).event("stop_requested", cause="idle"), "idle"),
        "idle", "The run made no progress for 20 minutes (restart.idle_timeout_min); its allocation was given back."),
    "hours": (
        lambda p: gives_up(training(p, restart={"max_total_hours": 20}).event("stop_requested", cause="total_hours"), "total_hours"),
        "total_hours", "The run's attempts have used 20 hours of allocation (restart.max_total_hours)."),
}  # fmt: skip


def chained(folder: Path) -> Story:
    """A run that waited for one that failed."""
    first = folder / "first"
    first.mkdir()
    (first / "outcome.json").write_text('{"state": "failed", "reason": "", "exit_code": 8}')
    return Story(folder, after=[{"kind": "ok", "run_dir": str(first), "job_id": "7"}]).submitted()


def together(story: Story, cause: dict[str, object], ranks: tuple[int, ...] = (0, 1, 2, 3), **more: object) -> Story:
    """These ranks failed in the same way; nothing was heard of the others; the leader gives up."""
    same = [{"rank": r, "host": f"node{1 + r // 2}"} for r in ranks]
    story.event("worker_failed", rank=ranks[0], host=same[0]["host"], step=0, cause=cause, ranks=same, **more)
    said = str(cause.get("text", "it broke"))
    decided = f"{said[:1].upper()}{said[1:]}; the script ended itself in this way twice."
    story.event("decision", evidence="worker_failed", action="fail", reason=decided)
    return story.event("attempt_ended", why=decided).outcome("failed", decided)


def late(story: Story, cause: dict[str, object]) -> Story:
    """Three of four ranks give up waiting; rank 2 says nothing."""
    story.event("worker_failed", rank=0, host="node1", step=120, cause=cause)
    return story.event(
        "victims", ranks=[{"rank": 1, "after_s": 0.1, "cause": {}}, {"rank": 3, "after_s": 0.2, "cause": {}}]
    )


def hung(story: Story, *, frozen: bool = False) -> Story:
    """Rank 2 sits in a lock, its stack is in its log; or it was stopped."""
    log = story.paths.rank_log(0, 0, 2)
    log.parent.mkdir(parents=True)
    log.write_text('step 40\nCurrent thread 0x1 (most recent call first):\n  File "/runs/r/code/io.py", line 3 in wait_for_lock\n'
                   '  File "/runs/r/code/train.py", line 40 in main\n')  # fmt: skip
    story.event(
        "hang", limit_s=60.0, laggards=[{"rank": 2, "host": "node2", "step": 40, "phase": "train", "frozen": frozen}]
    )
    return gives_up(story, "hang")


@pytest.mark.parametrize("name", CASES)
def test_the_root_cause_is_named(tmp_path: Path, name: str) -> None:
    """Each kind of failure has its sentence, with rank, host and step where they are known."""
    make, kind, sentence = CASES[name]
    found = why(make(tmp_path))

    assert (found.kind, found.sentence) == (kind, sentence)


def test_a_script_that_shows_its_traceback_and_exits_is_told_by_both(tmp_path: Path) -> None:
    """`traceback.print_exc(); sys.exit(1)`: it exited, and the error row says of what."""
    found = why(fails(training(tmp_path), ended(kind="exit", exit_code=1, last_lines=TRACEBACK.splitlines())))

    assert found.sentence == "Rank 3 (node2) exited with code 1 at step 120."
    assert ("error", "ValueError: bad label 11") in found.rows
    assert dict(found.rows)["next"].startswith("correct the code")


def test_an_exception_without_text_is_said_once(tmp_path: Path) -> None:
    """A bare ``assert x``: the sentence has all there is."""
    found = why(fails(training(tmp_path), raised("AssertionError", "")))

    assert found.sentence == "Rank 3 (node2) raised AssertionError at step 120."
    assert "error" not in dict(found.rows)


@pytest.mark.parametrize(
    ("signal", "words"),
    [(24, "ulimit -t"), (25, "ulimit -f"), (9, "kernel log"), (1, "who sent it"), (11, "correct the code")],
)
def test_what_to_do_about_a_signal_depends_on_the_signal(tmp_path: Path, signal: int, words: str) -> None:
    """A limit can be raised; a crash is the code's; what came from outside is to be looked for on the host."""
    assert words in dict(why(fails(training(tmp_path), ended(signal=signal))).rows)["next"]


def older(story: Story, cause: dict[str, object]) -> Story:
    """As `fails`, with a CAUSE of a version that wrote no ``caused_by``."""
    return fails(story, {key: value for key, value in cause.items() if key != "caused_by"})


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (raised("MemoryError", "", kind="oom"), "host_memory"),
        (raised("RuntimeError", "unable to write to file </torch_7>: insufficient shared memory (shm)"), "shm"),
        (raised("OSError", "[Errno 122] Disk quota exceeded"), "disk_full"),
        (raised("ValueError", "bad label 11"), "exception"),
        ({"kind": "oom", "signal": 9, "oom": True}, "oom"),
        ({"kind": "exit", "exit_code": 1, "last_lines": TRACEBACK.splitlines()}, "exception"),
        ({"kind": "exit", "exit_code": 3, "last_lines": ["giving up"]}, "exit"),
        ({"kind": "signal", "signal": 6, "last_lines": [NCCL_LATE]}, "timeout"),
        ({"kind": "signal", "signal": 11, "last_lines": SEGFAULT.splitlines()}, "signal"),
    ],
)
def test_a_failure_that_an_older_version_wrote_is_explained(
    tmp_path: Path, cause: dict[str, object], kind: str
) -> None:
    """Older versions told four kinds apart and had not read the log: the report does it for their runs."""
    assert why(older(training(tmp_path), cause)).kind == kind


def test_the_report_reads_no_kind_out_of_words_that_the_nodes_have_read(tmp_path: Path) -> None:
    """The node's kind stands, whatever the message and the last lines say."""
    cause = raised("RuntimeError", "CUDA out of memory", last_lines=["gloo: barrier timed out"])
    assert why(fails(training(tmp_path), cause)).kind == "exception"


def test_every_kind_is_tested() -> None:
    """No explanation is without a case here; those that need SLURM's word have tests below, lost folders in test_lost_runs."""
    tested = {kind for _, kind, _ in CASES.values()} | {
        "slurm_oom", "slurm_node", "leader", "other", "lost_requeue", "gone", "unreadable",
    }  # fmt: skip

    assert set(EXPLANATIONS) == tested


def test_a_failed_assertion_of_a_kernel_is_shown_with_how_to_find_its_line(tmp_path: Path) -> None:
    """CUDA reports it at a later call: the kernel's own words, the driver's, and the variable that makes CUDA wait."""
    story = training(tmp_path, gpus_per_node=2)
    story.event("gpu_error", host="node2", gpu=1, xid=43).event("gpu_error", host="node1", gpu=0, xid=31)
    found = why(fails(story, ended(signal=6, last_lines=ASSERTED.splitlines())))
    page = "\n".join(found.lines())

    assert "Assertion `srcIndex < n` failed." in page
    assert "GPU 1 of node2 reported Xid 43 (the GPU stopped the program after a fault of the program)" in page
    assert "Xid 31" not in page
    assert found.lines()[-1].endswith("environment.variables.CUDA_LAUNCH_BLOCKING=1")


def test_a_broken_gpu_is_told_with_the_drivers_word(tmp_path: Path) -> None:
    """The Xid says what CUDA's error does not: what became of the GPU. The host is not to be used again."""
    story = training(tmp_path, gpus_per_node=2)
    story.event("gpu_error", host="node2", gpu=1, xid=79)
    found = why(fails(story, raised("torch.AcceleratorError", "CUDA error: unknown error", kind="gpu")))

    assert found.sentence == "Rank 3 (node2, GPU 1) lost its GPU at step 120: unknown error."
    assert "GPU 1 of node2 reported Xid 79 (it has fallen off the bus)" in "\n".join(found.lines())
    assert found.lines()[-1].endswith("slurm.exclude=node2")


def test_the_evidence_reads_as_designed(tmp_path: Path) -> None:
    """The page of a deterministic crash, word by word."""
    story = training(tmp_path, gpus_per_node=2)
    cause = raised("torch.OutOfMemoryError", OOM_TEXT, kind="cuda_oom")
    for _ in range(2):
        story.event("worker_failed", rank=3, host="node2", step=120, cause=cause)
        story.event("decision", evidence="worker_failed", action="new_round", reason="x; y.").wait(1)
        story.round_starts(resume_step=100).event("first_step", step=101)
    fails(story, cause, reason="the same exception came at the same step 3 times: the program is wrong")
    head, when, *rest = why(story).lines()

    assert head == "Rank 3 (node2, GPU 1) ran out of GPU memory at step 120."
    assert when.endswith("(60 s ago), attempt 0, round 2")
    assert rest == [
        "  where    train.py:118 in step  loss = criterion(model(x), y)",
        "  error    torch.OutOfMemoryError: wanted 1.20 GiB, 317.00 MiB of 79.2 GiB free",
        "  victims  ranks 0-2 (failed because of it, 0.2 to 0.8 s later)",
        "  did      2 restarts, then stopped: the same exception came at the same step 3 times: the program is wrong",
        "  safe     step 100, complete on disk",
        "  next     use a smaller batch, then: launcher resubmit resnet50-1121-0842-k7f",
    ]


@pytest.mark.parametrize(
    ("older", "said"),
    [(False, "step 100 was saved, but its checkpoint is not there"),
     (True, "step 50, complete on disk; step 100 was saved, but its checkpoint is not there")],
)  # fmt: skip
def test_a_checkpoint_that_was_deleted_is_not_called_safe(tmp_path: Path, older: bool, said: str) -> None:
    """What the events tell of was there once; what a resubmission continues from is what the disk has now."""
    story = Story(tmp_path).submitted().begins().round_starts().event("first_step", step=1, seconds=5.0)
    story.event("saved", step=50, seconds=1.0).event("saved", step=100, seconds=1.0)
    if older:
        commit(story, 50)

    assert ("safe", said) in why(fails(story, raised("ValueError", "x"))).rows


@pytest.mark.parametrize("node_too", [False, True])
def test_a_run_that_completed_tells_its_last_interruption(tmp_path: Path, node_too: bool) -> None:
    """Ranks failed on the way to its end: the run completed, and what interrupted it last is explained as while it ran."""
    story, count = training(tmp_path), "1 interruption"
    if node_too:
        story.event("node_lost", host="node2", why="silent").event("round_ended", why="x")
        story.event("decision", evidence="node_lost", action="new_round", reason="x; y.").round_starts(resume_step=100)
        story.event("first_step", step=101)
        count = "2 interruptions"
    story.event("worker_failed", rank=3, host="node2", step=120, cause=raised("ValueError", "boom"))
    story.event("decision", evidence="worker_failed", action="new_round", reason="x; y.").wait(1)
    story.round_starts(resume_step=100).event("first_step", step=101)
    story.event("decision", evidence="done", action="complete", reason="Every rank has finished; all steps are done.")
    found = why(story.outcome("completed", "All 600 steps are done.", step=600))

    assert found.sentence == (
        f"The run completed after step 600, with {count}. The last: Rank 3 (node2) raised ValueError at step 120: boom."
    )
    assert (found.kind, found.state, found.rank, found.step) == ("completed", "completed", 3, 600)
    assert "next" not in dict(found.rows)
    assert dict(found.rows)["did"].startswith("started the workers again")


def test_restarts_are_counted_from_the_last_submission_and_told_with_the_leaders_reason(tmp_path: Path) -> None:
    """Errors A, B, A use up restart.max_restarts: never the same each time. Submitted again, one restart is one."""
    story = training(tmp_path)
    a, b = raised("ValueError", "A"), raised("KeyError", "'B'")
    said = []
    for causes in ([a, b, a], [b, a]):
        for cause in causes[:-1]:
            story.event("worker_failed", rank=3, host="node2", step=120, cause=cause)
            story.event("decision", evidence="worker_failed", action="new_round", reason="x; y.").wait(1).round_starts()
            said.append(dict(why(story).rows)["did"])
        fails(story, causes[-1])
        said.append(dict(why(story).rows)["did"])
        story.paths.outcome.unlink()
        story.wait(60).submitted(by="resubmit").begins().round_starts()

    used_up = "then stopped: restart.max_restarts is used up and training got no further"
    again = "starts the workers again"
    assert said == [again, f"{again} (2 restarts so far)", f"2 restarts, {used_up}", again, f"1 restart, {used_up}"]


@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_what_ended_an_earlier_submission_does_not_explain_this_one(tmp_path: Path, state: str) -> None:
    """TERM cancelled it (or rank 3 failed) two days ago; submitted again, it was cancelled in the queue (or could not begin)."""
    story = training(tmp_path)
    if state == "cancelled":
        story.event("signal", host="node1", name="TERM", meaning="terminated")
        gives_up(story, "terminated", "cancelled runs never come back by themselves", state="cancelled")
    else:
        fails(story, raised("ValueError", "x"))
    story.wait(2 * 86400).submitted(job_id="77", by="resubmit").wait(60)
    found = why(story.outcome(state, "It ended while it waited to go on.", attempt=None))

    assert (found.sentence, found.kind) == ("It ended while it waited to go on.", "other")
    assert not [row for row in found.rows if row[0] == "did"]


def test_a_run_that_was_submitted_again_says_so(tmp_path: Path) -> None:
    """That cancelled runs never come back by themselves would alone contradict a run that goes on."""
    story = training(tmp_path).event("signal", host="node1", name="TERM", meaning="terminated")
    gives_up(story, "terminated", "cancelled runs never come back by themselves", state="cancelled")
    before = dict(why(story).rows)["did"]
    story.paths.outcome.unlink()
    story.wait(60).submitted(by="resubmit").begins().round_starts().state(step=130)
    found = why(story)

    assert before == "stopped: cancelled runs never come back by themselves"
    assert found.state == "running"
    assert dict(found.rows)["did"].startswith(f"{before}; resubmitted at ")


@pytest.mark.parametrize(("saves", "words"), [(True, "continues it"), (False, "runs it again")])
def test_only_a_run_that_saved_something_is_said_to_be_continued(tmp_path: Path, saves: bool, words: str) -> None:
    """Without a checkpoint another attempt begins anew."""
    story = training(tmp_path) if saves else Story(tmp_path).submitted().begins().round_starts()
    said = why(gives_up(story.event("stop_requested", cause="user"), "user", state="cancelled"))

    assert dict(said.rows)["next"] == f"launcher resubmit {said.run} {words}"


def test_one_failure_of_all_ranks_has_no_victims(tmp_path: Path) -> None:
    """No row calls a rank a victim; what the launcher did is told whole, whatever the script's last line holds."""
    cause = {"kind": "exit", "exit_code": 2, "last_lines": USAGE, "text": "all 4 ranks exited with code 2: no; never"}
    rows = dict(why(together(training(tmp_path), cause, refused=True)).rows)

    assert "victims" not in rows
    assert rows["did"] == "stopped: the script ended itself in this way twice"


def test_ranks_that_waited_in_vain_together_are_not_who_was_missing(tmp_path: Path) -> None:
    """Three ranks give up in the same words, and so are one failure: the fourth is the one that did not come."""
    cause = raised("launcher.errors.StragglerError", "waited 30000 ms in the barrier: timed out", kind="timeout")
    found = why(together(training(tmp_path), cause, (0, 1, 3)))

    assert found.sentence.startswith("Rank 2 (node2) did not take part in a collective")


def test_ranks_that_were_ended_before_their_own_time_out_are_not_accused(tmp_path: Path) -> None:
    """The leader ends the others a second after the first time-out: two that said nothing may have waited as well."""
    cause = raised("RuntimeError", "Timed out waiting 30000ms for recv operation", kind="timeout")
    story = training(tmp_path).event("worker_failed", rank=0, host="node1", step=120, cause=cause)
    story.event("victims", ranks=[{"rank": 1, "after_s": 0.1, "cause": {}}])
    found = why(gives_up(story, "worker_failed"))

    assert found.sentence == (
        "Rank 0 gave up waiting in a collective after 30 s at step 120, perhaps for ranks 2, 3 (node2)."
    )


def test_a_requeue_that_slurm_has_lost_is_named(tmp_path: Path) -> None:
    """slurmctld was killed just after it had taken the run back: no leader died, and what continues the run is said."""
    story = training(tmp_path).event(
        "decision", evidence="preempted", action="requeue", reason="The job was preempted; r."
    )
    story.event("requeued", how="requeue", job_id="482913", seconds=1.0)
    found = why(story, {"482913": Job("FAILED")})

    assert found.kind == "lost_requeue"
    assert found.sentence.startswith("SLURM accepted the requeue and then lost it")
    assert dict(found.rows)["next"].startswith("launcher resubmit")
    assert "launcher resubmit" in summarise_history(story.history(), {"482913": Job("FAILED")}, story.t + 300).reason


def test_a_segfaults_place_comes_from_the_dumped_stack(tmp_path: Path) -> None:
    """faulthandler's dump names the user's innermost frame."""
    story = fails(training(tmp_path), ended(signal=11, last_lines=SEGFAULT.splitlines()))

    assert ("where", "ops.py:12 in scale") in why(story).rows


IN_COLLECTIVE = """Current thread 0x1 (most recent call first):
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/runs/r/code/train.py", line 31 in main
"""

AT_WORK = """Current thread 0x1 (most recent call first):
  File "/runs/r/code/train.py", line 31 in wait_for_dataset
"""


def write_stack(story: Story, rank: int, stack: str, round_: int = 1) -> None:
    """What a rank has dumped into its log."""
    log = story.paths.rank_log(0, round_, rank)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(stack)


IN_LOADER = """Current thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 947 in wait
  File "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1320 in _get_data
  File "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1455 in _next_data
  File "/runs/r/code/train.py", line 31 in read_all
  File "/runs/r/code/train.py", line 40 in hungry_loader
"""


@pytest.mark.parametrize(
    ("stack", "sentence"),
    [("", "Rank 2 (node2) hung: no progress for 60 s."),
     (IN_COLLECTIVE.replace("/env/lib/python3.11/site-packages/torch/distributed/", "/x/"),
      "Rank 2 (node2) hung: no progress for 60 s in all_reduce."),
     (IN_COLLECTIVE, "No rank made progress for 60 s.")],
    ids=["frozen", "elsewhere", "all wait"],
)  # fmt: skip
def test_stacks_tell_who_hangs_when_nobody_lags(tmp_path: Path, stack: str, sentence: str) -> None:
    """All ranks report the same step: the one without a stack, or outside any collective, is the one waited for."""
    story = training(tmp_path)
    for rank in range(4):
        write_stack(story, rank, stack if rank == 2 else IN_COLLECTIVE, 0)

    assert why(gives_up(story.event("hang", limit_s=60.0, laggards=[]), "hang")).sentence == sentence


def test_ranks_that_wait_at_different_places_are_told_with_them(tmp_path: Path) -> None:
    """Half of the ranks wait in another collective: none is to blame alone, and both places are shown."""
    story = training(tmp_path)
    for rank in range(4):
        other = IN_COLLECTIVE.replace("all_reduce", "broadcast").replace("31 in main", "40 in share")
        write_stack(story, rank, other if rank > 1 else IN_COLLECTIVE, 0)
    found = why(gives_up(story.event("hang", limit_s=60.0, laggards=[]), "hang"))

    assert found.sentence == (
        "No rank made progress for 60 s: they stood at different places, ranks 0, 1 in all_reduce, ranks 2, 3 in broadcast."
    )
    assert [text for label, text in found.rows if label == "where"] == [
        "ranks 0, 1: train.py:31 in main", "ranks 2, 3: train.py:40 in share",
    ]  # fmt: skip


def test_all_ranks_at_work_at_one_place_are_told_with_it(tmp_path: Path) -> None:
    """Everybody waits for a file: nobody waits for a rank, and the user's function is named."""
    story = training(tmp_path)
    for rank in range(4):
        write_stack(story, rank, AT_WORK, 0)
    found = why(gives_up(story.event("hang", limit_s=60.0, laggards=[]), "hang"))

    assert found.sentence == "All 4 ranks hung: no progress for 60 s in wait_for_dataset."


@pytest.mark.parametrize(
    ("others", "said"),
    [(0, "all stood in wait_for_dataset"),
     (3, "ranks 0, 2, 4 and 93 more stood in wait_for_dataset, ranks 192, 194, 196 and 29 more stood in all_reduce")],
)  # fmt: skip
def test_of_thousands_of_ranks_those_looked_at_are_spread_and_are_who_is_told(
    tmp_path: Path, others: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many ranks as are looked at, at work in one line, or a quarter of them at the end in a collective: nobody is blamed."""
    monkeypatch.setattr(stacks, "MOST_STACKS", 128)
    story = training(tmp_path).round_starts(ranks=256)
    for rank in range(256):
        write_stack(story, rank, IN_COLLECTIVE if others and rank >= 64 * others else AT_WORK)
    found = why(gives_up(story.event("hang", limit_s=60.0, laggards=[]), "hang"))

    assert (found.sentence, found.rank) == (f"No rank made progress for 60 s: of 128 ranks looked at, {said}.", None)


def test_the_one_of_512_ranks_that_hangs_is_found(tmp_path: Path) -> None:
    """64 nodes wait for rank 133, which is in the user's own code."""
    story = training(tmp_path).round_starts(ranks=512)
    for rank in range(512):
        write_stack(story, rank, AT_WORK if rank == 133 else IN_COLLECTIVE)
    found = why(gives_up(story.event("hang", limit_s=60.0, laggards=[]), "hang"))

    assert found.rank == 133
    assert dict(found.rows)["where"] == "train.py:31 in wait_for_dataset"


def test_a_hang_in_a_library_shows_who_called_it(tmp_path: Path) -> None:
    """A loader's process that never answers: the main thread sits in select, below DataLoader, below the user's functions."""
    story = training(tmp_path)
    log = story.paths.rank_log(0, 0, 2)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(IN_LOADER)
    hung = story.event("hang", limit_s=60.0, laggards=[{"rank": 2, "host": "node2", "step": 120, "phase": "train"}])
    found = dict(why(gives_up(hung, "hang")).rows)

    assert found["where"] == "train.py:31 in read_all"
    assert found["stack"] == (
        "select (selectors.py:415) in wait (connection.py:947) in _get_data (dataloader.py:1320) in read_all (train.py:31) in hungry_loader "
        "(train.py:40)"
    )


def test_a_comprehension_is_named_by_its_function(tmp_path: Path) -> None:
    """Frames of ``<listcomp>`` and ``<lambda>`` say nothing: the function around them does."""
    frames = [
        {"file": "/c/train.py", "line": 9, "function": name, "code": "x"}
        for name in ("<listcomp>", "open_many", "main")
    ]
    found = why(fails(training(tmp_path), {"exception": "OSError", "message": "m", "frames": frames, "caused_by": []}))

    assert dict(found.rows)["where"] == "/c/train.py:9 in open_many  x"


def test_threads_that_had_died_are_told_with_a_failure(tmp_path: Path) -> None:
    """An empty queue is told with the thread that would have filled it."""
    story = training(tmp_path)
    log = story.paths.rank_log(0, 0, 3)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(
        'Exception in thread Thread-1 (prefetch):\nTraceback (most recent call last):\n  File "/c/data.py", line 12, in prefetch\n'
        '    raise ValueError("shard 9 is lost")\nValueError: shard 9 is lost\n'
    )
    found = why(fails(story, {"kind": "exception", "exception": "queue.Empty", "message": "", "caused_by": []}))

    assert (
        "error",
        "thread Thread-1 (prefetch) had ended: ValueError: shard 9 is lost (data.py:12 in prefetch)",
    ) in found.rows


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_a_loaders_process_that_left_is_told_by_what_it_printed(tmp_path: Path, prefix: str) -> None:
    """torch says only that it exited unexpectedly; its own excepthook puts the rank before each line of a script's traceback."""
    lines = ["decoder licence 8 has expired", f"{prefix}Traceback (most recent call last):", f"{prefix}RuntimeError: x"]
    cause = {
        "kind": "exception",
        "exception": "RuntimeError",
        "message": "DataLoader worker (pid(s) 13910) exited unexpectedly",
        "last_lines": lines,
    }
    found = why(fails(training(tmp_path), {**cause, "caused_by": []}))

    assert ("log", "decoder licence 8 has expired") in found.rows


def test_a_damaged_checkpoint_is_told_with_the_one_that_was_used(tmp_path: Path) -> None:
    """After a failure the newest checkpoint could not be read: training went on from an older one."""
    story = training(tmp_path).event(
        "worker_failed", rank=1, host="node1", step=120, cause={"kind": "signal", "signal": 9}
    )
    story.event("decision", evidence="worker_failed", action="new_round", reason="x; y.")
    story.event("checkpoint_damaged", path="checkpoints/step-00000100", why="rank-1.pt is missing").round_starts(
        resume_step=60
    )
    found = why(story)

    assert (
        "damaged",
        "checkpoint step-00000100 is damaged: rank-1.pt is missing; training went on from step 60",
    ) in found.rows


def test_a_run_that_goes_on_tells_its_last_interruption(tmp_path: Path) -> None:
    """While it trains again, ``why`` tells what happened and how soon it went on."""
    story = training(tmp_path).event(
        "worker_failed", rank=1, host="node1", step=120, cause={"kind": "signal", "signal": 9}
    )
    story.event("decision", evidence="worker_failed", action="new_round", reason="x; y.").wait(0.2).round_starts(
        resume_step=100
    )
    story.wait(0.3).event("first_step", step=101).state(step=130)
    found = why(story, later=1.0)

    assert found.sentence == "Rank 1 (node1) was killed from outside (SIGKILL) at step 120. The run goes on."
    assert ("did", "started the workers again; training went on 0.5 s later") in found.rows


@pytest.mark.parametrize("text", ["", "no JSON\n", None], ids=["empty", "garbage", "folder"])
@pytest.mark.parametrize(("word", "state"), [("", "pending"), ("COMPLETED", "failed"), ("PENDING", "pending")])
def test_a_history_that_cannot_be_read_is_said_first(tmp_path: Path, text: str | None, word: str, state: str) -> None:
    """Whoever submits a run writes its first event: an empty file is damage. What SLURM still tells of its job is told."""
    story = Story(tmp_path)
    story.paths.submission.write_text(json.dumps({"job_id": "482913", "backend": "slurm"}))
    if text is None:
        story.paths.events.mkdir()
    else:
        story.paths.events.write_text(text)
    found = why(story, {"482913": Job(word)} if word else None, later=60)

    says = f" (SLURM says {word})" if state == "failed" else ""
    unknown = f"Its files cannot be read, so its state is not known{says}."
    assert (found.sentence, found.state) == (
        unknown if word != "PENDING" else "Nothing has gone wrong: the run waits.",
        state,
    )


def test_nothing_wrong_is_said_so(tmp_path: Path) -> None:
    """Pending, running and completed runs without a failure have no cause."""
    pending = Story(tmp_path / "a").submitted()
    running = training(tmp_path / "b").state(step=120)
    completed = training(tmp_path / "c").outcome("completed", "", step=600)

    assert why(pending).sentence == "Nothing has gone wrong: the run waits."
    assert why(running, later=1).sentence == "Nothing has gone wrong so far: the run is training."
    assert why(completed).sentence == "Nothing went wrong: the run completed after step 600."


@pytest.mark.parametrize(
    "reason", ["BadConstraints", "ReqNodeNotAvail, UnavailableNodes:node4",
               "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"],
)  # fmt: skip
def test_the_launchers_part_in_a_job_that_no_host_fits_is_told(tmp_path: Path, reason: str) -> None:
    """Hosts that the launcher keeps the job off are named, with what gives them back and leaves the user's own exclusions.

    Not so before the first requeue, of hosts given up since, nor while SLURM gives another reason.
    """
    job = Job("PENDING")
    job.reason = reason
    story = training(tmp_path).event("node_lost", host="node2", why="silent")
    story.paths.job.write_text("slurm:\n  exclude: node9\n")
    story.event("decision", evidence="node_lost", action="requeue", reason="r")
    story.event("excluded", hosts=["node1", "node2"], why="it stopped responding")
    before = why(story, {"482913": job})
    story.event("readmitted", hosts=["node1"], why="w").event("attempt_ended").event("requeued")
    after = why(story, {"482913": job})
    job.reason = "Resources"

    said = f"SLURM finds no hosts for the job ({reason}), and the launcher excludes node2 (it stopped responding)."
    assert said in after.sentence
    assert dict(after.rows)["next"] == "scontrol update JobId=482913 ExcNodeList=node9"
    assert "keeps it off" not in before.sentence + why(story, {"482913": job}).sentence


@pytest.mark.parametrize(
    ("reason", "kind", "sentence"),
    [("", "preempted", "SLURM took the job back to its queue: a preemption, or scontrol requeue. The run waits to go on."),
     ("job_requeued_in_held_state", "pending", "SLURM took the job back and holds it (scontrol requeuehold). SLURM does not start job 482913: "
      "it was requeued on hold (job_requeued_in_held_state).")],
)  # fmt: skip
def test_a_job_that_slurm_took_back_is_not_said_to_be_preempted_for_sure(
    tmp_path: Path, reason: str, kind: str, sentence: str
) -> None:
    """``scontrol requeue[hold]`` looks like a preemption without grace (`launcher.slurm.meaning`); what it waits for tells them apart."""
    job = Job("PENDING")
    job.reason = reason
    story = training(tmp_path).event("signal", host="node1", name="TERM", meaning="preempted_now")
    story.event("stop_requested", cause="preempted_now", deadline_s=0)
    story.event("decision", evidence="preempted_now", action="requeue", reason="r").event("attempt_ended")
    said = why(story.event("requeued", how="slurm", job_id="482913"), {"482913": job})

    assert (said.kind, said.sentence) == (kind, sentence)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("TERM", "The job received SIGTERM, which SLURM did not send"),
        ("INT", "The job received SIGINT, which SLURM did not send"),
    ],
)
def test_the_signal_that_somebody_sent_is_named(tmp_path: Path, name: str, sentence: str) -> None:
    """The event before the decision is the stop; the signal is the one before that."""
    story = (
        training(tmp_path)
        .event("signal", host="node1", name=name, meaning="terminated")
        .event("stop_requested", cause="terminated")
    )

    assert why(gives_up(story, "terminated", state="cancelled")).sentence.startswith(sentence)


@pytest.mark.parametrize(
    ("reason", "means", "next_"),
    [
        ("JobHeldUser", "its owner holds it", "scontrol release 482913"),
        ("launch failed requeued held", "SLURM could not launch it, and holds it", "scontrol release 482913"),
        ("JobHeldAdmin", "an administrator holds it", "scontrol release 482913, by the administrator who held it"),
    ],
)
def test_a_held_job_is_not_said_to_wait(tmp_path: Path, reason: str, means: str, next_: str) -> None:
    """Nothing starts it but a release: SLURM holds a job itself when a launch failed, a slurmctld that was killed for one."""
    job = Job("PENDING")
    job.reason = reason
    said = why(Story(tmp_path / "new").submitted(), {"482913": job})
    story = training(tmp_path / "old").event("node_lost", host="node2", why="silent")
    story.event("decision", evidence="node_lost", action="requeue", reason="r").event("attempt_ended").event("requeued")
    after = why(story, {"482913": job})

    assert said.sentence in after.sentence
    assert after.sentence != said.sentence
    assert dict(after.rows)["next"] == next_
    assert said.sentence == f"SLURM does not start job 482913: {means} ({reason})."
    assert dict(said.rows)["next"] == next_


class Job:
    """SLURM's view."""

    def __init__(self, state: str) -> None:
        self.state, self.reason = state, ""
        self.name, self.command, self.partition, self.start_estimate_t = "", "", "", None


@pytest.mark.parametrize(
    ("word", "kind", "sentence"),
    [("OUT_OF_MEMORY", "slurm_oom", "The job was killed for exceeding the memory limit at step 100."),
     ("NODE_FAIL", "slurm_node", "A node of the allocation died."),
     ("TIMEOUT", "time_limit", "The run reached its time limit of 1 h at step 100."),
     ("CANCELLED", "cancelled", "The job 482913 was cancelled (scancel, by its owner or an administrator)."),
     ("FAILED", "leader", "The leader on node1 died at step 100 and left no message.")],
)  # fmt: skip
def test_an_end_without_an_outcome_is_explained_by_slurm(tmp_path: Path, word: str, kind: str, sentence: str) -> None:
    """When the leader could not write, SLURM's word is the evidence."""
    found = why(training(tmp_path), {"482913": Job(word)}, later=300)

    assert (found.kind, found.sentence) == (kind, sentence)


@pytest.mark.parametrize("slurm", [None, {}, {"482913": Job("FAILED")}], ids=["local", "forgotten", "FAILED"])
def test_a_leader_that_died_after_its_decision_had_told_the_cause(
    tmp_path: Path, slurm: dict[str, object] | None
) -> None:
    """Killed between its decision and its outcome: what failed is known, also where SLURM was told nothing of it."""
    story = training(tmp_path, batch="local" if slurm is None else "slurm")
    if slurm is None:
        story.submitted(backend="local")
        story.begins(job_id="1").round_starts()
    story.event("worker_failed", rank=3, host="node2", step=120, cause=raised("ValueError", "boom"))
    story.event("decision", evidence="worker_failed", action="fail", reason="x; restart.max_restarts is used up.")
    found = why(story, slurm, later=3600)

    assert (found.state, found.sentence) == ("failed", "Rank 3 (node2) raised ValueError at step 120: boom.")
    assert dict(found.rows)["did"] == "stopped: restart.max_restarts is used up"


def test_a_runs_name_is_not_taken_for_slurms_word(tmp_path: Path) -> None:
    """A local run called TIMEOUT-study whose leader died: its id stands in the reason, and no time limit was reached."""
    story = (
        Story(tmp_path, name="TIMEOUT-study", batch="local")
        .submitted(backend="local")
        .begins(job_id="1")
        .round_starts()
    )
    story.paths.submission.write_text(json.dumps({"backend": "local", "host": socket.gethostname(), "pid": 2**22 + 1}))
    found = why(story, later=60)

    assert (found.state, found.kind) == ("failed", "leader")


def test_a_dead_leaders_last_words_are_shown(tmp_path: Path) -> None:
    """A traceback in the agent's log says why the leader died."""
    story = training(tmp_path)
    story.paths.submitit.mkdir()
    (story.paths.submitit / "482913_0_log.out").write_text("Traceback (most recent call last):\n  File \"/x/y.py\", line 3, "
                                                           "in f\n    g()\nOSError: [Errno 5] Input/output error\n")  # fmt: skip
    found = why(story, {"482913": Job("FAILED")}, later=300)

    assert ("error", "OSError: [Errno 5] Input/output error") in found.rows


@pytest.mark.parametrize(
    ("line", "kind", "sentence"),
    [("/opt/py/bin/python: Error while finding module specification for 'submitit.core._submit' (ModuleNotFoundError: "
      "No module named 'submitit')", "import", "The agents could not import submitit."),
     ("FATAL:   could not open image /img/lab.sif: no such file", "leader",
      "No agent could begin: FATAL: could not open image /img/lab.sif: no such file.")],
)  # fmt: skip
def test_agents_that_never_began_are_told_in_their_own_words(
    tmp_path: Path, line: str, kind: str, sentence: str
) -> None:
    """What an image or an interpreter lacks stands between srun's and the batch script's lines, six times over."""
    story = Story(tmp_path, container="/img/lab.sif", python="/opt/py/bin/python").submitted()
    story.event("decision", evidence="leader_gone", action="fail", reason="No agent could begin, 6 times in a row.")
    story.outcome("failed", "No agent could begin, 6 times in a row.", exit_code=8)
    story.paths.submitit.mkdir()
    (story.paths.submitit / "482913_0_log.out").write_text(
        "launcher: start 482913.4\nrequeued: The job was preempted; the run goes on in another attempt.\n"
        f"launcher: start 482913.5\n{line}\nsrun: error: node1: task 0: Exited with exit code 1\nNo agent could begin, 6 times in a row.\n"
    )
    found = why(story)

    assert (found.kind, found.sentence) == (kind, sentence)
    assert "preempted" not in str(found.rows)
    if kind == "import":
        assert "install it for /opt/py/bin/python in /img/lab.sif" in dict(found.rows)["next"]


def test_a_leader_whose_end_the_batch_script_told_of_is_the_cause(tmp_path: Path) -> None:
    """Final: named with its host and the last words of its agent; while the run goes on: without words of a later attempt."""
    traceback = 'Traceback (most recent call last):\n  File "/x/y.py", line 3, in f\n    g()\nOSError: [Errno 5] Input/output error\n'
    final = gives_up(training(tmp_path / "a"), "leader_gone", step=100)
    goes_on = training(tmp_path / "b").event("decision", evidence="leader_gone", action="requeue", reason="r")
    goes_on.event("attempt_ended").event("requeued").wait(5).begins().state(step=101)
    for story in (final, goes_on):
        story.paths.submitit.mkdir()
        (story.paths.submitit / "482913_0_log.out").write_text(traceback)
    ended, running = why(final), why(goes_on, later=1)

    assert (ended.kind, running.kind) == ("leader", "leader")
    assert ended.sentence == "The leader on node1 died at step 100 and left no message."
    assert ("error", "OSError: [Errno 5] Input/output error") in ended.rows
    assert running.sentence.startswith("The leader on node1 died and left no message.")
    assert "Input/output" not in str(running.rows)
    completed = why(goes_on.outcome("completed", "All 600 steps are done.", step=600))
    assert completed.sentence.endswith("with 1 interruption. The last: The leader on node1 died and left no message.")
    assert "600 steps" not in str(completed.rows)


def test_terminal_escapes_in_a_message_are_defused(tmp_path: Path) -> None:
    """What a program printed cannot steer the reader's terminal."""
    story = fails(training(tmp_path), raised("ValueError", "\x1b[2J\x07bad\nworse"))

    assert all(line.isprintable() for line in why(story).lines())


def test_a_checkpoint_that_cannot_be_loaded_names_type_and_option(tmp_path: Path) -> None:
    """The type and the option are told whole, however long the file's name is, and code is not to be corrected."""
    message = (
        "the checkpoint holds a collections.deque and cannot be loaded safely; resubmit --unsafe-load loads it all the "
    )
    message += f"same, which runs any code that it holds: /{'x' * 200}/state.pt"
    told = why(fails(training(tmp_path), raised("launcher.errors.CheckpointError", message)))

    assert "holds a collections.deque and cannot be loaded safely; resubmit --unsafe-load loads it" in told.sentence
    assert dict(told.rows)["next"] == "if you trust the file: launcher resubmit resnet50-1121-0842-k7f --unsafe-load"

    message = (
        "the checkpoint cannot be unpickled (x); define or import C before attach(), then resubmit --code --unsafe-load"
    )
    told = why(fails(training(tmp_path / "2"), raised("launcher.errors.CheckpointError", message, kind="unloadable")))
    assert (
        dict(told.rows)["next"]
        == "correct the code, then: launcher resubmit resnet50-1121-0842-k7f --code --unsafe-load"
    )


@pytest.mark.parametrize(
    ("phase", "words"), [("preflight", "checking its nodes"), ("starting", "starting"), ("", "running")]
)
def test_what_a_running_run_does_is_said_in_words(tmp_path: Path, phase: str, words: str) -> None:
    """The names of phases in state.json are not all English."""
    story = training(tmp_path).state(phase=phase)
    assert why(story).sentence == f"Nothing has gone wrong so far: the run is {words}."
