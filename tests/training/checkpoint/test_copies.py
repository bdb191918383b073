"""Facts about copies of tensors of every kind."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from launcher.training.checkpoint.copies import Reference, Snapshot, sum_of_bits
from launcher.training.checkpoint.digest import digest
from launcher.training.checkpoint.registered import Registered
from launcher.training.process.place import WorkerPlace

CPU = torch.device("cpu")


def copied(tree: object) -> Any:
    """What a checkpoint holds of ``tree``: copied, saved and loaded again."""
    snapshot = Snapshot(CPU)
    taken = snapshot.take(tree)
    snapshot.wait()
    file = io.BytesIO()
    torch.save(taken, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_conjugate_is_not_its_original() -> None:
    """Both have the same memory, shape and type: torch keeps the difference in a flag."""
    z = torch.tensor([1 + 2j, 3 - 4j])
    held = copied({"z": z, "conjugate": z.conj(), "imaginary": z.conj().imag, "negative": z.imag})

    assert isinstance(held, dict)
    assert torch.equal(held["z"], z)
    assert torch.equal(held["conjugate"], z.conj().resolve_conj())
    assert torch.equal(held["imaginary"], torch.tensor([-2.0, 4.0]))
    assert torch.equal(held["negative"], torch.tensor([2.0, -4.0]))


def test_a_sparse_tensor_is_copied() -> None:
    """It has no memory of its own that could be named: it is copied as a whole, and later writes are not seen."""
    sparse = torch.eye(3).to_sparse()
    snapshot = Snapshot(CPU)
    taken = snapshot.take(Reference({"s": sparse, "nothing": torch.empty(2, device="meta")}).tree)
    sparse.values().fill_(7.0)

    assert torch.equal(taken["s"].to_dense(), torch.eye(3))
    assert taken["nothing"].is_meta


def test_a_copy_that_failed_leaves_nothing_to_the_next() -> None:
    """What was to be copied late for it is forgotten: the next save is not called changed for that."""

    class Refuses:
        def __deepcopy__(self, _: object) -> object:
            raise TypeError("no")

    snapshot, moment = Snapshot(CPU), torch.zeros(4)
    try:
        snapshot.take({"moment": moment, "held": Refuses()}, late={moment.data_ptr()})
    except TypeError:
        moment.add_(1)
    taken = snapshot.take({"moment": moment})
    snapshot.wait()

    assert not snapshot.torn
    assert torch.equal(taken["moment"], torch.ones(4))


@pytest.mark.parametrize("size", [3, 30_000], ids=["small", "large"])
def test_tensors_of_one_memory_stay_that(size: int) -> None:
    """Held, copied, written and loaded: a moving average of tied weights, kept by name, is advanced by each of the names."""
    weight, average = torch.zeros(size), dict[str, torch.Tensor]()
    tree = {"objects": {"average": {"a": weight, "b": weight.detach()}}}
    registered = Registered(WorkerPlace(), CPU, settle=lambda: None, watch=lambda _: None)
    registered.loaded = copied(Reference(tree).tree)
    registered.add({"average": SimpleNamespace(state_dict=dict, load_state_dict=average.update)}, per_rank=False)
    average["a"].add_(1)

    assert torch.equal(average["b"], torch.ones(size))


def test_tensors_made_of_others_are_not_taken_for_one() -> None:
    """Subclasses (torchao's 8-bit states) have the address 0, all of them, and need not copy what they are made of."""
    first, second = (TwoTensor(torch.full((3,), value), torch.ones(3)) for value in (1.0, 2.0))
    held, taken = Reference([first, second]).tree, Snapshot(CPU).take([first, second])
    before = digest([first, second])
    second.b.zero_()

    assert [digest(held), digest(taken)] == [before, before] != [digest([first, second])] * 2
    assert sum_of_bits(first) is None
