"""Why a task ended before its agent began, in the words of enroot, pyxis, SLURM, Apptainer or the shell.

Measured with enroot 4.1.2 and pyxis 0.24.0 on SLURM 22.05, 24.11 and 26.05, and with Apptainer 1.4.
"""

from __future__ import annotations

import re

SLURMSTEPD = re.compile(r"(?:slurmstepd\S*:|\[\d\S+\]) error: ")
"""How slurmstepd begins a line; since 26.05 with the time alone."""
_ENDED_BY_SLURM = re.compile(rf"^{SLURMSTEPD.pattern}\*\*\* ", re.MULTILINE)
"""SLURM had ended the job or the step: later errors follow from that."""
_FOLLOWS = r"child \d|printing |container | |failed to |couldn't create "
"""How pyxis goes on after the error that it met."""
_SHELL = re.compile(r"^agent: (?:line )?\d+: (?P<words>.+)$", re.MULTILINE)
_ERRORS = (
    re.compile(rf"^{SLURMSTEPD.pattern}pyxis: +(?:\[ERROR\] |(?=enroot-))(?P<words>.+)$", re.MULTILINE),
    re.compile(rf"^{SLURMSTEPD.pattern}(?P<words>pyxis: (?!{_FOLLOWS}).+)$", re.MULTILINE),
    re.compile(rf"^{SLURMSTEPD.pattern}(?P<words>pyxis: failed to .+)$", re.MULTILINE),
    re.compile(rf"^{SLURMSTEPD.pattern}(?P<words>execve\(\): .+)$", re.MULTILINE),
    re.compile(r"^FATAL: +(?P<words>.+)$", re.MULTILINE),
    _SHELL,
    re.compile(r"^srun: (?P<words>unrecognized option '--container.+)$", re.MULTILINE),
    re.compile(r"^srun: error: (?P<words>Invalid --container.+)$", re.MULTILINE),
)
"""The most telling first."""


def start_error(log: str) -> str:
    """Return the error that kept a task from its agent, "" where its log names none. Pure."""
    ended = _ENDED_BY_SLURM.search(log)
    before = log[: ended.start()] if ended else log
    for error in _ERRORS:
        if found := list(error.finditer(before)):
            # A setup line that fails does not end the task: the shell's last complaint does.
            last = found[-1 if error is _SHELL else 0]
            return last["words"].strip().rstrip(".")[:300]
    return ""
