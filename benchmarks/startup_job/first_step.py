"""One rank of the start-up benchmark: join the group, take one optimizer step, write down when it was done."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# srun's own words for what torchrun and the launcher say themselves.
for name, slurm in {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}.items():
    if name not in os.environ:
        os.environ[name] = os.environ[slurm]

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model(torch.randn(32, 64)).square().mean().backward()
optimizer.step()
Path(os.environ["STARTUP_OUT"], f"rank-{dist.get_rank()}").write_text(repr(time.time()))
dist.destroy_process_group()
