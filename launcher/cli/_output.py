"""Print JSON, tables, and lines wrapped on a terminal."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import click

from launcher.report.formats import plain_json, wrapped

NO_RUNS = "no runs yet; launcher submit job.yaml starts one"
_MOST = 100


def print_json(value: Any) -> None:
    """Print a value as indented JSON; numbers that are not finite become texts."""
    click.echo(json.dumps(plain_json(value), indent=1))


def print_wrapped(line: str) -> None:
    """Print one labelled line: wrapped on a terminal, whole into a pipe."""
    if sys.stdout.isatty():
        line = wrapped(line, min(shutil.get_terminal_size().columns, _MOST))
    click.echo(line)


@contextlib.contextmanager
def handling(handlers: Mapping[int, Callable[..., None]]) -> Iterator[None]:
    """Handle signals inside as ``handlers`` say, by their numbers."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows as aligned columns; a shorter row ends early, and empty columns are left out."""
    columns = []
    for column in zip_longest(*rows, fillvalue=""):
        widths = [len(click.unstyle(cell)) for cell in column]
        if width := max(widths):
            columns.append([cell + " " * (width - own) for cell, own in zip(column, widths, strict=True)])
    for row in zip(*columns, strict=True):
        click.echo("  ".join(row).rstrip())
