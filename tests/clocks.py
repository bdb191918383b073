"""Clocks of real processes that are set while these run: a library in front of libc's, which adds what a file says."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HOUR = 3600


class Clocks:
    """One clock for each host (and for each reader), by name."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler (cc) to make the library that sets clocks")
        folder.mkdir()
        self.folder = folder
        self.library = folder / "clock_shim.so"
        source = Path(__file__).with_name("clock_shim.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", self.library, source], check=True, timeout=60)

    def setup(self, name: str) -> str:
        """A line of shell after which processes have the clock of that name, in which variables may stand."""
        return f'export LD_PRELOAD="{self.library}" CLOCK_FILE="{self.folder}/{name}"'

    def environment(self, name: str) -> dict[str, str]:
        """The same for a process that is started from here."""
        return {"LD_PRELOAD": str(self.library), "CLOCK_FILE": str(self.folder / name)}

    def set(self, name: str, seconds: int) -> None:
        """That clock shows so much more than the true time from now on."""
        new = self.folder / f".{name}"
        new.write_text(str(seconds))
        os.replace(new, self.folder / name)
