"""See Worker."""

from __future__ import annotations


class Worker:
    """To be written."""
