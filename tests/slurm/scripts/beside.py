"""A module beside a script."""

WORD = "found"
