"""Run SLURM's commands as subprocesses: a time-out, a plain environment, retries while the controller is busy.

Standard library only: agents and the leader use it too.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping

from launcher.frozen import frozen
from launcher.run.held_signals import signals_held
from launcher.run.open_files import as_before
from launcher.slurm.ask_courier import VARIABLE, ask_courier

_BUSY = re.compile(
    r"timed out|unable to contact slurm controller|communication connection failure|zero bytes were transmitted|"
    r"connection (refused|reset)|resource temporarily unavailable|transport endpoint|slurmdbd|"
    r"message (receive|send) failure|unable to establish control|persistent connection|rate limit|try again|standby mode|"
    r"munge|protocol authentication|authentication credential|error writing script|submissions disabled|connect to database|"
    r"configuration source",
    re.IGNORECASE,
)
_UNCONFIGURED = "DNS SRV lookup failed"
"""There is neither a slurm.conf nor an address to fetch one from. Where slurmctld gives it and is away, the lookup succeeds."""
_DROPPED = re.compile(
    r"(SQUEUE|SINFO|SACCT|SACCTMGR|SPRIO|SSTAT|SCONTROL|SCANCEL)_|SLURM_(CLUSTERS|JSON|YAML|DEBUG_FLAGS)$"
)


@frozen
class Answer:
    """What one of SLURM's commands answered."""

    words: tuple[str, ...]
    """The command."""
    code: int | None
    """Exit status; None when it could not be started or did not end in time."""
    out: str = ""
    err: str = ""
    missing: bool = False
    """The command is not on the PATH."""

    @property
    def ok(self) -> bool:
        """It ended with status 0."""
        return self.code == 0

    @property
    def busy(self) -> bool:
        """The controller (or slurmdbd) did not answer, or the command was killed: asking again may help."""
        passes = _BUSY.search(self.err) and _UNCONFIGURED not in self.err
        refused = self.code is not None and self.code >= 0 and not passes
        return not (self.ok or self.missing or refused)

    @property
    def problem(self) -> str:
        """Why it is not `ok`, in SLURM's words without their prefixes; "" when it is."""
        if self.ok:
            return ""
        name = self.words[0]
        if self.missing:
            return f"{name} is not on the PATH"
        if self.code is not None and self.code < 0:
            return f"{name} was killed by signal {-self.code}"
        if _UNCONFIGURED in self.err:
            return f"{name} finds no configuration on this machine: no slurm.conf in its place, nor by SLURM_CONF"
        lines = (re.sub(rf"^({name}|slurm\w*): (error: )?", "", line).strip() for line in self.err.splitlines())
        said = "; ".join(dict.fromkeys(filter(None, lines)))
        return said or (f"{name} ended with status {self.code}" if self.code is not None else f"{name} did not answer")


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return ``environ`` without what would change a command, its cluster or its answer's form; times as epoch seconds.

    SCANCEL_INTERACTIVE, say, has scancel ask on, for ever.
    """
    env = os.environ if environ is None else environ
    kept = {k: v for k, v in env.items() if not _DROPPED.match(k)}
    # 0: the elements of an array are never cut off in the middle.
    return {**kept, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}


def ask(
    *words: str,
    timeout_s: float = 30.0,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    apart: bool = False,
) -> Answer:
    """Run one of SLURM's commands once, in the folder ``cwd``. Never raises: the answer says what went wrong.

    ``apart``: Ctrl-C in the terminal does not reach it.
    """
    process: subprocess.Popen[str] | None = None
    env = clean_environment(environ)
    try:
        with signals_held(), spared():  # none strikes before the started command is known
            process = subprocess.Popen(
                as_before(words, env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                errors="replace", env=env, cwd=cwd, start_new_session=apart,
            )  # fmt: skip
        out, err = process.communicate(timeout=timeout_s)
        return Answer(words, process.returncode, out, err)
    except FileNotFoundError:
        # From a container the batch script's courier asks.
        answered = ask_courier(words, timeout_s=timeout_s, environ=environ)
        if answered is None:
            return Answer(words, None, missing=VARIABLE not in os.environ, err=f"{words[0]} is not available here")
        return Answer(**{**answered, "words": words})
    except subprocess.TimeoutExpired:
        return Answer(words, None, err=f"{words[0]} did not answer within {timeout_s:g} s")
    except (OSError, ValueError) as error:
        return Answer(words, None, err=str(error))
    finally:
        if process is not None:
            with process:
                process.kill()  # one that has ended gets no signal


@contextlib.contextmanager
def spared() -> Iterator[None]:
    """Block TERM and USR2 in the commands started inside.

    SLURM sends them to every process of a step: a requeue's own TERM would kill the scontrol that comes after it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ask_patiently(*words: str, tries: int = 4) -> Answer:
    """Ask again while the controller is busy: at most ``tries`` times, with 7 s of waiting in all.

    Only for commands that may be repeated.
    """
    answer = ask(*words)
    for number in range(tries - 1):
        if answer.busy:
            time.sleep(2.0**number)
            answer = ask(*words)
    return answer
