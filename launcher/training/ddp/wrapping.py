"""DistributedDataParallel with its gradient buckets in their final order from the first step on.

By default DDP reduces the first step's gradients in one bucket and then rebuilds the buckets in the order in which gradients
became ready. A resumed run therefore sums its first step in another order than the run it continues: with three ranks and
more the result differs in its last bits (two terms commute, so two ranks cannot show it). `pin` does the rebuild before the
first step, from the reverse order of the parameters: the order DDP itself assumes for readiness, and the same always.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel

from launcher.frozen import field_values
from launcher.run.spec import DdpSpec

_pinned: WeakSet[DistributedDataParallel] = WeakSet()
_known: WeakSet[DistributedDataParallel] = WeakSet()

_PRIVATE = (
    (DistributedDataParallel, ("_build_params_for_reducer", "_build_debug_param_to_name_mapping", "_ddp_init_helper")),
    (getattr(torch.distributed, "Reducer", None), ("_push_all_rebuilt_params", "_rebuild_buckets", "_remove_autograd_hooks")),
)  # fmt: skip
"""What `pin` uses of torch's private names."""
_HIDDEN = "this version of torch does not show how DDP builds its buckets"


def wrap(model: torch.nn.Module, device: torch.device, options: DdpSpec) -> torch.nn.Module:
    """Move ``model`` to ``device`` and wrap it in DDP; a model without trainable parameters is not wrapped."""
    model = model.to(device)
    if not any(p.requires_grad for p in model.parameters()):
        return model
    values = {name: value for name, value in field_values(options).items() if value is not None}
    if not _can_pin():
        warnings.warn(f"{_HIDDEN}; resumes stay exact because find_unused_parameters is switched on", stacklevel=2)
        values["find_unused_parameters"], values["static_graph"] = True, False
    ddp = note(DistributedDataParallel(model, [device.index] if device.type == "cuda" else None, **values))
    pin(ddp)
    return ddp


def _can_pin() -> bool:
    return all(hasattr(owner, name) for owner, names in _PRIVATE for name in names)


def replicas(model: Any) -> list[DistributedDataParallel]:
    """Return every DDP that ``model`` is or holds: torch.compile and other libraries wrap it in modules of their own."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [module for module in modules if isinstance(module, DistributedDataParallel)]


def shared_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the buffers that all ranks are to have from rank 0: by DDP at each forward pass, or of a model that `wrap` left as it is."""
    if not isinstance(model, DistributedDataParallel):
        return list(model.buffers())
    if not model.broadcast_buffers or model.process_group.size() < torch.distributed.get_world_size():
        return []
    return [buffer for name, buffer in model.module.named_buffers() if name not in model.parameters_to_ignore]


def share_buffers(models: Iterable[torch.nn.Module]) -> None:
    """Give all ranks rank 0's `shared_buffers`; every rank must call it."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return
    for buffer in (buffer for model in models for buffer in shared_buffers(model)):
        whole = buffer.contiguous()  # gloo would write beside what is not
        torch.distributed.broadcast(whole, 0)
        if whole is not buffer:
            buffer.copy_(whole)


SYNCED = contextlib.nullcontext()
"""Around a pass whose gradients are exchanged."""


def unsynced(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a pass whose gradients are not exchanged, where the model can do without."""
    if not hasattr(model, "no_sync") or getattr(model, "static_graph", False):
        return SYNCED
    context: contextlib.AbstractContextManager[Any] = model.no_sync()
    return context


def note(ddp: DistributedDataParallel) -> DistributedDataParallel:
    """Remember that this model is trained here; returns it."""
    _known.add(ddp)
    return ddp


def alike_parameters(world_size: int) -> set[int]:
    """Return the ids of the parameters that DDP keeps equal on all ranks.

    A communication hook may reduce otherwise (torch's post_localSGD lets the ranks differ for a while), and a process group of fewer ranks
    keeps equal what only these hold.
    """
    return {
        id(parameter)
        for ddp in _known
        if not getattr(ddp, "_comm_hooks", None) and ddp.process_group.size() == world_size
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ddp.parameters_to_ignore
    }


def is_exact(ddp: DistributedDataParallel) -> bool:
    """Whether ``ddp`` sums the first step's gradients in the same order as the later ones."""
    return _keeps_buckets(ddp) or ddp.process_group.size() <= 2


def _keeps_buckets(ddp: Any) -> bool:
    # Without a reducer (delay_all_reduce_named_params names all parameters) DDP reduces everything in one piece.
    never_rebuilds = ddp.find_unused_parameters and not ddp.static_graph
    return ddp in _pinned or never_rebuilds or not hasattr(ddp, "reducer")


def pin(ddp: Any) -> str:
    """Bring the buckets of ``ddp`` into their final order now. Returns why that cannot be done; empty when it is done.

    Every rank must call it: DDP's rebuild takes rank 0's order, as it does after the first step.
    """
    if _keeps_buckets(ddp):
        return ""
    if why := _obstacle(ddp):
        return why
    # As DDP's __setstate__ makes a reducer for a copy. The rebuild goes through the parameters in index order: hand them
    # over last layer first. In the order of the layers, the gradients that are ready last would be reduced first, and
    # no reduction would overlap with the backward pass.
    parameters, sparse = (part[::-1] for part in ddp._build_params_for_reducer())
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp.reducer._remove_autograd_hooks()
    del ddp.reducer, ddp.logger  # their buckets go before new ones are made
    ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    ddp.reducer._push_all_rebuilt_params()
    ddp.reducer._rebuild_buckets()
    ddp._has_rebuilt_buckets = True  # as DDP notes it when it does this itself
    _pinned.add(ddp)
    return ""


def _obstacle(ddp: Any) -> str:
    if not _can_pin():
        return _HIDDEN
    if getattr(ddp, "_use_python_reducer", False):
        return "torch._dynamo reduces its gradients (optimize_ddp: python_reducer)"
    if getattr(ddp, "mixed_precision", None) is not None:
        return "it uses mixed_precision"
    ddp.logger.set_runtime_stats_and_log()  # brings "iteration" up to date; passes without gradients do not count
    told = ddp._get_ddp_logging_data()
    if told.get("comm_hook"):
        return "a communication hook was set before"
    return "a forward pass has been run before" if told.get("iteration") else ""


def unwrap(model: Any) -> Any:
    """Return the module inside DDP and torch.compile, or ``model`` itself."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model
