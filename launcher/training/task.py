"""See Training."""

from __future__ import annotations


class Training:
    """To be written."""
