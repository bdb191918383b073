"""A made-up run with everything in it: preemption, crash, straggler, evaluations. For tests and for looking at pages.

``python tests/report/rich_run.py FOLDER [--scale 1]`` writes three runs of one name, the last of them still training.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from run_story import Story

JOB = """\
name: resnet50
script: train.py
args: [--data, data/imagenet, --out, "${run.dir}/out"]
params:
  lr: LR
  batch_size: 256
resources:
  nodes: 2
  gpus_per_node: 4
  cpus_per_task: 8
  timeout_min: 1440
slurm: {partition: preempt, account: vision}
"""


class Rich:
    """Writes one run's files as its training goes."""

    def __init__(self, root: Path, tail: str, *, seed: int, start: float, lr: float, total: int = 9000) -> None:
        self.random = random.Random(seed)
        work = {"kind": "task", "target": "train:ResNet"}
        self.story = Story(
            root, tail=tail, nodes=2, tasks_per_node=4, gpus_per_node=4, cpus_per_task=8, timeout_min=1440, work=work,
            checkpoint={"min_interval_min": 1, "max_interval_min": 30}, mem_gb=256,
        )  # fmt: skip
        self.story.t = start
        self.lr, self.total, self.step, self.saved, self.epoch = lr, total, 0, 0, 0
        self.newest: dict[str, float | str] = {}
        self.next_sample = start
        self.paths = self.story.paths
        self.paths.job.write_text(JOB.replace("LR", str(lr)))
        packages = {"torch": "2.13.0+cu128", "numpy": "2.4.1", "timm": "1.0.20", "ddp-launcher": "0.1.0"}
        self.paths.environment.write_text(json.dumps({
            "host": "login1", "user": "ada", "system": "Linux-6.1-x86_64", "python": {"path": "/home/ada/env/bin/python",
            "version": "3.11.7"}, "packages": packages, "command": ["launcher", "submit", "job.yaml", f"params.lr={lr}"],
            "code": {"commit": "4f2c1e9b7d", "dirty": True, "diff": "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-lr = 0.1\n+lr = 0.2\n"},
            "variables": {"CUDA_HOME": "/usr/local/cuda", "WANDB_API_KEY": "<redacted>"},
        }))  # fmt: skip

    def line(self, path: Path, value: dict[str, Any]) -> None:
        """Append one line."""
        with path.open("a") as f:
            f.write(json.dumps(value) + "\n")

    def ranks(self) -> list[dict[str, Any]]:
        """What each rank uses just now; rank 5 is slow."""
        out = []
        for r in range(8):
            slow = 1.18 if r == 5 else 1.0
            out.append({
                "rank": r, "host": f"gpu{14 + 8 * (r // 4):03d}", "node": r // 4, "local_rank": r % 4, "pid": 4000 + r,
                "step": self.step, "step_time_s": 0.43 * slow * self.random.uniform(0.95, 1.12), "phase": "train",
                "heartbeat_t": self.story.t - self.random.uniform(0, 0.9), "cpu_percent": self.random.uniform(180, 320),
                "rss_bytes": 9.2e9 + 2e6 * self.step + self.random.uniform(0, 2e8),
                "gpu_percent": min(100, self.random.gauss(93 if r != 5 else 71, 3)),
                "gpu_mem_bytes": 61e9 + self.random.uniform(0, 3e9), "gpu_power_w": self.random.uniform(560, 690),
            })  # fmt: skip
        return out

    def metrics(self, **more: float | str) -> None:
        """A line of metrics.jsonl."""
        x = self.step / self.total
        loss: float | str = 6.9 * math.exp(-4 * x * (1 + self.lr)) + 0.9 + self.random.gauss(0, 0.06)
        if self.step == 2300:
            loss = "nan"
        values: dict[str, float | str] = {"loss": loss, "lr": self.lr * 0.5 * (1 + math.cos(math.pi * x)), **more}
        head = {"t": self.story.t, "attempt": self.story.attempt, "round": self.story.round, "step": self.step}
        self.line(self.paths.metrics, {**head, "epoch": self.epoch, "metrics": values})
        self.newest = {"loss": values["loss"], "lr": values["lr"]}

    def train(self, steps: int) -> None:
        """Optimizer steps with saves every 500 and an evaluation every 1,500."""
        for _ in range(steps):
            if self.step >= self.total:
                return
            self.step += 1
            self.story.wait(0.44 * self.random.uniform(0.97, 1.05))
            if self.step % 10 == 0:
                self.metrics()
            if self.story.t >= self.next_sample:
                head = {"t": self.story.t, "attempt": self.story.attempt, "round": self.story.round}
                self.line(self.paths.samples, {**head, "ranks": self.ranks()})
                self.next_sample = self.story.t + 10
            if self.step % 500 == 0:
                self.save("interval")
            if self.step % 1500 == 0:
                self.evaluate()

    def save(self, reason: str) -> None:
        """A checkpoint."""
        self.story.event("save_started", step=self.step).wait(1.6)
        self.story.event(
            "saved",
            step=self.step,
            seconds=9.4,
            blocked_s=1.6,
            bytes=307_000_000,
            reason=reason,
            path=f"step-{self.step:08d}",
        )
        self.saved = self.step

    def evaluate(self) -> None:
        """An evaluation at the end of an epoch."""
        self.epoch += 1
        self.story.wait(20)
        accuracy = 0.78 * (1 - math.exp(-5 * self.step / self.total)) + self.random.gauss(0, 0.004)
        values = {"val_loss": 1.1 + 4 * math.exp(-4 * self.step / self.total), "val_accuracy": accuracy}
        self.metrics(**values)
        self.story.event("evaluated", step=self.step, metrics=values)
        self.story.event("epoch", epoch=self.epoch, loss=2.0)

    def begin(self, wait: float, kind: str = "attempt") -> None:
        """An attempt (after ``wait`` in the queue) or a round (after ``wait`` of restarting)."""
        if kind == "attempt":
            since = self.story.t
            self.story.wait(wait).begins(host="gpu014", submitted_t=since)
            self.began = self.story.t
            for node, host in enumerate(("gpu014", "gpu022")):
                self.story.wait(1).event("node_joined", node=node, host=host, facts={"gpus": 4, "cpus": 64})
            self.story.wait(3).event("preflight", ok=True, seconds=3.0, checks=[], bandwidth_gb_s=11.3)
            wait = 20.0
        self.story.round = -1 if self.story.round is None else self.story.round
        table = [{k: r[k] for k in ("rank", "host", "node", "local_rank")} for r in self.ranks()]
        self.story.round += 1
        self.story.event(
            "round_started", world_size=8, master_addr="gpu014", ranks=table, resume_step=self.saved or None
        )
        self.step = self.saved + 1
        self.story.wait(wait).event("first_step", step=self.step, seconds=wait)

    def crash(self) -> None:
        """Rank 5 runs out of GPU memory; a new round in place."""
        cause = self.cause()
        self.story.event("worker_failed", rank=5, host="gpu022", step=self.step, cause=cause)
        self.story.event("victims", ranks=[{"rank": r, "after_s": 0.2 + r / 10} for r in range(8) if r != 5])
        self.story.wait(0.2).event("round_ended", why="rank 5 ran out of GPU memory")
        self.story.event("decision", evidence="worker_failed", action="new_round",
                         reason="Rank 5 failed; the workers start again.")  # fmt: skip
        self.begin(4.0, "round")

    def cause(self) -> dict[str, Any]:
        """Of an out-of-memory error on a GPU."""
        frames = [{"file": str(self.paths.code / "train.py"), "line": 118, "function": "step",
                   "code": "loss = criterion(model(x), y)"}]  # fmt: skip
        message = "CUDA out of memory. Tried to allocate 1.20 GiB. GPU 1 has a total capacity of 79.2 GiB of which 317.00 MiB is free."
        return {"kind": "cuda_oom", "exception": "torch.OutOfMemoryError", "message": message, "frames": frames}

    def preempted(self, queue: float) -> None:
        """An agreed stop and a requeue."""
        self.story.event("signal", host="gpu014", name="TERM", meaning="preempted")
        self.story.event("stop_requested", cause="preempted", deadline_s=20, save=True)
        self.train(2)
        self.story.event("agreed", step=self.step)
        self.save("stop")
        self.story.event("stopped", step=self.step, lost_steps=0).event("round_ended", why="preempted")
        self.story.event(
            "decision", evidence="preempted", action="requeue", reason="Preempted; the run goes on in another attempt."
        )
        self.story.wait(2).event("attempt_ended", why="preempted", allocation_s=self.story.t - self.began)
        self.story.round = None
        self.story.event("requeued", how="requeue", job_id="482913", seconds=1.2)
        self.story.round = None
        self.begin(queue)

    def picture(self, phase: str = "training", **more: Any) -> None:
        """state.json as of now."""
        self.story.state(
            phase=phase, step=self.step, total_steps=self.total, epoch=self.epoch, epochs=6, saved_step=self.saved,
            world_size=8, master_addr="gpu014", nodes=["gpu014", "gpu022"], spares=[], ranks=self.ranks(), rate=2.27,
            metrics=self.newest, allocation_t=self.began, spent_s=self.story.t - self.began, **more,
        )  # fmt: skip


