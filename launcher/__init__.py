"""ddp-launcher: multi-node PyTorch DDP on SLURM that survives what clusters do.

``Worker``, ``Training``, ``attach`` and ``load_checkpoint`` are loaded when first asked for: only the training floor imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.training.attach import attach
    from launcher.training.checkpoint.read import load_checkpoint
    from launcher.training.task import Training
    from launcher.training.worker import Worker

__version__ = "0.1.0"
__all__ = ["Training", "Worker", "__version__", "attach", "load_checkpoint"]

_HOMES = {
    "Training": "launcher.training.task",
    "Worker": "launcher.training.worker",
    "attach": "launcher.training.attach",
    "load_checkpoint": "launcher.training.checkpoint.read",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'launcher' has no attribute {name!r}")
