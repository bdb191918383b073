"""A bound on what a text may stand for: names and aliases in it are short, and what they stand for may not be."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.errors import ConfigError


@dataclass
class SizeLimit:
    """How many characters may still be made; several readers may share one."""

    left: int
    sentence: str
    """What is said where they do not suffice."""

    def take(self, size: int) -> None:
        """Take so many. Raises ConfigError when there are not so many left."""
        self.left -= size
        if self.left < 0:
            raise ConfigError(self.sentence)
