"""The pieces of the sbatch script that carry the Python environment to the nodes (`environment.stage`). Pure.

What they call, `launcher/node/allocation/stage.sh`, is in the run's lib: nothing else is read from the shared file system.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from launcher.config.document.schema import Job
from launcher.run.units import size
from launcher.submission.facts.facts import Facts, StagedFiles
from launcher.submission.facts.staged_files import LIB


def place(job: Job) -> str:
    """Return the folder of each node that the environment is unpacked in."""
    return "/tmp" if job.environment.stage is True else str(job.environment.stage)  # noqa: S108 (a folder of the user's own is made in it)


def carries(job: Job, facts: Facts, lib: str) -> list[str]:
    """Return the line of the batch script that sends the archive to all nodes."""
    return [shlex.join(_words("carry", job, facts.staged, lib))] if facts.staged else []


def enters(job: Job, facts: Facts, lib: str) -> list[str]:
    """Return the words that start Python from the archive's copy: the interpreter and its arguments follow them."""
    if not facts.staged:
        return []
    shown = [f"{number}={root}" for number, root in enumerate(facts.staged.roots)]
    return [*_words("enter", job, facts.staged, lib), str(facts.staged.size), *shown, f"{LIB}={lib}", "--"]


def _words(verb: str, job: Job, staged: StagedFiles, lib: str) -> list[str]:
    return ["/bin/sh", f"{lib}/launcher/node/allocation/stage.sh", verb, staged.archive, place(job)]


def told(job: Job, facts: Facts) -> str:
    """Return what `launcher plan` says of it after the interpreter."""
    if not facts.staged:
        return ""
    return f"; {facts.staged.count:,} files, {size(facts.staged.size)}, carried to {place(job)} of each node (memory, where that is a tmpfs)"


def warnings(facts: Facts) -> Iterator[str]:
    """Say what stays where it is."""
    for path in facts.staged.outside if facts.staged else ():
        yield f"environment.stage: {path} is outside the environment and still read from the shared file system"
