"""Every error this package raises on purpose, and the exit code each one owns.

LauncherError                    1   anything below, when nothing nearer fits
├── ConfigError                  3   the job file, a site profile or an override is wrong
├── CodeError                    4   the named training code is not there, or does not take its parameters
├── SiteError                    5   SLURM is missing, does not answer, or forbids what is asked
├── SubmitError                  6   the submission itself failed
├── RunNotFoundError             7   no run, or more than one, answers to that name
│   └── RunGoneError             7   the run is known, and its folder was deleted or moved
├── RunFailedError               8   the run ended failed
├── RunCancelledError            9   the run ended cancelled
├── DrillError                  10   the resume drill: the job cannot resume exactly
├── RunDirError                 11   the run directory cannot be made, read or written
├── SnapshotError               12   the code cannot be copied into the run
├── InterpreterError            13   the interpreter is missing or lacks what workers need
├── CheckpointError             14   no checkpoint can be used as asked
├── ProtocolError               15   leader, agent and worker do not understand or trust each other
├── StateError                  16   the run is not in a state that allows what is asked
└── ExtraMissingError           17   an optional extra is needed and not installed

Exit code 2 belongs to click: a command line that cannot be read.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "CodeError",
    "ConfigError",
    "DrillError",
    "ExtraMissingError",
    "InterpreterError",
    "LauncherError",
    "ProtocolError",
    "RunCancelledError",
    "RunDirError",
    "RunFailedError",
    "RunGoneError",
    "RunNotFoundError",
    "SiteError",
    "SnapshotError",
    "StateError",
    "SubmitError",
]


class LauncherError(Exception):
    """Root of the tree. ``str(error)`` is what a user reads: one or more whole sentences, no traceback."""

    exit_code = 1


class ConfigError(LauncherError):
    """The job file, a site profile or an override is wrong; ``problems`` holds one line per fault."""

    exit_code = 3

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class CodeError(ConfigError):
    """The named training code is not there, or does not take the parameters it is given."""

    exit_code = 4


class SiteError(LauncherError):
    """SLURM is missing, does not answer, or forbids what is asked."""

    exit_code = 5


class SubmitError(LauncherError):
    """The submission itself failed; nothing is queued."""

    exit_code = 6


class RunNotFoundError(LauncherError):
    """No run, or more than one, answers to the given name."""

    exit_code = 7


class RunGoneError(RunNotFoundError):
    """The run is known, and its folder was deleted or moved."""

    def __init__(self, sentence: str, run_id: str = "") -> None:
        self.run_id = run_id
        super().__init__(sentence)


class RunFailedError(LauncherError):
    """The run ended failed."""

    exit_code = 8


class RunCancelledError(LauncherError):
    """The run ended cancelled."""

    exit_code = 9


class DrillError(LauncherError):
    """The resume drill found a part of the state that differs after a resume."""

    exit_code = 10


class RunDirError(LauncherError):
    """The run directory cannot be made, read or written."""

    exit_code = 11


class SnapshotError(LauncherError):
    """The code cannot be copied into the run."""

    exit_code = 12


class InterpreterError(LauncherError):
    """The interpreter that workers would use is missing or lacks what they need."""

    exit_code = 13


class CheckpointError(LauncherError):
    """No checkpoint can be used as asked. ``lasting``: the next try would find the same."""

    exit_code = 14

    def __init__(self, sentence: str, *, lasting: bool = False) -> None:
        self.lasting = lasting
        super().__init__(sentence)


class ProtocolError(LauncherError):
    """Leader, agent and worker do not understand or do not trust each other."""

    exit_code = 15


class StateError(LauncherError):
    """The run is not in a state that allows what is asked."""

    exit_code = 16


class ExtraMissingError(LauncherError):
    """An optional extra is needed and not installed; the message says which ``pip install`` brings it."""

    exit_code = 17
