"""FSDP2: parameters and moments are DTensors over all ranks.

``sharded.py HOW STEPS OUT SLOW_S``: they are registered (HOW is register), or saved by DCP into the folder that the leader commits.
Writes a line to OUT with the digest of all weights after each resume, at each stop and at the end. From the middle of the first
attempt on a step takes SLOW_S, so that a stop that is asked for then finds it at work.
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

if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
run = launcher.attach()
device = run.device
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to(device)
fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def state() -> dict[str, object]:
    """What DCP saves and loads in place."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def tell(what: str) -> None:
    """Write the digest of all weights; a collective."""
    full = [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]
    if run.is_leader:
        digest = hashlib.sha256(b"".join(weights.numpy().tobytes() for weights in full)).hexdigest()
        with Path(sys.argv[3]).open("a") as file:
            file.write(f"{what} {run.steps_done} {dist.get_world_size()} {digest}\n")


registers = sys.argv[1] == "register"
if registers:
    run.register(model=model, optimizer=optimizer)
elif run.resume_path is not None:
    loaded = state()
    dcp.load(loaded, checkpoint_id=run.resume_path)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
if run.resume_path is not None:
    tell("resumed")
steps = int(sys.argv[2])
for step in run.steps(steps):
    random = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    loss = model(torch.randn(32, 64, generator=random).to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(float(sys.argv[4]) if 2 * step > steps and os.environ.get("LAUNCHER_ATTEMPT") == "0" else 0.01)
    run.step(loss=loss.detach())
    if not registers and (run.should_save() or run.should_stop()):
        with run.save_dir() as folder:
            dcp.save(state(), checkpoint_id=folder)
    if run.should_stop():
        tell("stopped")
if not run.should_stop():
    tell("ended")
dist.destroy_process_group()
