"""Convert an sbatch script or a hydra-submitit config to a commented job file. Pure: text in, text out."""

from __future__ import annotations

from launcher.config.convert.hydra import convert_hydra
from launcher.config.convert.sbatch import convert_sbatch


def convert(text: str, filename: str) -> str:
    """Return the job file for ``text``, with comments on what was not converted.

    Raises ConfigError when the text is neither.
    """
    if filename.endswith((".yaml", ".yml")):
        return convert_hydra(text, filename)
    return convert_sbatch(text, filename)
