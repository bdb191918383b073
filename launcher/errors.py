"""Every error that this package raises on purpose, with its exit code.

LauncherError                    1   an error of no kind below
├── ConfigError                  3   the job file, a site profile or an override is wrong
├── CodeError                    4   the named training code is not found, or does not take its parameters
├── SiteError                    5   SLURM is missing, does not answer, or refuses the request
├── SubmitError                  6   the submission itself failed
├── RunNotFoundError             7   no run, or more than one, has that name
│   └── RunGoneError             7   the run is known, and its folder was deleted or moved
├── RunFailedError               8   the run ended failed
├── RunCancelledError            9   the run ended cancelled
├── DrillError                  10   the resume drill found that the job cannot resume exactly
├── RunDirError                 11   the run directory cannot be made, read or written
├── SnapshotError               12   the code cannot be copied into the run
├── InterpreterError            13   the interpreter is missing or lacks packages that workers need
├── CheckpointError             14   the requested checkpoint cannot be used
├── ProtocolError               15   a message between leader, agent and worker is invalid or not authentic
├── StateError                  16   the state of the run does not allow the request
└── TrustError                  17   the job or its code belongs to others, or others can write it

Exit code 2 is click's, for a command line that cannot be read.
"""

from __future__ import annotations


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
    """The named training code is not found, or does not take its parameters."""

    exit_code = 4


class SiteError(LauncherError):
    """SLURM is missing, does not answer, or refuses the request."""

    exit_code = 5


class SubmitError(LauncherError):
    """The submission itself failed: nothing is queued, or the sentence says that this is not known."""

    exit_code = 6


class RunNotFoundError(LauncherError):
    """No run, or more than one, has the given name."""

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
    """The interpreter of the workers is missing or lacks packages that they need."""

    exit_code = 13


class CheckpointError(LauncherError):
    """The requested checkpoint cannot be used. ``lasting``: another try would fail in the same way."""

    exit_code = 14

    def __init__(self, sentence: str, *, lasting: bool = False) -> None:
        self.lasting = lasting
        super().__init__(sentence)


class ProtocolError(LauncherError):
    """A message between leader, agent and worker is invalid or not authentic."""

    exit_code = 15


class StateError(LauncherError):
    """The state of the run does not allow the request."""

    exit_code = 16


class TrustError(LauncherError):
    """The job or its code belongs to others, or others can write it, and the user has not vouched for it."""

    exit_code = 17
