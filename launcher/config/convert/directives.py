"""Read ``#SBATCH`` lines, and the options of srun, as a mapping by long name."""

from __future__ import annotations

import re
import shlex

SHORT = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "E": "preserve-env", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "I": "immediate", "i": "input",
    "J": "job-name", "K": "kill-on-bad-exit", "k": "no-kill", "L": "licenses", "l": "label", "M": "clusters", "m": "distribution",
    "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "r": "relative",
    "S": "core-spec", "s": "oversubscribe", "T": "threads", "t": "time", "u": "unbuffered", "v": "verbose", "W": "wait",
    "w": "nodelist", "X": "disable-status", "x": "exclude",
}  # fmt: skip
FLAGS = {
    "contiguous", "exclusive", "hold", "ignore-pbs", "immediate", "kill-on-bad-exit", "label", "nice", "no-kill", "no-requeue",
    "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "requeue", "spread-job", "stepmgr", "test-only", "unbuffered",
    "verbose", "wait", "x11", "exact", "overlap", "pty", "no-container-mount-home", "container-mount-home", "container-writable",
    "container-readonly", "container-remap-root", "no-container-remap-root", "no-container-entrypoint", "disable-status",
    "multi-prog", "preserve-env", "reboot", "use-min-nodes", "get-user-env",
}  # fmt: skip
"""Options that take no value unless one is joined by ``=``."""
_LONG = {
    *SHORT.values(), *FLAGS, "acctg-freq", "bb", "bbf", "cluster-constraint", "comment", "container", "container-id", "cores-per-socket",
    "cpu-freq", "cpus-per-gpu", "deadline", "delay-boot", "export", "export-file", "extra", "gid", "gpu-bind", "gpu-freq",
    "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "kill-on-invalid-dep", "mail-type", "mail-user",
    "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "ntasks-per-core", "ntasks-per-gpu",
    "ntasks-per-node", "ntasks-per-socket", "open-mode", "power", "prefer", "priority", "profile", "reservation", "resv-ports",
    "segment", "signal", "sockets-per-node", "switches", "tasks-per-node", "thread-spec", "threads-per-core", "time-min", "tmp",
    "tres-bind", "tres-per-task", "uid", "wait-all-nodes", "wckey", "wrap",
}  # fmt: skip
"""sbatch's options: a name may be cut short where it is no other's beginning, too."""
_OTHER_NAMES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir"}


def long_name(name: str) -> str:
    """Return the full name of an option that is cut short, and the usual one of an option with two."""
    if name not in _LONG:
        longer = [known for known in _LONG if known.startswith(name)]
        name = longer[0] if len(longer) == 1 else name
    return _OTHER_NAMES.get(name, name)


def smallest_count(text: str | None) -> int | None:
    """Return a whole number, the smallest of a range such as ``2-4``, or ``2:4`` of torchrun; None for anything else."""
    found = re.fullmatch(r"(\d{1,9})(?:[-:]\d+)?", text or "")
    return int(found[1]) if found else None


def node_range(text: str) -> str:
    """Return a range of node counts as SLURM writes it, also torchrun's ``2:4``; "" for anything else."""
    found = re.fullmatch(r"(\d{1,9})[-:](\d{1,9})", text)
    return f"{found[1]}-{found[2]}" if found and int(found[1]) < int(found[2]) else ""


def directives(text: str) -> tuple[dict[str, str], list[str]]:
    """Return sbatch's options by long name ("" is a bare flag), and the lines without effect here.

    These are the ones that SLURM ignores, after the first command, and the other components of a heterogeneous job.
    """
    found: dict[str, str] = {}
    late: list[str] = []
    started = more = False
    for line in text.splitlines():
        if line.startswith("#SBATCH"):
            if started:
                late.append(f"{line.strip()}: SLURM ignores directives after the first command.")
            elif more or line[7:].split()[:1] in (["hetjob"], ["packjob"]):
                more = True
            else:
                given = options(_split(line[7:]))[0]
                if "mail-type" in given and "mail-type" in found:  # the one option whose values sbatch adds up
                    given["mail-type"] = f"{found['mail-type']},{given['mail-type']}"
                found.update(given)
        elif line.strip() and not line.lstrip().startswith("#"):
            started = True
    if more:
        late.append("hetjob: a job has one kind of node; only the first component of the script is here.")
    return found, late


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an open quote: as it stands
        return text.split("#")[0].split()


def options(words: list[str], *, srun: bool = False) -> tuple[dict[str, str], list[str]]:
    """Return leading options by long name, and the words after them."""
    found: dict[str, str] = {}
    words = list(words)
    flags = FLAGS - {"wait"} if srun else FLAGS
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, joined, value = word[2:].partition("=")
            name = name.replace("_", "-") if srun else long_name(name)
        else:
            name, value = SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            joined = value
        if not joined and name not in flags and words and not words[0].startswith("-"):
            value = words.pop(0)
        found[_OTHER_NAMES.get(name, name)] = value
    return found, words
