"""A script as users have them for torchrun; each round plants the next case."""

import sys
import time

import all_cases  # noqa: F401
import torch
from cases import Planter
from torch import distributed as dist


def main():
    planter = Planter(sys.argv[1:])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(planter.steps):
        loss = planter.before(step, rank, world_size)
        time.sleep(0.02)
        dist.all_reduce(torch.ones(1))
        if loss is not None and rank == 0:
            print(f"step {step} loss {loss}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":  # Python 3.14 imports the script in the processes of its loaders
    main()
