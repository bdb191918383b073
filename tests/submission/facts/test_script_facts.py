"""What a script's text tells is said before it is queued, and before it is rehearsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from planning import facts

from launcher.config.load.load import LoadedJob
from launcher.submission.facts.facts import CodeFacts
from launcher.submission.facts.gather import code_facts, script_facts
from launcher.submission.plan.describe import saves_itself
from launcher.submission.plan.plan import plan
from launcher.submission.rehearsal import rehearse
from launcher.submission.rehearsal.stages import Stage

Make = Callable[..., LoadedJob]
SPAWNS = (
    "import torch.multiprocessing as mp\n\n\ndef work(rank): ...\n\n\nif __name__ == '__main__':\n    mp.spawn({})\n"
)
SAID = (
    "mine.py:8 calls torch.multiprocessing.spawn: ranks that it starts hang, because the launcher starts every rank itself; "
    "call the function directly, with RANK, LOCAL_RANK and WORLD_SIZE from the environment"
)
SAVES_ITSELF = "{} must save and resume itself: launcher.attach() is not used"


def written(tmp_path: Path, text: str) -> None:
    """A script and a module of the same text."""
    (tmp_path / "lab").mkdir()
    for path in (tmp_path / "mine.py", tmp_path / "lab" / "mine.py"):
        path.write_text(text)


@pytest.mark.parametrize("script", ["mine.py", "-m lab.mine"])
@pytest.mark.parametrize(
    ("arguments", "ranks", "said"),
    [
        ("work", 2, True),
        ("work", 1, False),
        ("work, nprocs=4", 1, True),
        ("work, (), 4", 1, True),
        ("work, **options", 1, True),
    ],
)
def test_ranks_that_a_script_starts_are_warned_of(
    job: Make, tmp_path: Path, script: str, arguments: str, ranks: int, said: bool
) -> None:
    """mp.spawn in a job of several ranks, or with nprocs, is a warning with its place; one process of one rank is none."""
    written(tmp_path, SPAWNS.format(arguments))
    loaded = job(script=script, resources={"tasks_per_node": ranks})
    made = plan(loaded, facts(code=code_facts(loaded, tmp_path / "runs")))

    assert (SAID in made.warnings) == said


def test_a_branch_for_torchrun_is_not_warned_of(job: Make, tmp_path: Path) -> None:
    """A script that calls spawn only where torchrun's variables are missing works here as it is."""
    branch = "if 'RANK' in os.environ:\n    work()\nelse:\n    mp.spawn(work, nprocs=2)\n"
    written(tmp_path, "import os\nimport torch.multiprocessing as mp\n" + branch)
    loaded = job(script="mine.py", resources={"tasks_per_node": 2})

    assert not any("spawn" in w for w in plan(loaded, facts(code=code_facts(loaded, tmp_path / "runs"))).warnings)


LOADER = "from torch.utils.data import DataLoader\nloader = DataLoader(data, num_workers={})\n"
AGAIN = (
    "mine.py:2: Python 3.14 runs the script again in its loader processes, where it fails or hangs; put the "
    'work under the usual `if __name__` guard or pass multiprocessing_context="fork"'
)


@pytest.mark.parametrize(
    ("text", "version", "said"),
    [
        (LOADER.format("4"), "3.14.8", True),
        (LOADER.format("args.workers"), "3.14.8", True),
        (LOADER.format("4"), "3.13.5", False),
        (LOADER.format("4"), "", False),
        (LOADER.format("0"), "3.14.8", False),
        (LOADER.format('4, multiprocessing_context="fork"'), "3.14.8", False),
        (LOADER.format("4") + 'torch.multiprocessing.set_start_method("fork")\n', "3.14.8", False),
        (LOADER.format("4") + "log = logging.getLogger(__name__)\n", "3.14.8", True),
        (LOADER.format("4") + "if __name__ == '__main__':\n    main()\n", "3.14.8", False),
    ],
)
def test_loader_processes_that_would_run_the_script_again_are_warned_of(
    job: Make, tmp_path: Path, text: str, version: str, said: bool
) -> None:
    """From Python 3.14 on, whose processes import the script anew, unless the script guards its work or chooses the start method."""
    written(tmp_path, text)
    loaded = job(script="mine.py")
    given = facts(code=code_facts(loaded, tmp_path / "runs"))
    made = plan(loaded, replace(given, interpreter=replace(given.interpreter, version=version)))

    assert (AGAIN in made.warnings) == said


