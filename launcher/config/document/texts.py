"""Check every text of a job: none may become another option, line or command than was meant."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from launcher.config.document.source import Problem, join
from launcher.redact import holds_secret

_WORD = r"[A-Za-z0-9_@%+=:.,/-]+"
_MODULE = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PATTERNS = {
    "name": (r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "made of letters, digits, dots, dashes and underscores, 64 at most"),
    "task": (rf"{_MODULE}:{_MODULE}", "module:Class"),
    "function": (rf"{_MODULE}:{_MODULE}", "module:name"),
    "slurm.partition": (r"[A-Za-z0-9_.,+-]+", "partition names joined by commas"),
    "slurm.account": (_WORD, "one word"),
    "slurm.qos": (_WORD, "one word"),
    "slurm.reservation": (_WORD, "one word"),
    "slurm.constraint": (r"[A-Za-z0-9_@%+=:.,/()\[\]|&*!-]+", "node features joined by & or |, without spaces"),
    "slurm.exclude": (r"[A-Za-z0-9_.,\[\]-]+", "host names, such as gpu[01-04],gpu09"),
    "slurm.nodelist": (r"[A-Za-z0-9_.,\[\]-]+", "host names, such as gpu[01-04],gpu09"),
    "slurm.dependency": (r"[A-Za-z0-9_:,?+-]+", "in sbatch's form, such as afterok:123"),
    "slurm.mail_type": (r"[A-Z_0-9]+(?:,[A-Z_0-9]+)*", "in sbatch's words, such as END,FAIL"),
    "slurm.mail_user": (r"[^\s\"'\\$`;|&<>()]+", "a mail address"),
    "slurm.gres": (r"[A-Za-z0-9_:.,=()/-]+", "in sbatch's form, such as gpu:a100:4"),
    "distributed.interface": (r"\^?=?[A-Za-z0-9_.:-]+(?:,[A-Za-z0-9_.:-]+)*", "a network interface, such as ib0"),
    "environment.pass": (r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable"),
    "notify.urls": (
        r"[A-Za-z_][A-Za-z0-9_]*",
        "the name of an environment variable that holds the URL, because the URL is a secret",
    ),
}
_FREE = ("params", "args", "sweep", "environment.variables")
"""Below these a text may hold line ends and tabs: no shell and no sbatch ever reads it."""
_LONGEST = 4096


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is not a mapping or list, with its key path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, join(path, index))
    else:
        yield path, value


def check_texts(values: dict[str, Any]) -> Iterator[Problem]:
    """Yield a problem for every text that is not allowed."""
    for path, value in leaves(values):
        if isinstance(value, str) and (said := wrong_text(path, value)):
            yield Problem(path, said, "value")


def wrong_text(path: str, value: str) -> str | None:
    """Say what is wrong with a text at a key path; None when nothing is."""
    free = path.startswith(tuple(f"{f}{c}" for f in _FREE for c in ".["))
    if free:  # these may be long
        odd = "\0" if "\0" in value else ""
    else:
        odd = next((char for char in value if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")), "")
    if odd:
        return f"holds the character U+{ord(odd):04X}, which is not allowed here"
    if holds_secret(value):
        return "looks like a secret; export it as an environment variable and list its name under environment.pass"
    if not free and not value.strip():
        return "is empty; remove this key"
    if not free and len(value) > _LONGEST:
        return f"is longer than {_LONGEST:,} characters"
    item = re.sub(r"\[\d+\]$", "", path)
    pattern, meant = _PATTERNS.get(item, ("", ""))
    if not pattern or "${" in value or re.fullmatch(pattern, value):
        return None
    # What was written for an item may be a secret: it is not shown.
    return f"must be {meant}" + (f', not "{value[:60]}"' if item == path else "")
