"""Fashion-MNIST, the real-data job: 60,000 images of clothes in ten classes, test accuracy at the end.

`python fashion_mnist.py` brings the data, `launcher submit fashion_mnist.yaml` trains.

What its source got wrong, and this does not: pixels divided by 255 twice; a sampler that is never told the epoch;
a loss averaged over rank 0's share alone; a tracker (MLflow) imported and never used.
"""

from __future__ import annotations

from pathlib import Path

import fashion_mnist_data
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import launcher


class Network(nn.Module):
    """784 → 200, sigmoid → 200, log-softmax → 10; takes images as bytes and scales them once, here."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(28 * 28, hidden),
            nn.Sigmoid(),
            nn.Linear(hidden, hidden),
            nn.LogSoftmax(dim=1),
            nn.Linear(hidden, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the ten classes."""
        scores: Tensor = self.layers(images.flatten(1).float() / 255)
        return scores


class FashionMnist(launcher.Training):
    """Classify 28×28 images; batch and epochs as the parameters say."""

    def __init__(
        self,
        epochs: int = 10,
        batch_size: int = 100,
        lr: float = 0.01,
        hidden: int = 200,
        data: str | None = None,
        limit: int | None = None,
    ) -> None:
        """``data`` names the folder of the four files; ``limit`` takes that many training images only."""
        self.epochs = epochs
        self.batch_size = batch_size
        self.test_batch_size = 500
        self.lr = lr
        self.hidden = hidden
        self.folder = Path(data) if data else None
        self.limit = limit

    def dataset(self, split: str) -> TensorDataset:
        """One split, as bytes: a quarter of the memory of floats. Downloads what is nowhere yet."""
        if self.folder is None:
            self.folder = fashion_mnist_data.ensure()
        images, labels = fashion_mnist_data.load(self.folder, split)
        return TensorDataset(images[: self.limit], labels[: self.limit])

    def model(self) -> nn.Module:
        """The network."""
        return Network(self.hidden)

    def train_data(self) -> TensorDataset:
        """60,000 images."""
        return self.dataset("train")

    def test_data(self) -> TensorDataset:
        """10,000 others."""
        return self.dataset("t10k")

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(model.parameters(), lr=self.lr)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """From 0.01 to 0 along a cosine: at a constant 0.01 this network's loss rises again in some epochs."""
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        """Cross-entropy."""
        images, labels = batch
        return nn.functional.cross_entropy(model(images), labels)

    def metrics(self, model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
        """Right or wrong and loss of every image; the loop averages them over all ranks, each image once."""
        images, labels = batch
        scores = model(images)
        return {
            "accuracy": (scores.argmax(1) == labels).float(),
            "loss": nn.functional.cross_entropy(scores, labels, reduction="none"),
        }

    def after_epoch(self, epoch: int, loss: float) -> None:
        """The average over all ranks' shares, told once."""
        if self.worker.rank == 0:
            print(f"epoch {epoch + 1} of {self.epochs}: loss {loss:.4f}", flush=True)

    def after_evaluation(self, epoch: int, metrics: dict[str, float]) -> None:
        """Test accuracy over all ranks."""
        if self.worker.rank == 0:
            print(f"epoch {epoch + 1} of {self.epochs}: test accuracy {metrics['test_accuracy']:.4f}", flush=True)


if __name__ == "__main__":
    print(f"Fashion-MNIST: {fashion_mnist_data.ensure()}")
