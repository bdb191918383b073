"""Expand lists of hosts as SLURM writes them: ``node[1-3,5],rack[1-2]n[01-10]``. Standard library only."""

from __future__ import annotations

import itertools
import math
import re

_MOST = 65536
_LONGEST = 256
"""Characters of a name; the Domain Name System allows 253."""


def expand_hosts(text: str) -> list[str]:
    """Return the host names that ``text`` stands for, in its order; [] for "" and SLURM's "(null)" and "None assigned".

    Several brackets in one name vary from the last (rightmost) one first, and leading zeros are kept, as in SLURM.
    Raises ValueError when the text is no host list, or stands for more than 65,536 names or for one of over 256 characters.
    """
    text = text.strip()
    if text in ("", "(null)", "None", "None assigned", "n/a"):
        return []
    words = re.findall(r"(?:[^\s,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(words) != text:
        raise ValueError(f"{text!r} is not a host list, such as node[1-3],login")
    names: list[str] = []
    for word in words:
        pieces = re.split(r"\[([^\]]*)\]", word)
        ranges = [_ranges(inside, word) for inside in pieces[1::2]]
        # Counted and measured before anything is made: few characters can stand for more than the memory holds.
        if sum(map(len, pieces[::2])) + sum(max(max(map(len, pair)) for pair in each) for each in ranges) > _LONGEST:
            raise ValueError(f"{text!r} has a name of more than {_LONGEST} characters")
        if len(names) + math.prod(sum(int(b) - int(a) + 1 for a, b in each) for each in ranges) > _MOST:
            raise ValueError(f"{text!r} stands for more than {_MOST} hosts")
        choices = [_numbers(ranges[i // 2]) if i % 2 else [p] for i, p in enumerate(pieces)]
        names += ["".join(parts) for parts in itertools.product(*choices)]
    return names


def hosts_or_none(text: str) -> list[str] | None:
    """Return `expand_hosts`; None for a text that is no host list."""
    try:
        return expand_hosts(text)
    except ValueError:
        return None


def _ranges(text: str, word: str) -> list[tuple[str, str]]:
    """Read what is in a pair of brackets: the first and the last number of each range."""
    out = []
    for part in text.split(","):
        found = re.fullmatch(rf"(\d{{1,{_LONGEST}}})(?:-(\d{{1,{_LONGEST}}}))?", part.strip())
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"{word!r}: {part!r} is not a number or a range")
        out.append((found[1], found[2] or found[1]))
    return out


def _numbers(ranges: list[tuple[str, str]]) -> list[str]:
    return [str(n).zfill(len(first)) for first, last in ranges for n in range(int(first), int(last) + 1)]
