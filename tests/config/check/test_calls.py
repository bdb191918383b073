"""What a script calls is told by its own imports, or not at all."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from launcher.config.check.user_code import attaches, calls, parse, script_file, unguarded_loader

SPAWN = "torch.multiprocessing.spawn"


def called(tmp_path: Path, text: str) -> list[str]:
    """Full names of what a script calls."""
    path = tmp_path / "train.py"
    path.write_text(dedent(text))
    return [call.name for call in calls(path)]


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.multiprocessing.spawn(work, nprocs=2)",
        "import torch.multiprocessing\nimport torch.nn as nn\ntorch.multiprocessing.spawn(work)",
        "import torch.multiprocessing as mp\nmp.spawn(work, nprocs=2)",
        "from torch import multiprocessing\nmultiprocessing.spawn(work)",
        "from torch.multiprocessing import spawn as start\nstart(work)",
        "def main():\n    import torch.multiprocessing as mp\n    mp.spawn(work)\nif __name__ == '__main__':\n    main()",
    ],
)
def test_an_import_tells_what_a_name_stands_for(tmp_path: Path, text: str) -> None:
    """However torch.multiprocessing is imported, its spawn is found under its full name."""
    assert SPAWN in called(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "import multiprocessing as mp\nmp.spawn(work)",
        "from lab import mp\nmp.spawn(work)",
        "from .torch import multiprocessing as mp\nmp.spawn(work)",
        "from torch.multiprocessing import *\nspawn(work)",
        "import torch.multiprocessing as mp\nmp.get_context('spawn').Process(target=work).start()",
        "try:\n    import torch.multiprocessing as mp\nexcept ImportError:\n    import zoo as mp\nmp.spawn(work)",
        "from torch.multiprocessing import spawn\ndef spawn(work): ...\nspawn(work)",
        "import torch.multiprocessing as mp\ndef main(mp):\n    mp.spawn(work)",
        "import torch.multiprocessing as mp\nmp = other()\nmp.spawn(work)",
        "# torch.multiprocessing.spawn(work)\ntext = 'mp.spawn(work)'",
        "def (:\n",
    ],
)
def test_what_is_not_certain_is_not_said(tmp_path: Path, text: str) -> None:
    """Another module's spawn, a name bound twice, a star import, a comment and a broken file: nothing is found."""
    assert SPAWN not in called(tmp_path, text)


@pytest.mark.parametrize(
    ("test", "guarded"),
    [
        ('"RANK" in os.environ', True),
        ('int(os.environ.get("WORLD_SIZE", 1)) > 1', True),
        ("torch.distributed.is_torchelastic_launched()", True),
        ("args.distributed", False),
    ],
)
def test_a_choice_by_torchruns_variables_is_told(tmp_path: Path, test: str, guarded: bool) -> None:
    """A call beside a branch for torchrun is marked; a choice by something else is none."""
    (tmp_path / "train.py").write_text(
        f"import os, torch\nif {test}:\n    main()\nelse:\n    torch.multiprocessing.spawn(main, (2,), nprocs=2)\n"
    )
    (call,) = [call for call in calls(tmp_path / "train.py") if call.name == SPAWN]

    assert (call.place, call.arguments, call.guarded) == ("train.py:5", ("0", "1", "nprocs"), guarded)


def test_the_file_of_a_script(tmp_path: Path) -> None:
    """A path, a module, a package's __main__; an installed module is none of the job's code."""
    (tmp_path / "lab").mkdir()
    for name in ("__init__", "__main__", "train"):
        (tmp_path / "lab" / f"{name}.py").touch()

    assert script_file("lab/train.py", tmp_path) == tmp_path / "lab" / "train.py"
    assert script_file("-m lab.train", tmp_path) == tmp_path / "lab" / "train.py"
    assert script_file("-m lab", tmp_path) == tmp_path / "lab" / "__main__.py"
    assert script_file("-m json.tool", tmp_path) is None
    assert script_file("", tmp_path) is None


@pytest.mark.parametrize(
    "text", ["x = " + "1+" * 2500 + "1", "x" + ".b" * 1500, "-" * 100_000 + "1", "a\n" * 600_000, "(" * 5000]
)
def test_odd_code_is_read_or_left(tmp_path: Path, text: str) -> None:
    """Nested deeper than Python recurses, or larger than a program is: no call is found, nothing is raised."""
    (tmp_path / "odd.py").write_text(text)
    (tmp_path / "train.py").write_text("import odd\n")

    for name in ("odd.py", "train.py"):
        assert calls(tmp_path / name) == []
        assert unguarded_loader(tmp_path / name) == ""
        assert not attaches(tmp_path / name, tmp_path)


def test_a_file_without_an_end_is_not_read(tmp_path: Path) -> None:
    """A terabyte that takes no space is named in the sentence about the code, and its importers are read as ever."""
    with (tmp_path / "odd.py").open("wb") as f:
        f.truncate(1 << 40)
    (tmp_path / "train.py").write_text("import odd\nimport launcher\nlauncher.attach()\n")

    assert attaches(tmp_path / "train.py", tmp_path)
    with pytest.raises(OSError, match="it is larger than 1 MiB"):
        parse(tmp_path / "odd.py")
