"""Copies of a state that training continues to change: taken at a boundary, into memory that is used again."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Container
from functools import partial
from typing import Any

import torch

from launcher.training.checkpoint.plain import map_leaves

_Path = tuple[Any, ...]
_SMALL = 65536
"""Tensors up to so many bytes are copied even where references would do."""


class Snapshot:
    """Takes copies into host memory kept from one copy to the next (fresh pages cost more than copying does)."""

    def __init__(self, device: torch.device) -> None:
        self._buffers: dict[_Path, torch.Tensor] = {}
        self._device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._event: Any = None
        self._late: Container[int] = ()
        self._pending: deque[tuple[torch.Tensor, torch.Tensor, int]] = deque()
        self._lock = threading.Lock()
        self.torn = False
        """Whether a tensor was written to before its late copy was made."""

    def take(self, tree: Any, late: Container[int] = ()) -> Any:
        """Copy ``tree``; the copy is valid until the next call, complete after `wait`.

        ``late`` holds addresses of tensors that nobody writes to before `settle`: they are copied meanwhile, by whoever
        calls `wait` or `settle` (a step's forward and backward pass hide them).
        """
        self._late, self.torn = (late if self._stream is None else ()), False
        self._pending.clear()  # of a copy that failed
        fresh: dict[_Path, torch.Tensor] = {}
        copy_leaf = partial(self._copy, fresh, {})
        if self._stream is None:
            copied = map_leaves(tree, copy_leaf)
        else:
            # Of the rank's own device: a script that attaches need not have made it the current one.
            current = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                copied = map_leaves(tree, copy_leaf)
            self._event = self._stream.record_event()
            # The device waits before it changes what is being copied; the host does not.
            current.wait_stream(self._stream)
        self._buffers = fresh
        return copied

    def finish_device(self) -> None:
        """Wait until the device has done what was asked of it, on whatever stream: what is not copied is read as it is."""
        if self._stream is not None:
            torch.cuda.synchronize(self._device)

    def wait(self) -> None:
        """Wait until the copies are complete."""
        self.settle()
        if self._event is not None:
            self._event.synchronize()

    def settle(self) -> None:
        """Make every late copy that has not been made; any thread may call this."""
        while self._pending:
            with self._lock:
                if not self._pending:
                    return
                buffer, source, version = self._pending[0]
                buffer.copy_(source)
                self.torn = self.torn or source._version != version
                self._pending.popleft()

    def _copy(self, fresh: dict[_Path, torch.Tensor], seen: dict[Any, torch.Tensor], leaf: Any, path: _Path) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return copy.deepcopy(leaf)
        tensor = leaf.detach()
        if tensor.is_meta:
            return tensor
        if has_no_memory(tensor):
            return copied(tensor)
        identity = _identity(tensor)
        if identity in seen:
            return seen[identity]
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        if tensor.data_ptr() in self._late:
            self._pending.append((buffer, tensor, tensor._version))
        else:
            buffer.copy_(tensor, non_blocking=tensor.device == self._device)  # the stream is that device's
        fresh[path] = seen[identity] = buffer
        return buffer


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg(),
    )  # fmt: skip


class Reference:
    """A state held by reference: small values copied, large tensors trusted as long as nobody has written to them."""

    def __init__(self, tree: Any) -> None:
        self._held: list[tuple[torch.Tensor, int, torch.Tensor | None]] = []
        self._small: dict[tuple[Any, ...], torch.Tensor] = {}
        self.tree = map_leaves(tree, self._hold)

    @property
    def intact(self) -> bool:
        """Whether every large tensor is as it was.

        torch counts in-place writes; those through ``.data``, as of a moving average that is swapped in and out, it does not.
        """
        held = self._held
        if any(tensor._version != version for tensor, version, _ in held):
            return False
        return all(bits is None or bool(bits == sum_of_bits(tensor)) for tensor, _, bits in held)

    def _hold(self, leaf: Any, _: _Path) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return copy.deepcopy(leaf)
        tensor = leaf.detach()  # shares the version counter
        if tensor.numel() * tensor.element_size() <= _SMALL:
            if has_no_memory(tensor):
                return copied(tensor)
            known = self._small.get(identity := _identity(tensor))
            return self._small.setdefault(identity, tensor.clone()) if known is None else known
        self._held.append((tensor, tensor._version, sum_of_bits(tensor)))
        return tensor


def has_no_memory(tensor: torch.Tensor) -> bool:
    """Return whether it is made of other tensors (sparse, or a subclass: all of these have the address 0), or is empty."""
    return tensor.layout is not torch.strided or not (tensor.is_meta or tensor.data_ptr())


def copied(tensor: Any) -> Any:
    """Copy into host memory a tensor that `has_no_memory`. A subclass need not copy what it is made of (torchao's 8-bit states)."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.to("cpu", copy=True)
    names, kind = tensor.__tensor_flatten__()
    made_of = {name: copied(getattr(tensor, name)) for name in names}
    return type(tensor).__tensor_unflatten__(made_of, kind, tensor.size(), tensor.stride())


def sum_of_bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the sum of a tensor's bytes taken as whole numbers, modulo 2**64, where the tensor is: it moves at memory's speed.

    Of a DTensor it is that of this rank's part: no rank meets another. None for a tensor that is not dense, or on no device.
    """
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if tensor.is_meta or has_no_memory(tensor):
        return None
    if tensor.is_quantized:  # taken for bytes, it would crash torch
        tensor = tensor.int_repr()
    data = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    whole = data.numel() // 8 * 8
    if data.storage_offset() % 8:
        return data.sum(dtype=torch.int64)
    return data[:whole].view(torch.int64).sum() + data[whole:].sum(dtype=torch.int64)
