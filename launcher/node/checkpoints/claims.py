"""Each attempt is claimed, and only the newest claim may commit or delete.

A claim is ``attempts/N``, made by exclusive ``mkdir``: two leaders can never hold the same number, also when SLURM's own
requeue and a continuation job both happen. A leader that takes the place of a dead one in the same attempt claims
``attempts/N/leader-K`` in the same way. A leader that finds a higher number is stale. The check alone could race
with a newer claim: `launcher.node.checkpoints.trash` says what is done about that.

An agent that hands the job back for a leader that stands still marks the leader's attempt first: if that leader goes on,
its attempt is over before a newer one begins.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import RunDirError
from launcher.frozen import frozen
from launcher.run import clock
from launcher.run.asking import OwnError, load_object, may_pass, names
from launcher.run.files import fsync_dir, write_atomic
from launcher.run.paths import RunPaths
from launcher.run.units import whole_number

_DEPOSED = "deposed"
_LEADER = "leader-"
"""Begins the names of the claims of leaders that took the place of a dead one; the number follows, from 1."""


@frozen
class Claim:
    """What a leader holds: an attempt, and its place among the leaders of that."""

    attempt: int
    leader: int = 0
    """How many leaders of this attempt have died before."""

    def __str__(self) -> str:
        return f"attempt {self.attempt}" + (f", leader {self.leader}" if self.leader else "")


class StaleError(OwnError):
    """A newer claim has been made. (ESTALE alone is no proof: NFS gives it, too, after its server has failed over.)"""


def attempts(paths: RunPaths) -> list[int]:
    """Return every attempt number that was ever claimed, ascending. Raises OSError when that is not known."""
    numbers = map(whole_number, names(paths.attempts, paths.root))
    return sorted(number for number in numbers if number is not None)


def claim_attempt(paths: RunPaths, **who: Any) -> Claim:
    """Take the next attempt number; ``who`` (job id, host, pid) is noted inside.

    Raises RunDirError, and OSError for errors that may pass: a number that was taken then is used by nobody.
    """

    def claim() -> Claim:
        paths.attempts.mkdir(mode=0o750, exist_ok=True)
        return Claim(_take_next(paths.attempts, "", max(attempts(paths), default=-1) + 1, who))

    return _written(paths, claim)


def claim_takeover(paths: RunPaths, *, life: str, **who: Any) -> Claim:
    """Take the place of the leader that has died in this ``life`` of the allocation; the next attempt where none had begun.

    Raises as `claim_attempt` does.
    """

    def claim() -> Claim:
        newest = max(attempts(paths), default=-1)
        if newest < 0 or claimant(paths, newest).get("life") != life:
            return claim_attempt(paths, life=life, **who)
        folder = paths.attempts / str(newest)
        first = max(_takeovers(names(folder, paths.root)), default=0) + 1
        return Claim(newest, _take_next(folder, _LEADER, first, {"life": life, **who}))

    return _written(paths, claim)


def _written(paths: RunPaths, claim: Callable[[], Claim]) -> Claim:
    try:
        return claim()
    except OSError as error:
        if may_pass(error, paths.root):
            raise
        raise RunDirError(f"The run directory {paths.root} cannot be written: {error}.") from error


def _take_next(folder: Path, prefix: str, number: int, who: Mapping[str, Any]) -> int:
    """Make the first folder of such a name that nobody has made, and return its number."""
    while True:
        try:
            (folder / f"{prefix}{number}").mkdir(mode=0o750)
            break
        except FileExistsError:
            number += 1
    write_atomic(folder / f"{prefix}{number}" / "claim.json", json.dumps({"t": clock.now(), **who}))
    fsync_dir(folder)
    return number


def claimant(paths: RunPaths, attempt: int) -> dict[str, Any]:
    """Return who claimed ``attempt`` first; empty when it has not said that yet. Raises OSError when that is not known."""
    return load_object(paths.attempts / str(attempt) / "claim.json", paths.root) or {}


def newest_claimant(paths: RunPaths) -> dict[str, Any]:
    """Return who leads the newest attempt, as far as its claim says; empty where none has begun. Raises OSError."""
    newest = max(attempts(paths), default=None)
    if newest is None:
        return {}
    if not (number := takeovers(paths, newest)):
        return claimant(paths, newest)
    return load_object(paths.attempts / str(newest) / f"{_LEADER}{number}" / "claim.json", paths.root) or {}


def newest_claim(paths: RunPaths) -> Claim | None:
    """Return what the newest leader holds; None where none has begun. Raises OSError when that is not known."""
    newest = max(attempts(paths), default=None)
    return None if newest is None else Claim(newest, takeovers(paths, newest))


def takeovers(paths: RunPaths, attempt: int) -> int:
    """Return how many leaders have taken a dead one's place in ``attempt``. Raises OSError when that is not known."""
    return max(_takeovers(names(paths.attempts / str(attempt), paths.root)), default=0)


def _takeovers(inside: Iterable[str]) -> list[int]:
    """Return the numbers of the leaders that took a dead one's place, by the names ``inside`` an attempt's folder."""
    numbers = [whole_number(name[len(_LEADER) :]) for name in inside if name.startswith(_LEADER)]
    return [number for number in numbers if number is not None]


def depose(paths: RunPaths, attempt: int) -> None:
    """Mark ``attempt`` as over, since another process decides on the run: its leaders, if alive, write nothing more."""
    with contextlib.suppress(OSError):  # the folder cannot be written: the leader cannot write there either
        (paths.attempts / str(attempt) / _DEPOSED).touch()


def is_over(paths: RunPaths, claim: Claim) -> bool:
    """Whether there is a newer claim, or this one was deposed. False when the folder cannot be read."""
    try:
        return not is_current(paths, claim)
    except OSError:
        return False


def is_current(paths: RunPaths, claim: Claim) -> bool:
    """Whether this is the newest claim and not deposed. Raises OSError when that is not known, or the claim itself is gone."""
    newest = max(attempts(paths), default=-1)
    if newest < claim.attempt:  # somebody is deleting the run's folder, or it is another folder of that name
        raise FileNotFoundError(errno.ENOENT, f"attempts/{claim.attempt} is gone")
    if newest > claim.attempt:
        return False
    inside = names(paths.attempts / str(newest), paths.root)
    return _DEPOSED not in inside and max(_takeovers(inside), default=0) <= claim.leader


def was_taken_over(paths: RunPaths, claim: Claim) -> bool:
    """Whether another leader has taken this one's place in the attempt. False when the folder cannot be read."""
    try:
        newest = max(attempts(paths), default=-1)
        inside = names(paths.attempts / str(claim.attempt), paths.root)
    except OSError:
        return False
    return newest == claim.attempt and _DEPOSED not in inside and max(_takeovers(inside), default=0) > claim.leader
