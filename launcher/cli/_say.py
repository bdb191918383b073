"""Prints lines of the reading verbs: wrapped on a terminal, whole lines into a pipe."""

from __future__ import annotations

import shutil
import sys

import click

__all__ = ["say"]

_MOST = 100


def say(line: str) -> None:
    """Print one labelled line."""
    from launcher.report.formats import wrapped

    if sys.stdout.isatty():
        line = wrapped(line, min(shutil.get_terminal_size().columns, _MOST))
    click.echo(line)
