"""Reads what the node side knows of a run: its spec, its secret, the variables passed by name."""

from __future__ import annotations

from typing import Any

from launcher.errors import RunDirError
from launcher.opening import read_whole
from launcher.run.asking import exists, load_object, patiently
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.units import is_secret


def read_run(paths: RunPaths, patience_s: float | None = None) -> tuple[RunSpec, str, dict[str, Any]]:
    """Return spec, secret and passed variables. Raises RunDirError when they cannot be read, for ``patience_s`` where that may pass.

    None: for minutes, as file servers fail over.
    """

    def read() -> tuple[RunSpec, str, dict[str, Any]]:
        if not exists(paths.spec, paths.root):
            raise ValueError(f"it holds no {paths.spec.name}")
        secret = read_whole(paths.secret).decode().strip()
        if not is_secret(secret):
            raise ValueError(f"{paths.secret.name} holds no secret: resubmit the run")
        return RunSpec.read(paths.spec), secret, load_object(paths.passed, paths.root) or {}

    try:
        return patiently(read, paths.root, patience_s=patience_s)
    except (OSError, ValueError) as error:
        raise RunDirError(f"The run directory {paths.root} cannot be read here: {error}.") from None
