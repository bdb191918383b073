"""Lists of hosts as SLURM writes them: ``node[1-3,5],rack[1-2]n[01-10]`` and back. Standard library only."""

from __future__ import annotations

import itertools
import re

from launcher.slurm.commands import ask

__all__ = ["compress_hosts", "expand_hosts", "hosts_of"]

_MOST = 65536
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_hosts(text: str) -> list[str]:
    """The host names that ``text`` stands for, in its order; [] for "" and SLURM's "(null)" and "None assigned".

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
    """At the commas outside brackets."""
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
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > most:
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


def hosts_of(text: str) -> list[str]:
    """As `expand_hosts`; what it cannot read is given to ``scontrol show hostnames``. Raises ValueError."""
    try:
        return expand_hosts(text)
    except ValueError:
        answer = ask("scontrol", "show", "hostnames", text)
        if answer.ok and answer.out.split():
            return answer.out.split()
        raise


def compress_hosts(names: list[str] | tuple[str, ...]) -> str:
    """A short host list for ``names``: runs of numbers at the end of a name become one bracket, order is kept."""
    groups: list[tuple[str, list[str]]] = []
    for name in names:
        found = re.fullmatch(r"(.*?)(\d*)", name)
        stem, number = (found[1], found[2]) if found else (name, "")
        if groups and groups[-1][0] == stem and number and groups[-1][1] != [""]:
            groups[-1][1].append(number)
        else:
            groups.append((stem, [number]))
    return ",".join(stem + _bracket(numbers) for stem, numbers in groups)


def _bracket(numbers: list[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    runs: list[list[str]] = []
    for n in numbers:
        if runs and int(n) == int(runs[-1][-1]) + 1 and len(n) == len(runs[-1][-1]):
            runs[-1].append(n)
        else:
            runs.append([n])
    return "[" + ",".join(r[0] if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs) + "]"
