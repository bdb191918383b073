"""Verbs run in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from launcher.cli.main import cli


def launcher(*words: str) -> Result:
    """What the verb did; it must succeed."""
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result
