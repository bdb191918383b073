"""What torchrun's users write: each idiom says in one line what came of it; rank 0 tries the costly ones."""

import argparse
import atexit
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from beside import WORD
from torch.utils.data import DataLoader, TensorDataset


def say(idiom, value):
    """One idiom of one rank."""
    sys.stdout.write(f"IDIOM {json.dumps([int(os.environ['RANK']), idiom, value])}\n")


def spawned(index, queue):
    """What mp.spawn starts."""
    queue.put([index, __name__, "RANK" in os.environ])


def own_store(rank, size):
    """A store of the script's own, beside the one that is there."""
    port = [None]
    if rank == 0:
        mine = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        mine.set("word", "heard")
        port = [mine.port]
    dist.broadcast_object_list(port)
    store = mine if rank == 0 else dist.TCPStore("127.0.0.1", port[0], is_master=False, wait_for_workers=False)
    word = store.get("word").decode()
    dist.barrier()
    return word


def costly():
    """Processes of the script's own."""
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(spawned, args=(queue,), nprocs=1)
    say("mp.spawn", queue.get())
    loader = DataLoader(TensorDataset(torch.arange(4.0)), num_workers=1, multiprocessing_context="spawn")
    say("a loader that spawns", sum(x.item() for (x,) in loader))
    inner = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "1",
        __file__,
        "--inner",
    ]
    done = subprocess.run(inner, capture_output=True, text=True, check=False)
    say("torchrun inside", [done.returncode, done.stdout.strip()])


def main():
    """All of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    parser.add_argument("--inner", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("gloo", init_method="env://", timeout=timedelta(seconds=600))
    rank, size = dist.get_rank(), dist.get_world_size()
    if arguments.inner:
        total = torch.ones(1)
        dist.all_reduce(total)
        print(f"inner {rank} of {size}: {int(total)}")
        # Without it Python 3.14 may never end: gloo's thread wants the GIL, which a finalizing interpreter gives to nobody (torch 2.13).
        dist.destroy_process_group()
        return
    say("--local-rank", arguments.local_rank == rank)
    say("a module beside", WORD)
    say("names", [__name__, Path(__file__).name, Path(sys.argv[0]).name, sys.modules["__main__"].main is main])
    say("is elastic", dist.is_torchelastic_launched())
    say("a store of its own", own_store(rank, size))
    say("a second group", dist.get_world_size(dist.new_group(backend="gloo")))
    say("standard input", sys.stdin.read())
    print("x" * 2_000_000)  # much at once, without a flush
    if rank == 0:
        costly()
    dist.barrier()
    dist.destroy_process_group()
    atexit.register(lambda: say("exit function", "ran"))
    sys.exit(0)


if __name__ == "__main__":
    main()
