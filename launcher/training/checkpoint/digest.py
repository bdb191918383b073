"""A digest of a state: two states that are equal bit for bit have equal digests."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import torch


def digest(value: Any) -> str:
    """Return the sha256 of a tree of dicts, lists, tensors and plain values: bits, types, shapes and names; not memory layout."""
    hasher = hashlib.sha256()
    _feed(hasher, value)
    return hasher.hexdigest()


def _feed(hasher: Any, node: Any) -> None:
    if isinstance(node, torch.Tensor) and (node.layout is not torch.strided or node.is_quantized):
        # What it is made of: indices and values of a sparse one; torch crashes where a quantised one is taken for bytes.
        made_of = node.detach().__reduce_ex__(2)[1]  # type: ignore[no-untyped-call]
        _feed(hasher, [node.int_repr(), node.dequantize()] if node.is_quantized else made_of)
    elif isinstance(node, torch.Tensor) and hasattr(node, "__tensor_flatten__"):  # a subclass made of others
        _feed(hasher, {name: getattr(node, name) for name in node.__tensor_flatten__()[0]})
    elif isinstance(node, torch.Tensor):
        tensor = node.detach().cpu().resolve_conj().resolve_neg().contiguous()
        hasher.update(f"T{tensor.dtype}{tuple(tensor.shape)}".encode())
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b"")
    elif isinstance(node, dict):
        hasher.update(b"{%d" % len(node))
        for key in sorted(node, key=lambda k: (type(k).__name__, str(k))):
            _feed(hasher, key)
            _feed(hasher, node[key])
    elif isinstance(node, list | tuple):
        hasher.update(b"[%d" % len(node))
        for item in node:
            _feed(hasher, item)
    elif isinstance(node, set | frozenset):  # in one order for all processes
        hasher.update(b"s%d" % len(node) + "".join(sorted(map(digest, node))).encode())
    elif isinstance(node, float):
        hasher.update(b"f" + struct.pack("<d", node))
    else:
        hasher.update(f"{type(node).__name__}:{node!r};".encode())
