"""A torchrun script: joins the group, says what its environment is, takes part in one all-reduce."""

import json
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
mine = {
    k: v
    for k, v in os.environ.items()
    if k.startswith(("RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "TORCHELASTIC_", "MASTER_", "SLURM_", "OMP_"))
}
line = {"argv": sys.argv[1:], "name": __name__, "sum": int(total), "environment": mine}
# One write: under torchrun all ranks share one pipe, and print writes the newline by itself where Python is unbuffered.
sys.stdout.write("SHOWN " + json.dumps(line) + "\n")
sys.stdout.flush()
dist.destroy_process_group()