def test_a_rehearsal_says_the_plans_warnings_first(job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dry-run tells them before it starts anything: what they warn of may never end."""
    written(tmp_path, SPAWNS.format("work"))
    loaded = job(script="mine.py", resources={"tasks_per_node": 2})
    here = facts(backend="local", code=code_facts(loaded, tmp_path / "runs"))
    monkeypatch.setattr(rehearse, "_run", lambda *_: pytest.fail("started"))
    told: list[str] = []
    with pytest.raises(pytest.fail.Exception):
        rehearse.rehearse(loaded, Stage(here, "1"), steps=3, tell=told.append)

    assert f"  warning  {SAID}" in told


@pytest.mark.parametrize("script", ["mine.py", "-m lab.mine"])
@pytest.mark.parametrize(
    ("text", "attaches"),
    [
        ("import launcher\nrun = launcher.attach()\n", True),
        ("from launcher import attach\nrun = attach()\n", True),
        ("import launcher as tool\nrun = tool.attach()\n", True),
        (
            "try:\n    import launcher\nexcept ImportError:\n    launcher = None\nrun = launcher and launcher.attach()\n",
            True,
        ),
        ("from lab import attach\nrun = attach()\n", False),
    ],
)
def test_a_script_that_attaches_is_known(job: Make, tmp_path: Path, script: str, text: str, attaches: bool) -> None:
    """However attach is imported, in a script and in a module: its plan does not say that it must save itself, and dry-run drills it."""
    written(tmp_path, text)
    loaded = job(script=script)
    made = plan(loaded, facts(code=CodeFacts(root=str(tmp_path), **script_facts(script, tmp_path))))

    assert bool(saves_itself(made.spec, made.code)) != attaches
    assert any("must save and resume itself" in w for w in made.warnings) != attaches
    stop = next(line for line in made.summary if line.lstrip().startswith("stop "))
    assert ("save at an agreed step" in stop) == attaches
    assert ("TERM to every rank" in stop) != attaches


ATTACHES = "import launcher\n\n\ndef begin():\n    return launcher.attach()\n"


@pytest.mark.parametrize("script", ["mine.py", "-m lab.mine"])
@pytest.mark.parametrize(
    ("text", "files", "found"),
    [
        ("import steps\n", {"steps.py": ATTACHES}, True),
        ("from lab.loop import begin\n", {"lab/loop.py": ATTACHES}, True),
        ("import lab.loops.deep\n", {"lab/loops/__init__.py": ATTACHES, "lab/loops/deep.py": ""}, True),
        ("def main():\n    from lab import a\n", {"lab/a.py": "from . import b\n", "lab/b.py": ATTACHES}, True),
        ("import lab.a\n", {"lab/a.py": "import lab.b\n", "lab/b.py": "import lab.a\nimport torch\n"}, False),
        ("import lab.a\n", {"lab/a.py": "no python", "lab/b.py": ATTACHES}, False),
    ],
)
def test_an_imported_module_may_attach(
    job: Make, tmp_path: Path, script: str, text: str, files: dict[str, str], found: bool
) -> None:
    """Modules of the code that the script imports count, through packages, circles and faults; others do not."""
    written(tmp_path, text)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    loaded = job(script=script)
    made = plan(loaded, facts(code=code_facts(loaded, tmp_path / "runs")))

    assert made.code.attaches == found
    assert (SAVES_ITSELF.format(script.split()[-1]) in made.warnings) != found
