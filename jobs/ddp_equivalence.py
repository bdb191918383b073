"""One device beside data-parallel replicas: the proof that averaging gradients is training on the joined batch.

64 random samples, two batches of 32. A single device trains one epoch over both; two replicas take one step, each
on one of the batches, their gradients averaged by all-reduce. Then three things must hold, or the job fails:

- every parameter is *exactly* equal on all replicas (largest difference 0.0);
- it equals a step on the average of the batches' gradients, taken by hand (exactly, on two replicas);
- it equals one step on the joined batch, up to rounding.

What its source got wrong, and this does not: the comparison was printed and never asserted.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn

import launcher

SEED = 12345
LR = 0.01
BATCH = 32


def samples() -> tuple[Tensor, Tensor]:
    """64 rows 6 → 2, drawn one after the other."""
    generator = torch.Generator().manual_seed(SEED)
    rows = [(torch.randn(6, generator=generator), torch.randn(2, generator=generator)) for _ in range(64)]
    return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])


def network() -> nn.Module:
    """Two linear layers, no activation, the same weights whenever it is made."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))


def flat(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def step(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """One step of plain gradient descent; the loss before it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def one_device(device: torch.device) -> float:
    """The summed loss of one epoch over both batches."""
    x, y = samples()
    model = network().to(device)
    return sum(step(model, x[i : i + BATCH].to(device), y[i : i + BATCH].to(device)) for i in range(0, len(x), BATCH))


def averaged_by_hand(shares: list[tuple[Tensor, Tensor]], device: torch.device) -> nn.Module:
    """A step on the average of the shares' gradients."""
    model = network().to(device)
    total = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in shares:
        replica = copy.deepcopy(model)
        nn.functional.mse_loss(replica(x.to(device)), y.to(device)).backward()
        for gradient, p in zip(total, replica.parameters(), strict=True):
            assert p.grad is not None
            gradient += p.grad
    with torch.no_grad():
        for p, gradient in zip(model.parameters(), total, strict=True):
            p -= LR * (gradient / len(shares))
    return model


def compare(worker: launcher.Worker) -> None:
    """Run both and compare. Raises ArithmeticError when anything differs that must not."""
    x, y = samples()
    shares = list(zip(x.chunk(worker.world_size), y.chunk(worker.world_size), strict=True))
    model = worker.wrap(network())
    mine = tuple(t.to(worker.device) for t in shares[worker.rank])
    step(model, *mine)

    replicas = [torch.empty_like(flat(model)) for _ in range(worker.world_size)]
    dist.all_gather(replicas, flat(model))
    joined = network().to(worker.device)
    step(joined, x.to(worker.device), y.to(worker.device))
    found = {
        "between replicas": max(float((r - replicas[0]).abs().max()) for r in replicas),
        "from averaging by hand": float((replicas[0] - flat(averaged_by_hand(shares, worker.device))).abs().max()),
        "from the joined batch": float((replicas[0] - flat(joined)).abs().max()),
    }
    # Sums of two are exact whatever their order; those of more ranks, and of a joined batch, are rounded otherwise.
    allowed = {"between replicas": 0.0, "from averaging by hand": 0.0 if worker.world_size <= 2 else 1e-6}
    for name, value in found.items():
        if not value <= allowed.get(name, 1e-6):
            raise ArithmeticError(f"largest difference {name}: {value}, at most {allowed.get(name, 1e-6)} is right")
    if worker.rank == 0:
        print(f"single device: summed loss {one_device(worker.device):.4f}")
        for name, value in found.items():
            print(f"largest difference {name}: {value:.1e}", flush=True)
