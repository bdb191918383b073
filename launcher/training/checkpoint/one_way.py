"""Refuses a second way of saving, or of counting steps, in one run: a resume would find only one of both, or begin the data anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from launcher.errors import CodeError
from launcher.run.spec import CheckpointSpec
from launcher.run.worker_texts import REPEATED, UNREAD, UNSAVED
from launcher.training.checkpoint.registered import Registered

_ONE_KIND = "a checkpoint is what is registered or a folder of your own; register all state, or none"
_NO_POSITION = (
    "a folder of your own holds no position in the data of batches(); register all state, or loop over steps()"
)


class OneWay:
    """What a run has begun to do; every refusal is a CodeError with the way out. ``tell`` warns."""

    def __init__(self, registered: Registered, rules: CheckpointSpec, tell: Callable[[str], None]) -> None:
        self._registered = registered
        self._saves = rules.enabled and rules.watch is None
        self._tell = tell
        self._fills = self._loops = False
        self._steps = 0
        self._data: Any = None
        self._told_repeated = False
        self.looked = False
        """The script has asked which checkpoint it goes on from."""

    def registers(self, names: Iterable[str]) -> None:
        """Raises CodeError where folders are filled."""
        if self._fills:
            raise CodeError(f"register({', '.join(names)}) came after save_dir() or should_save(): {_ONE_KIND}")

    def loops_over_data(self) -> None:
        """Note a loop over `Worker.batches`. Raises CodeError where folders are filled, by this script or the one resumed."""
        if self._fills or self._registered.from_folder:
            raise CodeError(f"batches() was called in a run that saves by save_dir(): {_NO_POSITION}")
        self._loops = True

    def reads(self, dataset: Any, *, as_one_loop: bool) -> None:
        """Note what a loop over `Worker.batches` reads; two loops in turn over the same, ``as_one_loop`` each, are told once."""
        if as_one_loop and self._data is dataset and not self._told_repeated:
            self._told_repeated = True
            self._tell(REPEATED)
        self._data = dataset

    def counts_steps(self, call: str) -> None:
        """Raises CodeError after a loop over `Worker.batches`: checkpoints would be of the state, and the position, that it ended with."""
        if self._loops:
            raise CodeError(
                f"{call} was called after a loop over batches(), which counts the steps: loop over one of both alone"
            )

    def step(self) -> None:
        """Count a step of a loop of the user's own; what nobody saves or has loaded is told at the second. Raises as `counts_steps`."""
        self.counts_steps("step()")
        self._steps += 1
        if self._steps == 2 and self._saves and not (self._registered or self._fills):
            self._tell(UNSAVED)
        if self._steps == 2 and self._registered.from_folder and not self.looked:
            self._tell(UNREAD)

    def fills(self, verb: str) -> None:
        """Note that folders are filled. Raises CodeError beside registered state, or a loop over `Worker.batches`."""
        if self._registered:
            raise CodeError(f"{verb}() was called although something is registered: {_ONE_KIND}")
        if self._loops:
            raise CodeError(f"{verb}() was called in a loop over batches(), or after it: {_NO_POSITION}")
        self._fills = True
