"""Expand lists of hosts as SLURM writes them: ``node[1-3,5],rack[1-2]n[01-10]``. Standard library only."""

from __future__ import annotations

import itertools
import math
import re

_MOST = 65536


def expand_hosts(text: str) -> list[str]:
    """Return the host names that ``text`` stands for, in its order; [] for "" and SLURM's "(null)" and "None assigned".

    Several brackets in one name vary from the last (rightmost) one first, and leading zeros are kept, as in SLURM.
    Raises ValueError when the text is no host list, or stands for more than 65,536 names.
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
        choices = [_numbers(p, word) if i % 2 else [p] for i, p in enumerate(pieces)]
        if len(names) + math.prod(map(len, choices)) > _MOST:
            raise ValueError(f"{text!r} stands for more than {_MOST} hosts")
        names += ["".join(parts) for parts in itertools.product(*choices)]
    return names


def _numbers(text: str, word: str) -> list[str]:
    out: list[str] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not found:
            raise ValueError(f"{word!r}: {part!r} is not a number or a range")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) > _MOST:
            raise ValueError(f"{word!r}: {part!r} is not a range of at most {_MOST} numbers")
        out += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return out
