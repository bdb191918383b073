"""Counts the ranks of a round as they change, so that no look at it goes through all of them: a leader may have 16,000."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Watched:
    """A field on which what is counted depends: its owner's ``noted`` is called when the value changes."""

    def __init__(self, default: Any) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, one: Any, owner: type) -> Any:
        return self._default if one is None else one.__dict__.get(self._name, self._default)

    def __set__(self, one: Any, value: Any) -> None:
        if one.__dict__.get(self._name, self._default) is not value:
            one.__dict__[self._name] = value
            one.noted()


class Tally:
    """Counts ranks by what they do, so that no look at a round goes through all of them. What has changed is counted when it is asked."""

    def __init__(self) -> None:
        self.changed: set[Any] = set()
        self._counted: dict[Any, tuple[object, ...]] = {}
        self._counts: Counter[object] = Counter()

    def __getitem__(self, what: object) -> int:
        """Return how many ranks are that: a name of `_traits`, or ("phase", NAME) of those that are not over."""
        self._count()
        return self._counts[what]

    def _count(self) -> None:
        for rank in self.changed:
            self._counts.subtract(self._counted.get(rank, ()))
            self._counted[rank] = traits = _traits(rank)
            self._counts.update(traits)
        self.changed.clear()

    @property
    def phases(self) -> set[str]:
        """Phases of ranks that are not over."""
        self._count()
        return {what[1] for what, count in self._counts.items() if isinstance(what, tuple) and count > 0}


def _traits(rank: Any) -> tuple[object, ...]:
    over = rank.over
    found = {
        "ready": rank.ready or rank.phase == "script" or over,
        "plain": not rank.attached,
        "handles_usr2": rank.handles_usr2,
        "over": over,
        "exited": rank.exited,
        "stopped": rank.stopped is not None,
        "done": rank.finished is not None and (rank.exited or not rank.round.script),
        "unsaved": rank.finished is not None and not rank.saved,
        "failed": rank.failure is not None,
        "frozen": rank.frozen_since is not None and not over,
        ("phase", rank.phase): not over,
    }
    return tuple(name for name, true in found.items() if true)
