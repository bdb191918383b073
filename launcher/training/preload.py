"""What a fork server imports once per node, so that no worker has to: torch and this floor's own modules."""

import torch.distributed
import torch.nn.parallel

import launcher.training.loop
import launcher.training.scripts
import launcher.training.store

__all__: list[str] = []
_ = (torch, launcher)
