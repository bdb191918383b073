"""One value of each type that a state may hold, and the objects that hold them. Imported by workers of tests."""

from __future__ import annotations

import argparse
import datetime
import enum
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

Point = namedtuple("Point", ["x", "y"])


class Split(enum.Enum):
    TRAIN = "train"
    TEST = ("held", "out")


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Best:
    loss: float
    step: int = 0
    history: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    name: str
    at: tuple[int, ...] = ()


HOUR = datetime.timezone(datetime.timedelta(hours=1), "CET")
KINDS: dict[str, Any] = {
    "numpy float64": 0.01 * (1 + np.cos(1.0)),
    "numpy float32": np.float32(0.1),
    "numpy int64": np.int64(-3),
    "numpy bool": np.bool_(True),
    "numpy text": np.str_("é"),
    "numpy empty text": np.str_(""),
    "numpy date": np.datetime64("2026-11-23", "D"),
    "array": np.arange(6.0).reshape(2, 3),
    "array of Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "array big-endian": np.arange(3, dtype=">i4"),
    "array of text": np.array(["a", "bcd"]),
    "array of dates": np.array(["2026-11-23"], dtype="datetime64[ns]"),
    "array 0-d": np.array(3, dtype=np.int8),
    "array empty": np.zeros((0, 4), dtype=np.complex64),
    "path": Path("/data/set"),
    "pure path": PurePosixPath("a/b"),
    "date": datetime.date(2026, 11, 23),
    "datetime": datetime.datetime(2026, 11, 23, 7, 35, 25, 99, HOUR, fold=1),
    "time": datetime.time(3, 4),
    "timedelta": datetime.timedelta(days=1, microseconds=3),
    "timezone": HOUR,
    "decimal": Decimal("0.10"),
    "fraction": Fraction(1, 3),
    "slice": slice(1, None, 2),
    "range": range(3, 9, 2),
    "deque": deque([1.0, np.float64(2.0)], maxlen=7),
    "defaultdict": defaultdict(list, a=[np.int32(1)]),
    "defaultdict without": defaultdict(None, a=1),
    "set": {1, 2},
    "set of enums": {Split.TRAIN},
    "frozenset": frozenset(["a", "b", "c"]),
    "Counter": Counter(a=3),
    "Counter of enums": Counter([Split.TRAIN, Split.TRAIN]),
    "OrderedDict": OrderedDict(b=1, a=2),
    "keys": {np.int64(3): 1, Split.TEST: 2, Path("p"): 3, (1, Level.LOW): 4, None: 5},
    "OrderedDict of paths": OrderedDict([(Path("b"), 1), (Path("a"), 2)]),
    "namespace": argparse.Namespace(lr=np.float32(0.5), out=Path("out")),
    "simple namespace": SimpleNamespace(a=[1]),
    "enum": Split.TEST,
    "int enum": Level.LOW,
    "flag": Rights.READ | Rights.WRITE,
    "namedtuple": Point(1, np.float64(2.0)),
    "dataclass": Best(np.float64(0.5), 3, [Split.TRAIN, deque([1])]),
    "frozen dataclass": Frozen("f", (1, 2)),
    "looks like a stand-in": OrderedDict(type="deque", value=[[1], None]),
    "complex": 1 + 2j,
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"ab"),
    "size": torch.Size([1, 2]),
    "dtype": torch.bfloat16,
    "int of many digits": 2**128,
}


def same(one: Any, other: Any) -> bool:
    """Equal and of one type, all the way down; arrays with their memory order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        flags = [(a.flags.c_contiguous, a.flags.f_contiguous, a.flags.writeable, a.dtype) for a in (one, other)]
        return bool(np.array_equal(one, other)) and flags[0] == flags[1]
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        factories = getattr(one, "default_factory", 0) is getattr(other, "default_factory", 0)
        return factories and all(same(k, n) and same(v, w) for (k, v), (n, w) in pairs)
    if isinstance(one, deque):
        return one.maxlen == other.maxlen and same(list(one), list(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, datetime.datetime) and one.fold != other.fold:
        return False
    if hasattr(one, "__dict__") and not isinstance(one, enum.Enum | type):
        return same(vars(one), vars(other))
    return bool(one == other)


class Holder:
    """Has every value as its state; on a resume it says which came back otherwise."""

    def __init__(self, where: str) -> None:
        self.where = where

    def state_dict(self) -> dict[str, Any]:
        return {**KINDS, "tensors": [torch.ones(2), deque([torch.zeros(3)])]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        wrong = [name for name in KINDS if not same(KINDS[name], state[name])]
        whole = torch.equal(state["tensors"][1][0], torch.zeros(3))
        print(f"{self.where} came back: {sorted(state) == sorted([*KINDS, 'tensors'])} {whole} {wrong}", flush=True)


def steps(run: Any) -> None:
    """Three steps, everything registered on both sides."""
    run.register(shared=Holder("shared"))
    run.register(per_rank=True, own=Holder("own"))
    for _ in run.steps(3):
        pass
