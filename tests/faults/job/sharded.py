"""FSDP, its state sharded over the ranks: saved by DCP into the folder that the launcher gives, which the leader commits.

``sharded.py STEPS SECONDS_PER_STEP OUT``: at the end rank 0 writes the digest of all weights to OUT. Only the first round, in which a
fault is to strike, takes SECONDS_PER_STEP.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import launcher

dist.init_process_group("gloo")
run = launcher.attach()
step_s = float(sys.argv[2]) if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" else 0.0
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def state() -> dict[str, object]:
    """What DCP saves and loads in place."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


if run.resume_path is not None:
    loaded = state()
    dcp.load(loaded, checkpoint_id=run.resume_path)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
for step in run.steps(int(sys.argv[1])):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    loss = model(torch.randn(4, 8, generator=generator)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(step_s)
    run.step(loss=loss)
    if run.should_save() or run.should_stop():
        with run.save_dir() as folder:
            dcp.save(state(), checkpoint_id=folder)
full = [parameter.full_tensor().detach() for parameter in model.parameters()]  # a collective
if dist.get_rank() == 0 and not run.should_stop():
    Path(sys.argv[3]).write_text(hashlib.sha256(b"".join(w.numpy().tobytes() for w in full)).hexdigest())
dist.destroy_process_group()
