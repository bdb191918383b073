"""The smallest data-parallel classification: five points in the plane, two classes, one process per GPU.

Says per rank and step the epoch, batch size and loss, and at the end the accuracy on the training and the test points.

What its source got wrong, and this does not: a port number written into MASTER_ADDR; a sampler that is never told
the epoch, so that every epoch meets the samples in the same order; an evaluation that compares tensors on different
devices and counts the samples twice that pad the ranks' shares.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import launcher

TRAIN = ([(-1.2, 3.1), (-0.9, 2.9), (-0.5, 2.6), (2.3, -1.1), (2.7, -1.5)], [0, 0, 0, 1, 1])
TEST = ([(-0.8, 2.8), (2.6, -1.6)], [0, 1])


def dataset(points: tuple[list[tuple[float, float]], list[int]]) -> TensorDataset:
    """Points and classes as tensors."""
    return TensorDataset(torch.tensor(points[0]), torch.tensor(points[1]))


class ToyClassifier(launcher.Training):
    """An MLP 2 → 30 → 20 → 2 on five points."""

    epochs = 3
    batch_size = 2
    drop_last = True

    def __init__(self, lr: float = 0.5) -> None:
        self.lr = lr

    def model(self) -> nn.Module:
        """The network."""
        self.net = nn.Sequential(nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 2))
        return self.net

    def train_data(self) -> TensorDataset:
        """Five points."""
        return dataset(TRAIN)

    def test_data(self) -> TensorDataset:
        """Two others."""
        return dataset(TEST)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(model.parameters(), lr=self.lr)

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        """Cross-entropy; said aloud, as the smallest example should (a real job would not wait for the device here)."""
        points, classes = batch
        loss = nn.functional.cross_entropy(model(points), classes)
        print(f"[rank {self.worker.rank}] epoch {self.worker.epoch} batch {len(points)} loss {loss:.4f}", flush=True)
        return loss

    def metrics(self, model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
        """Right or wrong, per point: the loop counts each once."""
        points, classes = batch
        return {"accuracy": (model(points).argmax(1) == classes).float()}

    def after_evaluation(self, epoch: int, metrics: dict[str, float]) -> None:
        """At the end, both accuracies; every rank holds all five points, so no collective is needed."""
        if epoch + 1 < self.epochs or self.worker.rank != 0:
            return
        points, classes = (t.to(self.worker.device) for t in dataset(TRAIN).tensors)
        with torch.no_grad():
            train = (self.net(points).argmax(1) == classes).float().mean()
        print(f"accuracy: train {train:.2f}, test {metrics['test_accuracy']:.2f}", flush=True)
