"""How scripts end: what is lost, hangs or crashes while Python shuts down, and how long that takes.

``python benchmarks/script_ends.py [--runs 60] [--ranks 4]``: each run trains a few DDP steps on gloo, leaves a file open and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
left_open = open(f"{os.environ['LAUNCHER_RUN_DIR']}/open-{os.environ['RANK']}", "w")
left_open.write(f"{time.time():18.6f}")
"""


def one(folder: Path, ranks: int) -> tuple[list[float], list[str], int]:
    """One run: seconds from each rank's last line to its end, warnings, and files that are not whole."""
    (folder / "ends.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "launcher", "run", "ends.py", f"resources.tasks_per_node={ranks}", "preflight=false"]
    environ = {**os.environ, "LAUNCHER_RUNS_DIR": str(folder / "runs"), "XDG_STATE_HOME": str(folder / "state")}
    subprocess.run(words, cwd=folder, env=environ, check=True, capture_output=True)
    (root,) = (folder / "runs").iterdir()
    events = [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]
    warnings = [e["text"] for e in events if e["type"] == "warning"]
    texts = {r: (root / f"open-{r}").read_text() for r in range(ranks)}
    ended = {r["rank"]: r["ended_t"] for r in json.loads((root / "state.json").read_text())["ranks"]}
    whole = {r: float(text) for r, text in texts.items() if len(text) == 18 or text.strip()}
    return [ended[r] - t for r, t in whole.items()], warnings, ranks - len(whole)


def main() -> None:
    """Run, count, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--ranks", type=int, default=4)
    given = parser.parse_args()
    seconds: list[float] = []
    lost, warned = 0, 0
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            took, warnings, missing = one(Path(folder), given.ranks)
        seconds += took
        lost += missing
        warned += len(warnings)
        for text in warnings:
            print(text)
    print(
        f"{given.runs} runs of {given.ranks} ranks: {lost} files not whole, {warned} hung or crashed in Python's shutdown"
    )
    print(f"last line to the process's end: median {statistics.median(seconds):.2f} s, max {max(seconds):.2f} s")


if __name__ == "__main__":
    main()
