"""Print a script that completes verbs and RUN names in your shell."""

from __future__ import annotations

import click

_HOW = {
    "bash": 'eval "$(launcher completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(launcher completion zsh)"    # in ~/.zshrc',
    "fish": "launcher completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(sorted(_HOW)))
def command(shell: str) -> None:
    """Print the completion script for SHELL. Add one of the lines below to the start-up file of your shell."""
    from click.shell_completion import get_completion_class

    from launcher.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"{shell} has no completion.")
    click.echo(kind(cli, {}, "launcher", "_LAUNCHER_COMPLETE").source())