def make(root: Path, *, now: float, scale: float = 1.0) -> dict[str, Path]:
    """Three runs below ``root``: completed, failed and training; their directories by state."""
    total = int(9000 * scale)
    part = total // 6
    runs: dict[str, Path] = {}
    for state, tail, lr, back in (("completed", "1119-0911-pq2", 0.1, 4e4), ("failed", "1120-1702-m3x", 0.4, 2e4),
                                  ("running", "1121-0842-k7f", 0.2, 0.0)):  # fmt: skip
        run = Rich(root, tail, seed=len(runs), start=now - back - 3000 - total * 0.5, lr=lr, total=total)
        run.story.submitted(job_id=None, nodes=2, tasks_per_node=4)
        run.paths.submission.write_text(
            json.dumps({"job_id": "482913", "backend": "slurm", "submitted_t": run.story.t})
        )
        run.begin(260)
        run.train(2 * part)
        run.crash()
        run.train(part)
        run.preempted(400)
        run.train(part)
        if state == "failed":
            for _ in range(2):
                run.crash()
                run.train(17)
            run.crash()
            text = (
                "Rank 5 ran out of GPU memory; the same exception came at the same step 3 times: the program is wrong."
            )
            run.story.event("worker_failed", rank=5, host="gpu022", step=run.step, cause=run.cause())
            run.story.event("decision", evidence="worker_failed", action="fail", reason=text)
            run.story.event("attempt_ended", why=text, allocation_s=run.story.t - run.began)
            run.picture("ended")
            run.story.outcome("failed", text, step=run.step, exit_code=8, metrics={"loss": 3.1})
        elif state == "completed":
            run.train(total)
            run.save("end")
            run.story.event("attempt_ended", why="done", allocation_s=run.story.t - run.began)
            run.picture("ended")
            run.story.outcome("completed", f"All {total} steps are done.", step=run.step, exit_code=0,
                              metrics={"loss": 0.98, "val_accuracy": 0.771})  # fmt: skip
        else:
            run.train(part // 2)
            shift(run.paths.root, now - run.story.t)
            run.began += now - run.story.t
            run.story.t = now
            run.picture()
        runs[state] = run.paths.root
    return runs


def shift(run: Path, seconds: float) -> None:
    """Move all of a run's times, so that it ends now."""
    for name in ("events.jsonl", "metrics.jsonl", "samples.jsonl"):
        path = run / name
        lines = []
        for text in path.read_text().splitlines():
            value = json.loads(text)
            value["t"] += seconds
            if "submitted_t" in value:
                value["submitted_t"] += seconds
            lines.append(json.dumps(value))
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    size = float(sys.argv[sys.argv.index("--scale") + 1]) if "--scale" in sys.argv else 1.0
    for name, where in make(target, now=time.time(), scale=size).items():
        print(name, where)
