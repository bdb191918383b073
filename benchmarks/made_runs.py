"""Run directories to time the reading verbs on: 95 % ended, 4 % pending, 1 % running, half of all as points of one sweep."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from launcher.run import clock

__all__ = ["make"]


def make(root: Path, number: int, now: float, ranks: int = 8) -> None:
    """``number`` runs below ``root``, ``run99-1121-0842-00063`` with a log, metrics and samples of ``ranks`` ranks."""
    sweep = root / "lr-sweep-1121-0900-swp"
    sweep.mkdir(parents=True)
    points = []
    for i in range(number):
        in_sweep = i % 2 == 0
        name = f"lr-{i}-1121-0900-swp{i:04d}" if in_sweep else f"run{i}-1121-0842-{i:05x}"
        run = (sweep if in_sweep else root) / name
        run.mkdir()
        if in_sweep:
            points.append({"run": name, "overrides": [f"params.lr={i}"]})
        _write(run, i, now)
    (sweep / "sweep.json").write_text(json.dumps({"points": points}))
    _enrich(root / "run99-1121-0842-00063", now, ranks)


def _write(run: Path, i: int, now: float) -> None:
    """The files of run ``i``: one in a hundred runs, four wait, the others have ended."""
    t = now - 7200
    spec = {"name": "run", "nodes": 2, "tasks_per_node": 4, "timeout_min": 60, "batch": "slurm"}
    (run / "spec.json").write_text(json.dumps(spec))
    events = [{"t": t, "type": "submitted", "attempt": None, "job_id": str(i), "backend": "slurm"}]
    kind = i % 100
    if kind >= 4:
        events.append({"t": t + 5, "type": "attempt_started", "attempt": 0, "job_id": str(i), "host": "n1"})
        events += [{"t": t + 60 * k, "type": "saved", "attempt": 0, "round": 0, "step": 100 * k} for k in range(1, 60)]
    if kind == 4:
        fresh = {**clock.stamp(), "up_s": clock.up_s() + 3600}  # as if it were written at each look
        state = {"t": now, **fresh, "attempt": 0, "round": 0, "step": 5000, "total_steps": 9000, "rate": 2.0}
        (run / "state.json").write_text(json.dumps(state))
    with (run / "events.jsonl").open("w") as f:
        f.writelines(json.dumps(e) + "\n" for e in events)
    if kind > 4:
        outcome = {"state": "completed", "reason": "", "step": 9000, "t": now - 5, "metrics": {"loss": i / 1000}}
        (run / "outcome.json").write_text(json.dumps(outcome))
        os.utime(run / "events.jsonl", (now - 5, now - 5))


def _enrich(run: Path, now: float, ranks: int) -> None:
    """What one run has beside its outcome, for the verbs that look closely: 3,000 lines of metrics, 600 samples of all ranks."""
    head = {"attempt": 0, "round": 0}
    with (run / "metrics.jsonl").open("w") as f:
        for k in range(3000):
            f.write(
                json.dumps({"t": now - 7000 + 2 * k, **head, "step": 3 * k, "metrics": {"loss": 1 / (k + 1)}}) + "\n"
            )
    with (run / "samples.jsonl").open("w") as f:
        for k in range(600):
            all_ranks = [_sample(rank, 15 * k) for rank in range(ranks)]
            f.write(json.dumps({"t": now - 7000 + 10 * k, **head, "ranks": all_ranks}) + "\n")
    log = run / "logs" / "attempt-0" / "round-0"
    log.mkdir(parents=True)
    (log / "rank-00000.log").write_text("".join(f"step {k}\n" for k in range(10_000)))
    (run / "submission.json").write_text(json.dumps({"backend": "slurm", "job_id": "99", "submitted_t": now - 7200}))


def _sample(rank: int, step: int) -> dict[str, Any]:
    return {
        "rank": rank, "host": f"n{rank // 4}", "step": step, "step_time_s": 0.5, "own_s": 0.4, "cpu_percent": 101.5,
        "rss_bytes": 3456789012, "gpu_percent": 97.0, "gpu_mem_bytes": 65432198765,
    }  # fmt: skip
