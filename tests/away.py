"""A file system that does not answer, for this process: system calls on chosen paths fail as an NFS mount's do."""

from __future__ import annotations

import builtins
import errno
import io
import os
import pathlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_CALLS = ("listdir", "scandir", "stat", "lstat", "open", "mkdir", "rename", "replace", "unlink", "rmdir")
FOR_EVER = 10**9


class Away:
    """Use: ``away.refuse(path, errno.EIO, times=1)``; ``refused`` holds what was refused so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rules: list[tuple[Callable[[str], bool], int, list[int]]] = []
        self.refused: list[str] = []
        for name in _CALLS:
            monkeypatch.setattr(os, name, self._guard(getattr(os, name)))
        guarded = self._guard(builtins.open)
        monkeypatch.setattr(builtins, "open", guarded)
        monkeypatch.setattr(io, "open", guarded)
        # Python 3.10's paths hold these functions in a class of their own.
        accessor = getattr(pathlib, "_NormalAccessor", None)
        for name in _CALLS if accessor else ():
            if hasattr(accessor, name):
                monkeypatch.setattr(accessor, name, staticmethod(self._guard(getattr(accessor, name))))

    def refuse(self, path: Path, number: int = errno.EIO, *, times: int = FOR_EVER, below: bool = False) -> None:
        """The next calls on ``path`` (with what lies ``below``) fail, so often."""
        whole = str(path)
        meant = (lambda said: said == whole or said.startswith(f"{whole}/")) if below else (lambda said: said == whole)
        self._rules.append((meant, number, [times]))

    def come_back(self) -> None:
        """Everything answers again."""
        self._rules.clear()

    def _guard(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any = ".", *args: Any, **kwargs: Any) -> Any:
            said = os.fsdecode(what) if isinstance(what, (str, bytes, os.PathLike)) else ""
            for meant, number, left in self._rules:
                if left[0] > 0 and meant(said):
                    left[0] -= 1
                    self.refused.append(said)
                    raise OSError(number, os.strerror(number), said)
            return real(what, *args, **kwargs)

        return call
