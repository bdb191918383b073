"""An Accelerate script as its users write it."""

import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
x = torch.randn(64, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = 0
for rows, targets in loader:
    optimizer.zero_grad()
    accelerator.backward(nn.functional.mse_loss(model(rows), targets))
    optimizer.step()
    steps += 1
where = f"rank {accelerator.process_index} of {accelerator.num_processes} on {os.uname().nodename}"
print(f"ACCELERATE {where}: {steps} steps, {accelerator.distributed_type}", flush=True)
accelerator.end_training()
