"""A job that cannot resume exactly: its loss depends on a counter that nobody saves."""

from __future__ import annotations

import torch
from steady import Steady
from torch import nn


class Forgetful(Steady):
    """Counts its own steps in an attribute."""

    calls = 0

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Weighted by how often this process was called."""
        self.calls += 1
        return super().loss(model, batch) * self.calls
