"""Habits that a reader relies on, checked over the source."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "launcher"
TOP = {
    ".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "benchmarks", "constraints.txt",
    "docs", "jobs", "launcher", "pyproject.toml", "slurm", "tests",
}  # fmt: skip
RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function in ``path``, methods and nested ones included."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def where(path: Path, line: int) -> str:
    """``file:line`` below the repository."""
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_test_states_its_fact() -> None:
    """Each test function has a docstring that says what it proves."""
    silent = [
        where(path, f.lineno)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for f in functions(path)
        if f.name.startswith("test_") and not ast.get_docstring(f)
    ]

    assert silent == []


def test_no_test_file_name_is_used_twice() -> None:
    """Test files have names of their own, so that a failure's name says where it is."""
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]

    assert sorted(names) == sorted(set(names))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout: nothing tells what is committed")
def test_nothing_stray_is_committed_at_the_top() -> None:
    """No job's output, no file that a verb wrote where somebody happened to stand."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )

    assert {name.partition("/")[0] for name in listed if name} == TOP


def test_functions_stay_short() -> None:
    """No function of the package has more than 60 lines."""
    long = [
        f"{where(path, f.lineno)} {f.name}: {f.end_lineno - f.lineno + 1} lines"
        for path in sorted(PACKAGE.rglob("*.py"))
        for f in functions(path)
        if f.end_lineno is not None and f.end_lineno - f.lineno + 1 > 60
    ]

    assert long == []


def test_files_stay_short() -> None:
    """No file of the package has more than 400 lines."""
    sizes = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in PACKAGE.rglob("*.py")}
    long = {name: lines for name, lines in sizes.items() if lines > 400}

    assert long == {}


def test_each_error_owns_its_exit_code() -> None:
    """No two classes of the error tree share an exit code, 2 stays click's, and the tree at the top shows them all."""
    source = (PACKAGE / "errors.py").read_text()
    tree = ast.parse(source)
    drawn = ast.get_docstring(tree) or ""
    codes: dict[str, int] = {}
    for node in tree.body:
        for item in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "exit_code":
                codes[node.name] = ast.literal_eval(item.value)

    assert len(set(codes.values())) == len(codes)
    assert 2 not in codes.values()
    for name, code in codes.items():
        assert any(name in line and f" {code} " in line for line in drawn.splitlines()), name


def test_ranks_are_read_in_training_alone() -> None:
    """RANK and its kin are read from the environment by the training floor only; others are told."""
    wrong = [
        where(path, node.lineno)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "training"
        for node in ast.walk(ast.parse(path.read_text()))
        if reads_rank(node)
    ]

    assert wrong == []


def reads_rank(node: ast.AST) -> bool:
    """Whether ``node`` is ``environ["RANK"]``, ``environ.get("RANK")`` or ``getenv("RANK")``, read."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        target, key = node.value, node.slice
    elif isinstance(node, ast.Call) and node.args:
        name = ast.unparse(node.func)
        if not name.endswith((".get", "getenv")):
            return False
        target, key = node.func, node.args[0]
    else:
        return False
    text = ast.unparse(target)
    named = isinstance(key, ast.Constant) and key.value in RANK_VARIABLES
    return named and ("environ" in text or "getenv" in text)
