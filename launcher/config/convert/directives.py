"""Read ``#SBATCH`` lines, and the options of srun, as a mapping by long name."""

from __future__ import annotations

import shlex

SHORT = {
    "A": "account", "a": "array", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error",
    "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "K": "kill-on-bad-exit", "k": "no-kill", "l": "label",
    "L": "licenses", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time", "u": "unbuffered",
    "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude", "Q": "quiet", "O": "overcommit", "s": "oversubscribe",
}  # fmt: skip
FLAGS = {
    "contiguous", "exclusive", "hold", "kill-on-bad-exit", "label", "no-kill", "no-requeue", "overcommit", "oversubscribe",
    "parsable", "quiet", "requeue", "spread-job", "test-only", "unbuffered", "verbose", "wait", "exact", "overlap", "pty",
    "no-container-mount-home", "container-mount-home", "container-writable", "container-readonly", "container-remap-root",
    "no-container-remap-root", "no-container-entrypoint", "disable-status", "multi-prog", "preserve-env", "reboot",
    "use-min-nodes", "get-user-env",
}  # fmt: skip
"""Options that take no value unless one is joined by ``=``."""


def directives(text: str) -> tuple[dict[str, str], list[str]]:
    """Return sbatch's options by long name ("" is a bare flag), and directives that SLURM ignores (after the first command)."""
    found: dict[str, str] = {}
    late: list[str] = []
    started = False
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            if started:
                late.append(line.strip())
            else:
                found.update(options(_split(line[7:]))[0])
        elif line.strip() and not line.lstrip().startswith("#"):
            started = True
    return found, late


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an open quote: as it stands
        return text.split("#")[0].split()


def options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return leading options by long name, and the words after them."""
    found: dict[str, str] = {}
    words = list(words)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, joined, value = word[2:].partition("=")
        else:
            name, value = SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            joined = value
        if not joined and name not in FLAGS and words and not words[0].startswith("-"):
            value = words.pop(0)
        found[name] = value
    return found, words
