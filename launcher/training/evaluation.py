"""Evaluation that counts every sample once, and that all ranks can leave at an agreed stop without a collective."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from launcher.errors import CodeError
from launcher.training.ddp.data import Collate, Micro, Unit, check_dataset, check_positive, load_units, split
from launcher.training.ddp.randomness import rng_state, set_rng_state
from launcher.training.ddp.wrapping import unwrap
from launcher.training.step.session import Session

Measure = Callable[[Any, Any], dict[str, Any]]


def evaluate(
    session: Session, model: Any, dataset: Any, batch_size: int, measure: Measure, collate: Collate, num_workers: int
) -> dict[str, float]:
    """Average over ``dataset`` what ``measure(model, batch)`` returns. Raises StopTraining when all ranks stop.

    Each rank evaluates its own contiguous share on the bare module, without collectives; one sum over the ranks ends it.
    """
    check_dataset(dataset)
    check_positive("batch_size", batch_size)
    if len(dataset) == 0:
        raise CodeError("the data set has no samples to evaluate")
    module = unwrap(model)
    modes = {part: part.training for part in module.modules()}
    generators = rng_state(session.device)
    session.phase("evaluate")
    module.eval()
    try:
        sums, count = _share(session, module, dataset, batch_size, measure, collate, num_workers)
    finally:
        for part, mode in modes.items():
            part.training = mode
        set_rng_state(generators, session.device)
    if session.must_leave:
        session.stop()
    if session.in_gap:
        session.pass_boundary()  # from here on no rank stops, so all of them join the sum below
    totals = sum_over_ranks({**sums, "": count}, session.device)
    counted = totals.pop("")
    session.phase("between" if session.in_gap else "train")
    return {name: total / counted for name, total in totals.items()}


def _share(
    session: Session, module: Any, dataset: Any, batch_size: int, measure: Measure, collate: Collate, num_workers: int
) -> tuple[dict[str, torch.Tensor], int]:
    """Return the sums over this rank's share, and its size."""
    start, size = split(len(dataset), session.place.world_size, session.place.rank)
    sums: dict[str, torch.Tensor] = {}

    def batches() -> Iterator[Unit]:
        for first in range(0, max(size, 1), batch_size):
            n = min(batch_size, size - first) if size else 0
            # A rank without samples measures one that counts nothing: it must know the names to sum.
            indices = list(range(start + first, start + first + n)) or [0]
            yield Unit(session.position.step, first, n, [Micro(indices, n, 1.0)], last=False)

    loaded = load_units(batches, dataset, session.device, collate, session.seed, num_workers)
    with contextlib.closing(loaded), torch.no_grad():
        for unit, pairs in loaded:
            if session.must_leave:
                return {}, 0
            for _, batch in pairs:
                for name, value in measure(module, batch).items():
                    total = _total(name, value, unit.size) if unit.size else torch.zeros(())
                    sums[name] = sums[name] + total if name in sums else total
    return sums, size


def _total(name: str, value: Any, n: int) -> torch.Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float64).detach()
    if tensor.numel() == 1:
        return tensor.reshape(()) * n
    if tensor.shape != (n,):
        raise ValueError(
            f"metric {name!r} has shape {tuple(tensor.shape)}; return a mean, or one value for each of the {n} samples"
        )
    return tensor.sum()


def sum_over_ranks(values: dict[str, Any], device: torch.device) -> dict[str, float]:
    """Return the sums over all ranks, in double precision; every rank gives the same names."""
    names = sorted(values)
    row = torch.stack(
        [torch.as_tensor(values[name], dtype=torch.float64).detach().reshape(()).to(device) for name in names]
    )
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(row)
    return dict(zip(names, row.tolist(), strict=True))
