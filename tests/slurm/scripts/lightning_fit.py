"""A Lightning script as its users write it: two nodes, the ranks come from the launcher's (torchrun's) environment."""

import os
import sys

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(pl.LightningModule):
    """A line through points."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, _):
        """Squared error."""
        x, y = batch
        return nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
x = torch.randn(64, 4)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
trainer = pl.Trainer(
    accelerator="cpu",
    num_nodes=int(sys.argv[1]),
    devices=int(sys.argv[2]),
    strategy="ddp",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Line(), data)
print(
    f"LIGHTNING rank {trainer.global_rank} of {trainer.world_size} on {os.uname().nodename}: {trainer.global_step} steps",
    flush=True,
)
