"""What user code registered: saved with every checkpoint, loaded as soon as it is named."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch

from launcher.errors import CheckpointError
from launcher.run.asking import exists, names, patiently
from launcher.run.messages import WorkerWarning
from launcher.run.worker_texts import ADDED_UP, NOT_REGISTERED, UNORDERED, UNSTEPPED
from launcher.training.checkpoint import distributed, read, readback, write
from launcher.training.checkpoint.copies import copied, has_no_memory, sum_of_bits
from launcher.training.checkpoint.digest import digest
from launcher.training.checkpoint.plain import from_plain, map_leaves, to_plain
from launcher.training.ddp.optimizers import bearer, parts, restore_dtypes
from launcher.training.ddp.randomness import seed_rank, set_rng_state
from launcher.training.ddp.wrapping import is_exact, note, pin, replicas, unwrap
from launcher.training.process.place import WorkerPlace
from launcher.training.process.rehearsal import has_inexact_replica, unregistered

_SCHEDULED = ("lr", "momentum", "betas")
"""What a scheduler sets in the groups of an optimizer."""
_MOST_LOOKS = 16
"""An agent may learn in few of its steps for months; the gradients of a large model are thousands of tensors."""


class Registered:
    """Objects with a state by name, and the checkpoint they are loaded from."""

    def __init__(
        self,
        place: WorkerPlace,
        device: torch.device,
        *,
        settle: Callable[[], None],
        watch: Callable[[torch.nn.Module], None],
    ) -> None:
        self.shared: dict[str, Any] = {}
        self.per_rank: dict[str, Any] = {}
        self._in_parts: set[str] = set()
        """Names of those of which each rank has a part."""
        self._gathered: dict[str, Any] = {}
        self.gathered_step = -1
        """The step whose distributed state was gathered last: a save that is tried again meets no other rank."""
        self.optimizers: list[torch.optim.Optimizer] = []
        """Each calls ``settle`` before its every step."""
        self._rates: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """Each group of an optimizer that was loaded, and what a scheduler sets in it as the checkpoint has it."""
        self._place, self._device = place, device
        self._settle, self._watch = settle, watch
        self._told_unordered = False
        told = self._warn if place.rank == 0 else lambda text: None
        self._unsafe = told if place.spec.unsafe_load else None
        self.loaded: dict[str, Any] | None = None
        """The checkpoint's shared part; None from scratch, and once everything is loaded."""
        self._mine: dict[str, Any] | None = None
        self._as_loaded = ""
        """A digest of all states before code ran that a resume runs again; "": there is none such."""
        self._told_unstepped = False
        self._looks: int | None = None
        """How many more steps of `Worker.steps` have their gradients compared; None: none has ended without the optimizers' yet."""
        self._before: list[tuple[int, int]] | None = None
        """The gradients before the step under way, if it is one of these."""
        self.from_folder = False
        """The checkpoint is a script's own folder (`Worker.save_dir`)."""
        self._generators = path = place.resume_path
        if path is None:
            return
        # Without a state it is a script's own folder; a state that cannot be seen for a moment is still there.
        if not patiently(partial(exists, path / write.SHARED, path), path):
            self.from_folder = True
            self._generators = path / write.GENERATORS
            return
        self.loaded = read.load_shared(path, self._unsafe)
        if self.ranks_then == place.world_size:
            self._mine = self._of_rank(path, place.rank)

    def __bool__(self) -> bool:
        return bool(self.shared or self.per_rank)

    @property
    def has_parts(self) -> bool:
        """Whether the ranks must meet to save: some state is distributed over them."""
        return bool(self._in_parts)

    def gathered(self, step: int) -> dict[str, Any]:
        """Return the whole state of what is distributed, by name, on rank 0; all ranks must call it, and meet once a ``step``."""
        if self.gathered_step != step:
            keep = self._place.rank == 0
            states = ((name, self.shared[name].state_dict()) for name in self.shared if name in self._in_parts)
            self._gathered = {name: distributed.gather_parts(state, keep=keep) for name, state in states}
            self.gathered_step = step
        return self._gathered

    def shared_states(self, step: int) -> dict[str, Any]:
        """Return the state of what all ranks share, by name, on rank 0; where each has a part of it, all ranks gather that."""
        whole = self.gathered(step)
        if self._place.rank != 0:
            return {}
        return {n: whole[n] if n in whole else saved_state(n, thing) for n, thing in self.shared.items()}

    @property
    def ranks_then(self) -> int:
        """Return how many ranks wrote the checkpoint; 0 without one."""
        if self.loaded:
            return int(self.loaded["world_size"])
        folder = self._generators
        found = patiently(lambda: names(folder, folder.parent), folder.parent) if folder else []
        return sum(fnmatch(name, "rank-*.pt") for name in found)

    def add(self, objects: dict[str, Any], *, per_rank: bool) -> None:
        """Remember what has a state; load it when there is a checkpoint. Raises CheckpointError, TypeError."""
        for name, thing in objects.items():
            inner = bearer(unwrap(thing))
            in_parts = distributed.is_in_parts(inner)
            if (before := self.shared.get(name, self.per_rank.get(name, inner))) is not inner:
                raise TypeError(
                    f"worker.register({name}=...): a {type(before).__name__} is registered by this name already"
                )
            self._check(name, inner, per_rank, in_parts)
            (self.per_rank if per_rank else self.shared)[name] = inner
            if in_parts:
                self._in_parts.add(name)
            source = self._mine if per_rank else self.loaded
            if source is not None:
                self._load(name, inner, source["objects"])
            is_loaded = source is not None and name in source["objects"]
            if is_loaded and hasattr(inner, "get_last_lr"):
                # The constructor of a scheduler sets the rates of step 0, also in an optimizer that was loaded before.
                for group, rates in self._rates:
                    group.update(rates)
            for part in parts(inner):
                if isinstance(part, torch.optim.Optimizer) and "_optimizer_step_pre_hooks" in vars(part):
                    self.optimizers.append(part)
                    part.register_step_pre_hook(lambda *_: self._settle())
                    self._rates += [(group, _rates(group)) for group in part.param_groups if is_loaded]
            for replica in replicas(thing):
                self._watch(note(replica))
                if self._place.paths is not None and not is_exact(replica) and (why := pin(replica)):
                    self._tell_unordered(f"run.register() could not change that: {why}")

    def moments(self) -> set[int]:
        """Return the addresses of what only an optimizer's step changes, its own state: copied during the forward and backward pass.

        Not so the weights: user code may write to them at any time, also where torch does not count it (``.data``).
        """
        tensors = []
        for optimizer in self.optimizers:
            state = (v for held in optimizer.state.values() if isinstance(held, dict) for v in held.values())
            tensors += [v for v in state if isinstance(v, torch.Tensor) and v.layout is torch.strided]
        return {tensor.data_ptr() for tensor in tensors} - {0}

    def _check(self, name: str, thing: Any, per_rank: bool, in_parts: bool) -> None:
        """Raise TypeError when the state of ``thing`` cannot be saved or loaded again: now, not at the first checkpoint."""
        kind, place = type(thing).__name__, self._place
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise TypeError(f"worker.register({name}=...): {kind} has no state_dict and load_state_dict")
        if why := distributed.refusal(thing, in_parts=in_parts, per_rank=per_rank):
            raise TypeError(f"worker.register({name}=...): {why}")
        if in_parts:
            return  # of plain tensors, once it is gathered
        is_saved_here = place.spec.checkpoint.enabled and (per_rank or place.rank == 0)
        is_optimizer = isinstance(thing, torch.optim.Optimizer)
        if not (is_saved_here or is_optimizer):
            return
        try:
            state = thing.state_dict()
        except Exception as error:
            if is_optimizer:
                fails = f"its state_dict() fails: {type(error).__name__}: {error}"
                raise TypeError(f"worker.register({name}=...): {kind} cannot be saved, {fails}") from error
            return  # it may have no state before the first step: the first save shows that
        try:
            if is_saved_here:
                readback.loadable({"objects": {name: state}})
        except CheckpointError as error:
            raise TypeError(f"worker.register({name}=...): {error}") from error

    def _warn(self, text: str) -> None:
        self._place.channel.send(WorkerWarning(text=text))

    def _of_rank(self, path: Path, rank: int) -> dict[str, Any]:
        return read.load_rank(path, rank, self._unsafe)

    def _tell_unordered(self, why: str) -> None:
        if self._place.rank == 0 and not self._told_unordered:
            self._told_unordered = True
            self._warn(f"{UNORDERED}; {why}. Use run.wrap(model) instead of DistributedDataParallel(model)")

    def tell_missing(self, is_script: bool) -> None:
        """Warn of objects in this process that are not resumed, or not bit for bit: the end of a rehearsal."""
        mine = [*self.shared.values(), *self.per_rank.values()]
        missing = unregistered(mine) if mine or not is_script else []
        if missing:
            self._warn(f"{NOT_REGISTERED}{', '.join(missing)}")
        if has_inexact_replica():
            self._tell_unordered("run.register() was not given the DistributedDataParallel")

    def _load(self, name: str, thing: Any, states: dict[str, Any]) -> None:
        if name not in states:
            self._warn(f"the checkpoint holds no state of {name!r}: it starts from scratch")
            return
        # The file is mapped; what keeps the tensors it is given must not keep the mapping. Those of one memory (tied weights in a moving
        # average) stay that.
        tensor = (lambda value: value) if isinstance(thing, torch.nn.Module) else partial(_unmapped, {})
        try:
            state = from_plain(states[name], code_dir=self._place.spec.code_dir, tensor=tensor)
            if isinstance(thing, torch.nn.Module) and isinstance(state, dict):
                state |= {key: _cloned(value) for key, value in state.items() if key.endswith("_extra_state")}
            thing.load_state_dict(distributed.divide(state, thing) if name in self._in_parts else state)
            if isinstance(thing, torch.optim.Optimizer) and name not in self._in_parts:
                restore_dtypes(thing, state, _moved)
        except Exception as error:
            lasting = isinstance(error, CheckpointError) and error.lasting
            raise CheckpointError(
                f"the checkpoint's state of {name!r} does not fit: {error}", lasting=lasting
            ) from error

    def expect_repeats(self) -> None:
        """Note the states as they are: what runs between here and `undo_repeats` has run before the checkpoint, too."""
        if self.loaded is not None and not self._as_loaded:
            self._as_loaded = self._fingerprint()

    def undo_repeats(self) -> None:
        """Load the states again where code that a resume repeats has changed them: a scheduler's step before an epoch's first batch."""
        if not self._as_loaded or self._fingerprint() == self._as_loaded:
            return
        for held, source in ((self.shared, self.loaded), (self.per_rank, self._mine)):
            states = source["objects"] if source is not None else {}
            for name in held.keys() & states.keys():
                self._load(name, held[name], states)

    def _fingerprint(self) -> str:
        states = {name: thing.state_dict() for name, thing in (*self.shared.items(), *self.per_rank.items())}
        return digest(map_leaves(states, _bits))

    def tell_unstepped(self, text: str = UNSTEPPED) -> None:
        """Warn, once, that an item of `Worker.batches` (or `steps`) ended without a step of the optimizers that are registered."""
        if self._told_unstepped or self._place.rank != 0 or not self.optimizers:
            return
        self._told_unstepped = True
        if not any(issubclass(type(thing), torch.amp.GradScaler) for thing in gc.get_objects()):  # it skips steps
            self._warn(text)

    def begin_step(self) -> None:
        """Note the gradients before a step of `Worker.steps`, of the first ones after one that ended without the optimizers'."""
        self._before = self._gradients() if self._looks else None
        if self._looks:
            self._looks -= 1

    def end_unstepped(self) -> None:
        """Warn, once, of steps of `Worker.steps` that end without one of the optimizers', and leave gradients behind.

        A step that computes none (of an agent that learns at every fourth one) is complete.
        """
        if self._looks is None:
            self._looks = _MOST_LOOKS
        elif self._before is not None and self._gradients() not in ([], self._before):
            self.tell_unstepped(ADDED_UP)
            self._looks = 0

    def _gradients(self) -> list[tuple[int, int]]:
        """Return which gradients there are, and how often each was written to."""
        groups = (group["params"] for optimizer in self.optimizers for group in optimizer.param_groups)
        return [(id(p.grad), p.grad._version) for params in groups for p in params if p.grad is not None]

    def complete(self) -> None:
        """Release the checkpoint. Raises CheckpointError when it holds state of an object that is not registered."""
        pairs = ((self.loaded, self.shared), (self._mine, self.per_rank))
        if left := {name for saved, held in pairs if saved for name in saved["objects"] if name not in held}:
            raise CheckpointError(
                f"the checkpoint holds the state of objects that are not registered: {', '.join(sorted(left))}"
            )
        self.loaded = self._mine = self._generators = None

    def restore_generators(self, step: int, *, alike: bool) -> None:
        """Restore this rank's random numbers from the checkpoint; from scratch nothing changes.

        If the number of ranks has changed: with ``alike``, a state that all ranks had in common is restored on every rank;
        else each rank is seeded anew.
        """
        folder, ranks = self._generators, self.ranks_then
        if folder is None or ranks == 0:
            return
        if ranks == self._place.world_size:
            set_rng_state(self._of_rank(folder, self._place.rank)["rng"], self._device)
            return
        states = [self._of_rank(folder, old)["rng"] for old in range(ranks)] if alike else []
        if states and all(digest(state) == digest(states[0]) for state in states):
            set_rng_state(states[0], self._device)
        else:
            seed_rank(self._place.spec.seed, step, self._place.rank)

    def partial_sums(self, device: torch.device) -> dict[str, Any]:
        """Return this rank's sums over the epoch under way; if the number of ranks has changed, rank 0 has the sum of all."""
        path, total = self._place.resume_path, dict[str, Any]()
        states: Iterable[dict[str, Any]] = [self._mine] if self._mine else []
        if not self._mine and path and self._place.rank == 0:
            states = (self._of_rank(path, old) for old in range(self.ranks_then))
        for state in states:
            for name, value in state["partial"].items():
                if isinstance(value, torch.Tensor):
                    value = value.clone().to(device)  # its file is mapped
                total[name] = value + total[name] if name in total else value
        return total


def saved_state(name: str, thing: Any) -> Any:
    """Return what is saved of ``thing``. Raises CheckpointError where its own code fails: the save fails then, and training goes on."""
    try:
        return thing.state_dict()
    except Exception as error:
        raise CheckpointError(f"the state_dict() of {name!r} fails: {type(error).__name__}: {error}") from error


def _rates(group: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy({key: group[key] for key in _SCHEDULED if key in group})


def _bits(leaf: Any, _: object) -> Any:
    return sum_of_bits(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _unmapped(memo: dict[int, Any], tensor: torch.Tensor) -> Any:
    return copied(tensor.detach()) if has_no_memory(tensor) else copy.deepcopy(tensor.detach(), memo)


def _moved(value: Any, device: torch.device) -> Any:
    return from_plain(to_plain(value), tensor=lambda tensor: tensor.to(device))


def _cloned(value: Any) -> Any:
    return map_leaves(value, lambda leaf, _: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf)
