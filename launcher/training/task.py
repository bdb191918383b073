"""`Training`: model, data, loss and optimizer; the shared loop does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from launcher.training.worker import Worker


class Training(ABC):
    """What to train. Subclass it, name it under ``task:``; ``params:`` are its constructor's arguments.

    ``epochs``, ``batch_size`` and the rest are class attributes, or set in ``__init__``. Everything returned by the
    methods is saved and resumed by the loop; nothing else is needed for an exact resume.
    """

    epochs: int = 1
    """Passes over the training data."""
    batch_size: int = 32
    """Samples per rank and micro-batch."""
    accumulate: int = 1
    """Micro-batches per optimizer step."""
    num_workers: int = 0
    """Loader processes per rank, for training and evaluation; 0 reads in the training process."""
    drop_last: bool = False
    """Drop the last incomplete batch of an epoch (the batch of all ranks together)."""
    shuffle: bool = True
    """Meet the samples in a new order every epoch."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of samples; None is torch's default."""
    precision: str = "fp32"
    """fp32, bf16 or fp16 (the latter two by autocast; fp16 with a gradient scaler)."""
    clip_norm: float | None = None
    """Largest norm of the gradients."""
    scheduler_every: str = "epoch"
    """When the scheduler steps: "epoch" or "step"."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    test_batch_size: int | None = None
    """Samples per rank in evaluation; None is ``batch_size``."""
    worker: Worker
    """The worker this runs in; set before any method is called."""

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """The model, on the CPU; every rank builds the same one (the seed is set before)."""

    @abstractmethod
    def train_data(self) -> Any:
        """A data set with length and index access."""

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Mean loss of a batch (what the data set collates to, on the device)."""

    @abstractmethod
    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer over the model's parameters."""

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """A learning-rate scheduler, or None."""
        return None

    def test_data(self) -> Any:
        """A data set to evaluate on after epochs, or None."""
        return None

    def metrics(self, model: torch.nn.Module, batch: Any) -> dict[str, Any]:
        """Evaluation of one batch: name to mean over the batch, or to one value per sample."""
        return {"loss": self.loss(model, batch)}

    def state(self) -> dict[str, Any]:
        """More objects with ``state_dict`` and ``load_state_dict`` that belong into checkpoints, by name."""
        return {}

    def after_epoch(  # noqa: B027 (a hook: doing nothing is a choice)
        self, epoch: int, loss: float
    ) -> None:
        """Called on every rank when an epoch's steps are done; ``loss`` is the average over all ranks."""

    def after_evaluation(  # noqa: B027 (a hook: doing nothing is a choice)
        self, epoch: int, metrics: dict[str, float]
    ) -> None:
        """Called on every rank with an evaluation's results."""
