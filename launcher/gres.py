"""Read what --gres and --gpus say of GPUs. Standard library only."""

from __future__ import annotations

import re


def read_gpus(text: str, *, named: bool = True) -> list[tuple[str, int]]:
    """Return type and number of each entry of GPUs in ``text``: of ``gpu:a100:4(S:0-1),gpu:3090:2,tmp:1`` a100 and 4, 3090 and 2.

    A type is any text, also digits (gres.conf(5)); "" for none. Without a number it is one GPU. ``named``: as in --gres, where GPUs
    stand beside other resources; in --gpus every entry is of GPUs (``a100:4``).
    """
    found = []
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        words = re.split(r"[:=]", entry.strip().removeprefix("gres:").removeprefix("gres/"))
        if (named and words.pop(0) != "gpu") or words == [""]:
            continue
        number = int(words.pop()) if words and re.fullmatch(r"[0-9]{1,9}", words[-1]) else 1
        found.append((":".join(words), number))
    return found
