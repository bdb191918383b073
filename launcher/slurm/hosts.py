"""Expand lists of hosts as SLURM writes them: ``node[1-3,5],rack[1-2]n[01-10]``. Standard library only."""

from __future__ import annotations

import itertools
import math
import re

_MOST = 65536
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_hosts(text: str) -> list[str]:
    """Return the host names that ``text`` stands for, in its order; [] for "" and SLURM's "(null)" and "None assigned".

    Several brackets in one name vary from the last (rightmost) one first, and leading zeros are kept, as in SLURM.
    Raises ValueError when the text is no host list, or stands for more than 65,536 names.
    """
    if text.strip() in ("", "(null)", "None", "None assigned", "n/a"):
        return []
    names: list[str] = []
    for word in _split(text.strip()):
        names += _expand(word, _MOST - len(names))
    return names


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    words, word, depth = [], "", 0
    for c in text:
        depth += {"[": 1, "]": -1}.get(c, 0)
        if depth not in (0, 1):
            raise ValueError(f"{text!r}: brackets do not match")
        if c == "," and depth == 0:
            words.append(word)
            word = ""
        else:
            word += c
    if depth:
        raise ValueError(f"{text!r}: brackets do not match")
    return [*words, word]


def _expand(word: str, most: int) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", word)
    choices = [_numbers(p, word) if i % 2 else [p] for i, p in enumerate(pieces)]
    if math.prod(map(len, choices)) > most:
        raise ValueError(f"{word!r} stands for more than {_MOST} hosts")
    names = ["".join(parts) for parts in itertools.product(*choices)]
    if any(not n or any(c.isspace() for c in n) for n in names):
        raise ValueError(f"{word!r} is no host name")
    return names


def _numbers(text: str, word: str) -> list[str]:
    out: list[str] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise ValueError(f"{word!r}: {part!r} is neither a number nor a range")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) > _MOST:
            raise ValueError(f"{word!r}: {part!r} is no range of at most {_MOST}")
        out += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return out
