"""Trains until it is stopped, logs five numbers a step, and writes down when each step ended."""

import time

import torch

from launcher import Worker


def train(worker: Worker) -> None:
    """Three layers, the same batch for ever."""
    layers = [torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU()]
    model = worker.wrap(torch.nn.Sequential(*layers, torch.nn.Linear(2048, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 256), torch.randint(0, 10, (64,))
    with (worker.run_dir / f"steps-{worker.rank}.txt").open("w", buffering=1) as ends:
        for _ in worker.steps(1_000_000):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            worker.step(loss=loss, a=1.0, b=2.0, c=3.0, d=4.0)
            ends.write(f"{time.time():.6f}\n")
