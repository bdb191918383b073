"""The proof on GPUs (`make gpu`), on CPUs as far as its parts mean anything there: no line of it is run for the first time on the day."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"
SKIPPED = {"samples": "no GPU: what NVML answers is tested with a library in its place"}
"""Of the parts that have more to find out on GPUs."""


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """The modules of the proof, which are no package: they are run by path."""
    monkeypatch.setattr(sys, "path", [str(GPU), *sys.path])
    yield types.SimpleNamespace(**{name: importlib.import_module(name) for name in ("figures", "machine", "parts")})
    for name in [name for name, module in sys.modules.items() if str(GPU) in (getattr(module, "__file__", None) or "")]:
        del sys.modules[name]


def names() -> list[str]:
    """Of the parts, by their files."""
    return sorted(path.stem for path in (GPU / "parts").glob("[a-z]*.py"))


def command() -> Any:
    """The module that `make gpu` runs."""
    spec = importlib.util.spec_from_file_location("gpu_main", GPU / "__main__.py")
    assert spec is not None
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)  # type: ignore[union-attr]
    return main


def run(*words: str) -> tuple[int, str]:
    """Exit code and what was printed."""
    done = subprocess.run([sys.executable, str(GPU), *words], capture_output=True, text=True, timeout=540, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", names())
def test_a_part_runs_on_cpus_and_reaches_its_goals(name: str, tmp_path: Path) -> None:
    """Exit code 0; the page and the JSON beside it hold its figures, and what is left out says why."""
    code, said = run(name, "--write", str(tmp_path))
    assert code == 0, said
    (part,) = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    page = (tmp_path / "gpu.md").read_text()
    if part["skipped"] == "FSDP2 of this torch works on GPUs alone (2.6)" and version("torch").startswith("2.6."):
        pytest.skip(part["skipped"])

    assert part["figures"]
    assert (part["error"], part["skipped"]) == ("", SKIPPED.get(name, ""))
    assert all(figure["name"] in page for figure in part["figures"])


def test_every_part_is_run(proof: Any) -> None:
    """`make gpu` runs each file of parts/, in an order that is written down, and all of them fit into eight minutes."""
    assert sorted(proof.parts.NAMES) == names()
    limits = {name: proof.parts.LIMIT_S.get(name, proof.parts.USUAL_S) for name in proof.parts.NAMES}
    assert max(limits.values()) <= 150


def test_a_part_that_nobody_knows_is_refused() -> None:
    """One sentence names the parts."""
    code, said = run("exakt")

    assert code == 2
    assert "no part is called exakt; there are training, exact," in said


def found(name: str, figures: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What a part has found, as it is written."""
    facts = {"GPUs": "H100", "date": "2026-11-27"}
    return {
        "name": name,
        "about": f"{name}.",
        "seconds": 3.2,
        "machine": facts,
        "figures": figures,
        "skipped": "",
        "error": "",
        **more,
    }


def test_a_part_that_is_run_again_takes_its_own_place(proof: Any, tmp_path: Path) -> None:
    """The other parts stay on the page, and those of another machine or day say so; a part that is skipped keeps what it found before."""
    one, two = ([proof.figures.Figure("size", value).__dict__] for value in (1.25, 2.5))
    later = {"GPUs": "H200", "date": "2026-11-28"}
    main = command()
    for part in (
        found("steps", one),
        found("saves", one),
        found("steps", two, machine=later),
        found("saves", [], machine=later, skipped="late"),
    ):
        main.record(tmp_path, part)
    saves, steps = (tmp_path / "gpu.md").read_text().split("## ")[1:]

    assert "| size | 1.25 |" in saves
    assert "Run with: GPUs H100, date 2026-11-27." in saves
    assert "| size | 2.5 |" in steps
    assert "Run with" not in steps


def test_a_goal_that_is_not_reached_and_a_part_that_fails_are_told(proof: Any) -> None:
    """The page marks the figure, keeps those found before the failure, and says what went wrong."""
    figures = [
        proof.figures.Figure("a save blocks", 0.5, "s", "at most 0.1 s", False).__dict__,
        proof.figures.holds("the fork server has no CUDA context", True).__dict__,
    ]
    page = proof.figures.page([found("saves", figures, error="it broke")])

    assert "| a save blocks | 0.5 s | at most 0.1 s | **not reached** |" in page
    assert "| the fork server has no CUDA context | yes | yes |  |" in page
    assert "**Failed**: it broke" in page


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        ("RuntimeError('no\\nroom')", {"error": "RuntimeError: no"}, 1),
        ("machine.MissingError('no second GPU')", {"skipped": "no second GPU"}, 0),
    ],
)
def test_what_a_part_found_before_it_ended_is_kept(
    proof: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, line: dict[str, str], code: int
) -> None:
    """Figures are written as they come; then why there are no more. A failure is exit code 1, a skip is not."""
    fake: Any = types.ModuleType("parts.fake")
    exec(  # a part as a file would be
        f"import machine\nfrom figures import Figure\ndef run(where):\n    yield Figure('size', 1.0)\n    raise {error}\n",
        fake.__dict__,
    )
    monkeypatch.setitem(sys.modules, "parts.fake", fake)
    figures = tmp_path / "figures"

    assert command().alone("fake", figures, tmp_path) == code
    first, last = (json.loads(text) for text in figures.read_text().splitlines())
    assert (first["name"], first["value"], last) == ("size", 1.0, line)
