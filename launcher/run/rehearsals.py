"""Keep what rehearsals (`launcher dry-run`) have measured: their own files are removed, estimates and the doctor need it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from launcher.run.files import append_line, read_lines
from launcher.run.index import links_dir

_NEWEST = 200


def _path() -> Path:
    return links_dir().parent / "rehearsals.jsonl"


def note_rehearsal(name: str, *, real: bool, **measured: Any) -> None:
    """Remember what the rehearsal of the job ``name`` measured; ``real``: on nodes of SLURM's. A full home costs the note."""
    with contextlib.suppress(OSError):
        _path().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        append_line(_path(), {"t": round(time.time(), 3), "name": name, "real": real, **measured})


def read_rehearsals() -> list[dict[str, Any]]:
    """Return the newest rehearsals, oldest first."""
    return read_lines(_path())[-_NEWEST:]
