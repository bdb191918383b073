"""DistributedDataParallel with its gradient buckets in their final order from the first step on.

By default DDP reduces the first step's gradients in one bucket and then rebuilds the buckets in the order in which gradients
became ready. A resumed run therefore sums its first step in another order than the run it continues: with three ranks and
more the result differs in its last bits (two terms commute, so two ranks cannot show it). Here the rebuild happens inside
the constructor, from the reverse order of the parameters: the order DDP itself assumes for readiness, and the same always.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from launcher.run.spec import DdpSpec

__all__ = ["StableDDP", "unwrap", "wrap"]


class StableDDP(DistributedDataParallel):
    """DDP whose buckets never change; pinned to private names that `wrap` checks for."""

    def _build_params_for_reducer(self) -> tuple[list[torch.nn.Parameter], list[bool]]:
        # The rebuild goes through the parameters in index order: hand them over last layer first.
        parameters, sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], sparse[::-1]


_PRIVATE = ("_push_all_rebuilt_params", "_rebuild_buckets")


def wrap(model: torch.nn.Module, device: torch.device, options: DdpSpec) -> torch.nn.Module:
    """``model`` on ``device``, wrapped for data-parallel training; a model without trainable parameters comes back bare."""
    model = model.to(device)
    if not any(p.requires_grad for p in model.parameters()):
        return model
    values: dict[str, Any] = {
        "device_ids": [device.index] if device.type == "cuda" else None,
        "static_graph": options.static_graph,
        "find_unused_parameters": options.find_unused_parameters,
        "gradient_as_bucket_view": options.gradient_as_bucket_view,
    }
    if options.bucket_cap_mb is not None:
        values["bucket_cap_mb"] = options.bucket_cap_mb
    if not _can_pin():
        warnings.warn(
            "this torch hides how DDP builds its buckets: find_unused_parameters keeps resumes exact", stacklevel=2
        )
        values["find_unused_parameters"], values["static_graph"] = True, False
        return DistributedDataParallel(model, **values)
    ddp = StableDDP(model, **values)
    if options.static_graph or not options.find_unused_parameters:
        ddp.reducer._push_all_rebuilt_params()
        ddp.reducer._rebuild_buckets()
    return ddp


def _can_pin() -> bool:
    reducer = getattr(torch.distributed, "Reducer", None)
    return hasattr(DistributedDataParallel, "_build_params_for_reducer") and all(hasattr(reducer, n) for n in _PRIVATE)


def unwrap(model: Any) -> Any:
    """The module inside DDP and torch.compile, or ``model`` itself."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model
