"""Options and arguments that several verbs share, and how a job is named on a command line."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from launcher.errors import TrustError

if TYPE_CHECKING:
    from launcher.config.load.load import LoadedJob
    from launcher.run.paths import RunPaths

_SCRIPT_ARGS, _MODULE, _TRUST = "launcher.script_args", "launcher.module", "launcher.trust"


class TrustCommand(click.Command):
    """A verb that runs what a job names. With --trust the user vouches for a job of others; the refusal says how."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(["--trust"], is_flag=True, help="Accept a job or code that others own or can write.")
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        rest = super().parse_args(ctx, args)
        ctx.meta[_TRUST] = (ctx.params.pop("trust", False), words)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except TrustError as error:
            words = [*ctx.command_path.split(), "--trust", *ctx.meta[_TRUST][1]]
            words += ["--", *ctx.meta[_SCRIPT_ARGS]] if _SCRIPT_ARGS in ctx.meta else []
            raise TrustError(f"{error}: {shlex.join(words)}") from None


def vouched() -> bool:
    """Tell whether the command line has --trust."""
    return bool(click.get_current_context().meta[_TRUST][0])


class ArgsCommand(TrustCommand):
    """A verb whose words after ``--`` are arguments of the job's script: click would drop the ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_SCRIPT_ARGS] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def script_args() -> list[str]:
    """Return the words after ``--``."""
    return list(click.get_current_context().meta.get(_SCRIPT_ARGS, ()))


class JobCommand(ArgsCommand):
    """A verb on JOB [KEY=VALUE ...] [-- SCRIPT ARGS]: a YAML file, a .py file, or -m MODULE."""

    def __init__(self, *args: Any, job: str = "JOB", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(
                ["-m", "module"], metavar="MODULE", help="Use a Python module as the script, as in python -m."
            ),
            click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar=f"{job} [KEY=VALUE]... [-- ARGS]..."),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            rest = super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            args = args[: args.index("--")] if "--" in args else args
            hint = _behind_dashes(ctx, _script_of(args), _option(error.option_name, args))
            said = f"{error.format_message()} {hint}".rstrip()
            raise click.NoSuchOption(error.option_name, said, ctx=error.ctx) from None
        ctx.meta[_MODULE] = ctx.params.pop("module", None)
        return rest


def _script_of(words: Sequence[str]) -> str | None:
    """Return the script that a command line names; None where it names a job file, or nothing."""
    if "-m" in words[:-1]:
        return f"-m {words[words.index('-m') + 1]}"
    return next((word for word in words if word.endswith(".py")), None)


def _option(name: str, words: Sequence[str]) -> list[str]:
    """Return the option as the user wrote it, with the next word where that may be its value."""
    for word, following in zip(words, [*words[1:], "-"], strict=True):
        if word.startswith(name):
            alone = "=" in word or "=" in following or following.startswith("-") or following.endswith(".py")
            return [word] if alone else [word, following]
    return [name]  # one letter of several


def _behind_dashes(ctx: click.Context, script: str | None, words: Sequence[str]) -> str:
    """Return a sentence that shows how to pass the words to the script; empty where there is no script or no word."""
    if script is None or not words:
        return ""
    return f"Write arguments of the script after --: {ctx.command_path} {script} -- {shlex.join(words)}"


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """List the names of runs for the shell's completion, newest first."""
    from launcher.run import index

    refs = reversed(index.list_runs(check=False))
    names = dict.fromkeys(name for r in refs for name in (r.id, index.job_name(r.id)))
    return [n for n in (*names, "@last") if n.startswith(incomplete)][:50]


run_argument = click.argument("run", shell_complete=complete_run)
"""RUN: an id, a unique prefix or ending, a job's name (its newest run), @last, or a path."""

runs_argument = click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)

backend_option = click.option(
    "--backend", type=click.Choice(["auto", "slurm", "local"]), default="auto", show_default=True,
    help="Where to run. auto: on SLURM if this machine has it, else on this machine.",
)  # fmt: skip

wait_option = click.option(
    "--wait", is_flag=True, help="Follow the run until it ends. Exit code 0: completed, 8: failed, 9: cancelled."
)

sweep_option = click.option(
    "--sweep", multiple=True, metavar="KEY=VALUES",
    help="Vary a key, as in params.lr=0.1,0.01 or params.seed=range(5). All points are one array submission. "
    "May be repeated.",
)  # fmt: skip

json_option = partial(click.option, "--json", "as_json", is_flag=True)
"""--json, whose ``help`` says what is printed."""


def read_words(words: Sequence[str], module: str | None) -> tuple[str | None, str | None, list[str]]:
    """Return (job file, target, overrides) of the words of a command line. Raises click.UsageError."""
    if module is not None:
        return None, f"-m {module}", list(words)
    if not words:
        raise click.UsageError("No job is named. Name a YAML file, a .py file, or -m MODULE.")
    name, *overrides = words
    if "=" in name and not os.path.exists(name):
        raise click.UsageError(f"{name!r} is not a job. Name the job first, then KEY=VALUE.")
    return (None, name, overrides) if name.endswith(".py") else (name, None, overrides)


def job_or_own(named: RunPaths, words: Sequence[str]) -> LoadedJob:
    """Load the job that the words name; where they are KEY=VALUE alone, the job of the run ``named`` with these changes."""
    from launcher.submission.resubmit import own_job

    meta = click.get_current_context().meta
    if meta.get(_MODULE) or (words and ("=" not in words[0] or os.path.exists(words[0]))):
        return load_job_words(words)
    return own_job(named, words, meta.get(_SCRIPT_ARGS, []), fresh_code=True, trusted=vouched())


def load_job_words(
    words: Sequence[str], sweep: Sequence[str] = (), *, script_args: Sequence[str] | None = None
) -> LoadedJob:
    """Load the job that the words of a command line name; without ``script_args`` with those after --. Raises ConfigError."""
    from dataclasses import replace

    from launcher.config.document.validation import homes, keys_at
    from launcher.config.load.load import load_job
    from launcher.errors import ConfigError

    context = click.get_current_context()
    path, target, overrides = read_words(words, context.meta.get(_MODULE))
    if script_args is None:
        script_args = context.meta.get(_SCRIPT_ARGS, [])
    try:
        loaded = load_job(path, overrides, target=target, script_args=script_args, sweep=sweep)
    except ConfigError as error:
        keys = {word: re.split(r"[=.\[]", word, maxsplit=1)[0] for word in overrides}
        strange = [word for word, key in keys.items() if key not in keys_at("") and not homes(key)]
        hint = _behind_dashes(context, target, strange)
        raise type(error)([*error.problems, hint] if hint else error.problems) from None
    if vouched():
        loaded = replace(loaded, doubt="", trusted=True)
    _tell_checked(loaded)
    return loaded


def _tell_checked(loaded: LoadedJob) -> None:
    """Print which Python of the job's is run to be asked for its packages; it says nothing of the launcher's own."""
    from launcher.submission.facts.interpreter import is_this_python

    python = loaded.job.environment.python
    here = loaded.base_dir / os.path.expanduser(python or "")
    if python and not (loaded.doubt or loaded.job.environment.container or is_this_python(str(here))):
        click.echo(f"checking {python} ...", err=True)
