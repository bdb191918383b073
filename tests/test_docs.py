"""The pages tell the truth: generated ones are fresh, links lead somewhere, the README's commands run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The README's code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


PINNED = dict(re.findall(r"^(click|pydantic)==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
"""Of the libraries whose words the generated pages hold."""


@pytest.mark.skipif(
    any(version(name) != pinned for name, pinned in PINNED.items()), reason="made with the pinned libraries"
)
def test_what_is_generated_is_fresh() -> None:
    """Verbs' pages are what --help says, the JSON Schema is what the pinned pydantic makes of the schema: see `make docs`."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, timeout=120
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file that is there."""
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())

    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the README's job and the script it names."""
    (tmp_path / "resnet.yaml").write_text(blocks("yaml")[0])
    (tmp_path / "train.py").write_text("print('trains')\n")
    (tmp_path / "data").mkdir()
    return tmp_path


def launcher(project: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run one of the README's command lines there, without a SLURM."""
    words = shlex.split(line, comments=True)
    assert words[0] == "launcher"
    environment = {
        **os.environ,
        "PATH": str(project / "bin"),
        "XDG_STATE_HOME": str(project / "state"),
        "LAUNCHER_RUNS_DIR": str(project / "runs"),
    }
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=project, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_readmes_job_can_be_planned(project: Path) -> None:
    """The README's job.yaml loads, and its plan shows the eight ranks and the script that sbatch gets."""
    (line,) = (x for block in blocks("sh") for x in block.splitlines() if x.startswith("launcher plan"))

    done = launcher(project, line)

    assert done.returncode == 0, done.stderr
    assert "2 nodes x 4 GPUs = 8 ranks" in done.stdout
    assert "#SBATCH --partition=preempt" in done.stdout
    assert "module load cuda/12.1" in done.stdout


def test_every_verb_that_the_readme_names_is_there(project: Path) -> None:
    """Each command line's verb has a --help, and the options named are in it."""
    lines = [x for block in blocks("sh") for x in block.splitlines() if x.startswith("launcher ")]
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line, comments=True)
        done = launcher(project, f"launcher {words[1]} --help")
        assert done.returncode == 0, line
        assert all(word in done.stdout for word in words if word.startswith("--")), line


def test_the_two_commands_are_targets() -> None:
    """`make demo` and `make test`, as the README writes them, are targets of the Makefile."""
    lines = [x for block in blocks("sh") for x in block.splitlines() if x.startswith("make ")]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert [line.split()[1] for line in lines] == ["demo", "test"]
    assert {"demo", "test"} <= set(targets)
