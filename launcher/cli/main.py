"""The command ``launcher``: find verbs by module name, turn errors into one sentence and an exit code.

A verb is a module of this package whose ``command`` is a click command; it is imported when it is used, never for
``launcher --help`` (which reads the first line of each module's docstring). Modules whose name begins with ``_`` and
this one are no verbs. Modules import nothing heavy at their top: click and the standard library.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import TextIO, cast

import click

import launcher
from launcher.cli._terminal import HarmlessStream
from launcher.errors import LauncherError, RunDirError, RunGoneError

_HERE = os.path.dirname(__file__)  # pathlib would be a twentieth of the time of --help
DEBUG_VARIABLE = "LAUNCHER_DEBUG"

# Shown by --help in the order in which a user meets them; verbs not named here follow by alphabet.
_ORDER = (
    "init", "plan", "dry-run", "run", "submit", "resubmit", "hold", "rerun", "ls", "status", "watch", "logs", "why", "report", "cancel",
)  # fmt: skip


def _summary(verb: str) -> str:
    """Read the first line of a verb's docstring, without importing it."""
    with open(os.path.join(_HERE, f"{verb.replace('-', '_')}.py"), encoding="utf-8") as f:
        return f.readline().strip().strip('"')


class _Verbs(click.Group):
    """A group that knows its commands by the names of modules."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        stems = (os.path.splitext(name) for name in os.listdir(_HERE) if not name.startswith("_"))
        verbs = sorted(stem.replace("_", "-") for stem, kind in stems if kind == ".py" and stem != "main")
        return sorted(verbs, key=lambda v: _ORDER.index(v) if v in _ORDER else len(_ORDER))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in (verbs := self.list_commands(ctx)):
            import difflib

            near = [] if ctx.resilient_parsing else difflib.get_close_matches(cmd_name, verbs, n=1)
            return ctx.fail(f"No such command {cmd_name!r}. Did you mean {near[0]}?") if near else None
        command: click.Command = importlib.import_module(f"launcher.cli.{cmd_name.replace('-', '_')}").command
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, _summary(verb)) for verb in self.list_commands(ctx)])


@click.group(
    cls=_Verbs, subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)  # fmt: skip
@click.version_option(launcher.__version__, message="launcher %(version)s", help="Print the version.")
def cli() -> None:
    """Submit multi-node PyTorch DDP jobs to SLURM, and restart and resume them after failures.

    RUN is a run's id, a unique prefix or ending of it, a job's name (its newest run), or @last (the newest run).
    """


def _flush(code: int) -> int:
    """Flush standard output, so that Python reports no closed pipe at its end."""
    gc.freeze()  # Python would collect everything once more at its end: a tenth of a second for some verbs
    try:
        sys.stdout.flush()
    except (OSError, LauncherError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _has_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _open_standard_streams() -> None:
    """Open the standard streams that a caller has closed (``<&-``): else the first file opened would take their number."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _replace_unprintable() -> None:
    """Print ``?`` for what the terminal's encoding lacks: an old locale or a broken file name is no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(argv: list[str] | None) -> int:
    colour = False if os.environ.get("NO_COLOR") else None  # no-color.org; None: where the output is a terminal
    try:
        value = cli.main(args=argv, prog_name="launcher", standalone_mode=False, color=colour)
    except click.exceptions.Abort:
        return _stopped()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return value if isinstance(value, int) else 0


def _stopped() -> int:
    click.echo("stopped", err=True)
    # Python remembers a KeyboardInterrupt that struck within an exec() of text (every dataclass is made by one), caught
    # or not, and ends `python -m` by SIGINT instead of the exit code; the next exec() makes it forget (pythonrun.c).
    exec("")  # noqa: S102 (nothing)
    return 130  # as a shell shows a command that SIGINT ended


def main(argv: list[str] | None = None) -> int:
    """Run the command line ``argv`` (without the program's name; None: ``sys.argv``) and return the exit code.

    Verbs return None or an exit code, or raise a `LauncherError`, whose class has the exit code.
    """
    _open_standard_streams()
    _replace_unprintable()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", HarmlessStream(stream)) for stream in before)
    try:
        with _ended_in_order():
            return _guarded(argv)
    finally:
        # Where a pipe was closed, click has put in stdout's place what bears that at the exit.
        if isinstance(sys.stdout, HarmlessStream):
            sys.stdout = before[0]
        sys.stderr = before[1]


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Have TERM and HUP interrupt the verb as Ctrl-C does, so that it takes back what it has begun; then they end the process.

    Where a signal is ignored (nohup), or the caller has a handler of its own, that stays.
    """
    came: list[int] = []

    def interrupt(number: int, _: object) -> None:
        if not came:  # a second one does not interrupt what the first one has taken back
            came.append(number)
            raise KeyboardInterrupt

    with contextlib.ExitStack() as handlers:
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError):  # another thread than the main one
                if signal.getsignal(number) is signal.SIG_DFL:
                    handlers.callback(signal.signal, number, signal.signal(number, interrupt))
        yield
    if came:
        _flush(0)
        signal.raise_signal(came[0])


def _guarded(argv: list[str] | None) -> int:
    """Run the command line, turn every error into a sentence and an exit code."""
    debugging = os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    try:
        return _flush(_run(argv))
    except LauncherError as error:
        if debugging:
            raise
        text = str(error)
        if isinstance(error, RunGoneError):
            from launcher.report.model.lost_runs import lost_run_in_words

            text = lost_run_in_words(error)
        click.echo(f"launcher: {text}", err=True)
        return _flush(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141  # as a shell shows a command that SIGPIPE ended
    except KeyboardInterrupt:
        return _stopped()
    except Exception as error:
        # What becomes, before Python 3.12, of a KeyboardInterrupt that struck in a class's definition.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return _stopped()
        if debugging:
            raise
        if isinstance(error, FileNotFoundError) and not _has_directory():
            click.echo("launcher: the working directory was deleted; cd to another one", err=True)
            return RunDirError.exit_code
        text = f"{type(error).__name__}: {error}"
        click.echo(
            f"launcher: internal error ({text}); run it again with {DEBUG_VARIABLE}=1 for the traceback", err=True
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
