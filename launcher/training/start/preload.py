"""What a fork server imports once per node, so that no worker has to: torch, what it would load later, and this floor.

Measured in a worker forked from a process that had imported torch alone: DistributedDataParallel's constructor imports
torch._dynamo and 800 more modules, 1 to 3 s in every worker at every start. None of this starts a thread.
"""

import torch._dynamo.utils
import torch.distributed
import torch.nn.parallel
import torch.profiler

import launcher.training.attach
import launcher.training.checkpoint.write
import launcher.training.loop
import launcher.training.process.serve_store
import launcher.training.start.scripts

_ = (torch, launcher)
