"""From what people have, an sbatch script or a hydra-submitit config, to a commented job file. Pure: text in, text out."""

from __future__ import annotations

from launcher.config.convert.hydra import convert_hydra
from launcher.config.convert.sbatch import convert_sbatch

__all__ = ["convert"]


def convert(text: str, filename: str) -> str:
    """The job file for ``text``, with comments on what could not be carried over.

    Raises ConfigError when the text is neither an sbatch script nor a hydra-submitit config.
    """
    if filename.endswith((".yaml", ".yml")):
        return convert_hydra(text, filename)
    return convert_sbatch(text, filename)
