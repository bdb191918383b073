"""Importing torch asks the file system less where the module of a frame is found by its name."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from launcher.node.forkserver.imports import modules_by_name

BOTH = """
import importlib, inspect
from launcher.node.forkserver import imports
real, asked, other = inspect.getmodule, [], []
with imports.modules_by_name():
    quick = inspect.getmodule
    def both(object, _filename=None):
        mine, its = quick(object, _filename), real(object, _filename)
        asked.append(object)
        if mine is not its:
            other.append((mine, its))
        return mine
    inspect.getmodule = both
    importlib.import_module("torch.distributed")
print(len(asked) > 50, other)
"""


def test_a_frame_has_the_same_module_as_ever_and_only_while_it_lasts() -> None:
    """What has no frame, or a name that is no module, is looked for as before."""
    real, frame = inspect.getmodule, inspect.currentframe()
    with modules_by_name():
        assert inspect.getmodule(frame) is sys.modules[__name__]
        assert inspect.getmodule(modules_by_name) is sys.modules[modules_by_name.__module__]
        nameless = eval("inspect.currentframe()", {"inspect": inspect, "__name__": "no.such.module"})
        assert inspect.getmodule(nameless) is real(nameless)
    assert inspect.getmodule is real


@pytest.mark.torch
def test_torch_gets_the_answers_that_it_would_get() -> None:
    """Each of its questions, asked both ways."""
    done = subprocess.run([sys.executable, "-c", BOTH], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "True []", done.stdout
