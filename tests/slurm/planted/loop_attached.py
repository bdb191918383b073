"""A script with one line for the launcher; each round plants the next case."""

import sys
import time

import all_cases  # noqa: F401
import torch
from cases import Planter, exchange
from torch import distributed as dist

import launcher


def main():
    planter = Planter(sys.argv[1:])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = launcher.attach()
    run.register(model=model, optimizer=optimizer)
    for step in run.steps(planter.steps):
        loss = planter.before(step, rank, world_size)
        time.sleep(0.02)
        exchange(model, planter.case)
        run.step(loss=1.0 / (step + 1) if loss is None else loss)
    dist.destroy_process_group()


if __name__ == "__main__":  # Python 3.14 imports the script in the processes of its loaders
    main()
