"""Print JSON, tables, and lines wrapped on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any

import click

NO_RUNS = "no runs yet; launcher submit job.yaml starts one"
_MOST = 100


def print_json(value: Any) -> None:
    """Print a value as indented JSON; numbers that are not finite become texts."""
    import json

    from launcher.report.formats import plain_json

    click.echo(json.dumps(plain_json(value), indent=1))


def print_wrapped(line: str) -> None:
    """Print one labelled line: wrapped on a terminal, whole into a pipe."""
    from launcher.report.formats import wrapped

    if sys.stdout.isatty():
        line = wrapped(line, min(shutil.get_terminal_size().columns, _MOST))
    click.echo(line)


def print_table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print rows as aligned columns, those in ``right`` to the right; empty columns are left out."""
    widths = [max(len(click.unstyle(cell)) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - len(click.unstyle(cell)))
            cells.append(space + cell if index in right else cell + space)
        click.echo("  ".join(cell for cell, width in zip(cells, widths, strict=True) if width).rstrip())
