"""What tests of FSDP2 need of torch."""

from __future__ import annotations

import pytest
import torch

needs_fsdp2 = pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of this torch works on GPUs alone (2.6)"
)
