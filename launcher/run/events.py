"""The vocabulary of ``events.jsonl``: what happened to a run, in order, told by its leader.

Every event has ``t`` (seconds since the epoch), ``type``, ``attempt`` (0, 1, ...; None before the first leader)
and, inside a round, ``round``. Other keys by type (readers tolerate missing keys and unknown types):

submitted          job_id, backend ("slurm"|"local"), nodes, spare_nodes, tasks_per_node, by ("submit"|"resubmit"|"continuation"),
                   changes (list of "key=value" of a resubmit)
attempt_started    job_id, host (the leader's), restart_count (SLURM_RESTART_COUNT), submitted_t (when this wait began)
waiting            runs (ids)                                           (without SLURM: a chained run waits for others)
node_joined        node (index), host, facts
node_missing       nodes (list of host names), ranks, waited_s          (repeated as long as someone is missing)
preflight          ok, seconds, checks: [{host, name, ok, detail}], bandwidth_gb_s
round_started      world_size, master_addr, master_port, ranks: [{rank, host, node, local_rank}], spares: [host],
                   resume_step (None: from scratch), resume_path
first_step         step, seconds (from round_started)
epoch              epoch, loss                                          (a task's average over all ranks)
evaluated          step, metrics
save_started       step
saved              step, seconds, blocked_s, bytes, path, reason ("interval"|"stop"|"end"|"user")
save_failed        step, error, errno_name
checkpoint_damaged path, why                                            (found at resume; an older one is used)
worker_failed      rank, host, step, cause: see CAUSE below             (the first failure of a round)
                   ranks: [{rank, host}], only where several failed in the very same way; refused (true), only where every rank
                   ended itself with the same exit code before any progress
victims            ranks: [{rank, host, after_s, cause}]                (those that failed because of the first)
node_lost          host, why ("silent"|"closed"|"slurm")
hang               limit_s, laggards: [{rank, host, step, phase}]
store_lost         host
signal             host, name ("TERM"|"USR2"), meaning ("preempted"|"preempted_now"|"cancelled"|"time_limit"|"user"|"terminated"
                   |"script_gone"|"nothing"|"unknown"), left_s (until KILL; null: not known)
stop_requested     cause (as meaning above), deadline_s, save (bool)
agreed             step
stopped            step, lost_steps
decision           evidence, action, reason                             (one row of node/policy/decisions.py)
                   said: how the leader ended, only of leader_gone and where somebody knows
excluded           hosts, why
readmitted         hosts, why                                           (excluded ones that SLURM needs to start the job)
requeued           how ("requeue"|"continuation"|"slurm"), job_id, seconds
round_ended        why
attempt_ended      why, allocation_s
ended              state ("completed"|"failed"|"cancelled"), reason (one sentence), exit_code, step
notified           kind ("started"|"preempted")                          (everybody who was to be told has taken it)
warning            text

CAUSE: {kind, text, exception, message, frames: [{file, line, function, code}], signal, exit_code, last_lines, oom (bool)}
kind: "exception"|"signal"|"exit"|"import"|"oom"|"cuda_oom"|"timeout"|"disk_full"|"save"|"node"|"hang"|"start"
|"unloadable" (the checkpoint; no try mends it)|"gone" (place: where the folder was moved, or null)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.run import clock
from launcher.run.asking import load_lines
from launcher.run.files import append_line, read_lines

__all__ = ["append", "event", "read", "recall"]


def event(type_: str, *, attempt: int | None, round_: int | None = None, **values: Any) -> dict[str, Any]:
    """One event, stamped with the time of now. Stamps tell durations within an attempt; the order is that of the lines."""
    head: dict[str, Any] = {"t": round(clock.now(), 4), "type": type_, "attempt": attempt}
    if round_ is not None:
        head["round"] = round_
    return {**head, **values}


def append(path: Path, value: dict[str, Any]) -> None:
    """Append ``value`` to the history at ``path``, durably. Raises OSError when the disk refuses."""
    append_line(path, value, durable=True)


def read(path: Path) -> list[dict[str, Any]]:
    """The history at ``path``; torn lines are skipped, a missing file is empty."""
    return [e for e in read_lines(path) if isinstance(e.get("type"), str)]


def recall(path: Path) -> list[dict[str, Any]]:
    """As `read`, for those that decide by it. Raises OSError when the history is not known."""
    return [e for e in load_lines(path, path.parent) if isinstance(e.get("type"), str)]
