"""Convert an sbatch script or a hydra-submitit config to a commented job file. Pure: text in, text out."""

from __future__ import annotations

from launcher.config.convert.hydra import convert_hydra
from launcher.config.convert.sbatch import convert_sbatch
from launcher.errors import ConfigError

MOST_TEXT = 128 << 10
"""Characters of a script or config."""


def convert(text: str, filename: str) -> str:
    """Return the job file for ``text``, with comments on what was not converted.

    Raises ConfigError when the text is neither, or larger than such a file can be.
    """
    if len(text) > MOST_TEXT:
        raise ConfigError(f"{filename} is larger than {MOST_TEXT >> 10} KiB, too large for an sbatch script")
    if filename.endswith((".yaml", ".yml")):
        return convert_hydra(text, filename)
    return convert_sbatch(text, filename)
