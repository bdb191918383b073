"""Randomness: seeds, each rank's generators as a state that can be saved, and deterministic algorithms."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from launcher.training.ddp.data import derive_seed


def seed_all(seed: int) -> None:
    """Seed python, numpy (where it is loaded), torch and CUDA."""
    random.seed(seed)
    torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed this rank's own randomness (dropout): different on every rank, the same in every run."""
    seed_all(derive_seed(seed, step, rank))


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return every generator's state of this process, of CUDA the one of ``device``: the rank's, which need not be the current one.

    They are tensors and plain values (which load with ``weights_only=True``).
    """
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "torch": torch.get_rng_state(),
    }
    if numpy := sys.modules.get("numpy"):
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = {
            "kind": kind,
            "keys": torch.from_numpy(keys.astype("int64")),
            "rest": [int(position), int(has_gauss), float(cached)],
        }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state(_gpu(device))
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore what `rng_state` returned for the same ``device``."""
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(state["torch"].cpu())
    if (numpy := sys.modules.get("numpy")) and "numpy" in state:
        saved = state["numpy"]
        numpy.random.set_state((saved["kind"], saved["keys"].numpy().astype("uint32"), *saved["rest"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu(), _gpu(device))


def _gpu(device: torch.device) -> torch.device:
    return device if device.type == "cuda" else torch.device("cuda")  # the current one


def make_deterministic() -> None:
    """Make torch and cuDNN deterministic. cuBLAS and NCCL read environment variables, which the agent has set."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # Filling new memory is for finding bugs and costs a pass over every new tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
