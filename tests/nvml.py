"""A library that answers as NVIDIA's driver does, over devices that tests describe: the launcher's own bindings ask it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NAME = "libnvidia-ml.so.1"


class FakeNvml:
    """Devices whose values tests set: ``nvml.set(0, busy=87)``; None: the device does not support it."""

    def __init__(self, folder: Path, gpus: int) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler (cc) to make the library that answers for GPUs")
        self.library, self._file = folder / NAME, folder / "devices"
        source = Path(__file__).with_name("fake_nvml.c")
        build = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-o", self.library, source]
        subprocess.run(build, check=True, timeout=60)
        self._values: dict[str, object] = {"count": gpus, "driver": "550.54", "cuda": 12040}
        for gpu in range(gpus):
            self.set(
                gpu,
                uuid=f"GPU-{gpu}a{gpu}b",
                used=2**30,
                total=2**32,
                busy=87,
                power=412_300,
                ecc=0,
                pages=None,
                rows_pending=0,
                rows_failed=0,
            )

    def set(self, gpu: int, **values: object) -> None:
        """Change a device, for all processes that ask."""
        self._values.update({f"{gpu}.{name}": value for name, value in values.items()})
        new = self._file.with_suffix(".new")
        new.write_text("".join(f"{name} {value}\n" for name, value in self._values.items() if value is not None))
        os.replace(new, self._file)

    @property
    def environment(self) -> dict[str, str]:
        """For a process that is to find it."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML": str(self._file)}
