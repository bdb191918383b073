"""An attached script with loader workers: its state is registered, or saved by DCP into a folder.

``attached.py HOW METHOD STEPS SECONDS_PER_STEP OUT``: HOW is register or folder, METHOD fork, spawn or early: a loader whose workers
are forked before ``attach``. At the end rank 0 writes the digest of all weights to OUT.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import DataLoader, Dataset

import launcher


class Rows(Dataset):
    """A step's batch is a function of its number and the rank."""

    def __init__(self, rank: int, steps: int) -> None:
        self.rank, self.steps = rank, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> torch.Tensor:
        return torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + self.rank))


def main(how: str, method: str, steps: int, step_s: float, out: str) -> None:
    """Train, save when asked, stop when told."""
    dist.init_process_group("gloo")
    early = None
    if (
        method == "early"
    ):  # a fork: the server of forkserver is no child of the rank, which would not hear that a worker has ended
        early = iter(DataLoader(Rows(0, 10**6), batch_size=None, num_workers=2, multiprocessing_context="fork"))
    run = launcher.attach()
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ddp = run.wrap(model)
    if how == "register":
        run.register(model=model, optimizer=optimizer)
    elif run.resume_path is not None:
        state = {
            "model": model.state_dict(),
            "optimizer": torch.load(run.resume_path / "optimizer.pt", weights_only=True),
        }
        dcp.load({"model": state["model"]}, checkpoint_id=run.resume_path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    rows = Rows(dist.get_rank(), steps)
    loader = DataLoader(
        rows, batch_size=None, sampler=range(run.steps_done, steps), num_workers=2,
        multiprocessing_context=method if early is None else "fork",
    )  # fmt: skip
    batches = iter(loader)
    for _ in run.steps(steps):
        loss = ddp(next(batches)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(step_s)
        run.step(loss=loss.detach())
        if how == "folder" and (run.should_save() or run.should_stop()):
            with run.save_dir() as folder:
                dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
                if dist.get_rank() == 0:
                    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    if dist.get_rank() == 0 and not run.should_stop():
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        Path(out).write_text(hashlib.sha256(weights).hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
