"""Facts about editable installs, whose later edits would reach a queued job: every kind of them is seen."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from launcher.slurm import probe
from launcher.submission.facts import interpreter

FINDER = """from __future__ import annotations
MAPPING: dict[str, str] = {'flat': '%s/flat', 'more': '%s/more'}
NAMESPACES: dict[str, list[str]] = {}
"""
"""As setuptools 84 writes it."""
IMPORTED = "import __editable___my_lab_1_0_finder; __editable___my_lab_1_0_finder.install()"


def seen(folder: Path, files: dict[str, str]) -> list[tuple[str, str]]:
    """The editable packages of a Python with these files among its packages."""
    site = folder / "site"
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = interpreter.ask_interpreter(str(python), "test", os.environ)
    assert found.error == ""
    return [(name, source) for name, source in found.editable if source.startswith(str(folder))]


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"my-lab.egg-link": "{project}/lib\n../", "easy-install.pth": "{project}/lib\n"}, "lib"),
        ({"__editable__.my_lab-1.0.pth": "{project}/lib\n"}, "lib"),
        ({"__editable__.my_lab-1.0.pth": IMPORTED, "__editable___my_lab_1_0_finder.py": FINDER}, ""),
        (
            {"my_lab-1.0.dist-info/direct_url.json": '{"url": "file://{project}", "dir_info": {"editable": true}}'},
            "src",
        ),
    ],
    ids=["setup.py develop", "a folder", "single packages", "pip"],
)
def test_every_kind_of_editable_install_is_seen(tmp_path: Path, files: dict[str, str], source: str) -> None:
    """setup.py develop's link, setuptools' path or finder, and pip's note each tell the folder that is imported from."""
    project = tmp_path / "project"
    for name in ("lib", "src", "flat", "more"):
        (project / name).mkdir(parents=True)
    texts = {name: text.replace("{project}", str(project)).replace("%s", str(project)) for name, text in files.items()}

    assert seen(tmp_path, texts) == [("my-lab", str(project / source).rstrip("/"))]


def test_a_package_that_is_noted_twice_is_told_once(tmp_path: Path) -> None:
    """pip's note beside setuptools' path: the path, which is exact; a source that is gone or unreadable is none."""
    (tmp_path / "project" / "src").mkdir(parents=True)
    noted = f'{{"url": "file://{tmp_path}/project", "dir_info": {{"editable": true}}}}'
    files = {
        "My_Lab-1.0.dist-info/direct_url.json": noted,
        "__editable__.my_lab-1.0.pth": f"{tmp_path}/project\n",
        "__editable__.gone-1.0.pth": f"{tmp_path}/nowhere\n",
        "__editable__.broken-1.0.pth": "import __editable___broken_1_0_finder; 1\n",
        "__editable___broken_1_0_finder.py": "MAPPING: dict[str, str] = {'x': open('y')}\n",
    }

    assert seen(tmp_path, files) == [("my-lab", f"{tmp_path}/project")]


def test_a_python_may_greet_and_warn_in_any_encoding(tmp_path: Path) -> None:
    """A wrapper's greeting before the answer, and a warning in Latin 1 beside it, keep no job from its Python; nor the doctor from its look."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho hello\nprintf 'd\\351pr\\351ci\\351\\n' >&2\nexec {sys.executable} \"$@\"\n")
    python.chmod(0o755)
    found = interpreter.ask_interpreter(str(python), "test", os.environ)

    assert found.error == ""
    assert found.version == probe.software_here(str(python)).python == "{}.{}.{}".format(*sys.version_info[:3])


@pytest.mark.parametrize("answer", ["1", "[]", "{}", "no JSON", '{"version": 1, "packages": 3}'])
def test_what_is_no_python_is_told_with_what_it_printed(tmp_path: Path, answer: str) -> None:
    """Another program's output is an error of the interpreter, not one of the launcher."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)

    assert interpreter.ask_interpreter(str(python), "test", os.environ).error == answer


def test_packages_of_trackers_and_notifications_are_asked_for(tmp_path: Path) -> None:
    """A plan warns of those that a job needs and its Python has not."""
    python, names = tmp_path / "python", ("tensorboard", "mlflow", "wandb", "apprise")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name in names:
        (tmp_path / f"{name}.py").touch()

    assert set(names) <= set(interpreter.ask_interpreter(str(python), "test", os.environ).packages)
