"""The floors and their rooms: imports only go down, and heavy packages stay in their rooms. Reads source, imports nothing of it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "launcher"
ROOMS = (
    "frozen", "errors", "redact", "opening", "ownership", "hosts", "gres",
    "config.document", "config.check", "config.convert", "config.load",
    "run", "slurm",
    "training.ddp", "training.process", "training.checkpoint", "training.step", "training.folder", "training.evaluation",
    "training.worker", "training.attach", "training.task", "training.loop", "training.start",
    "node.wire", "node.policy", "node.checkpoints", "node.forkserver", "node.sidecars", "node.allocation", "node.leader", "node.agent",
    "submission.facts", "submission.plan", "submission.folder", "submission.backends", "submission.liveness",
    "submission.dependencies", "submission.hold_link", "submission.cancel", "submission.submit", "submission.rehearsal", "submission.resubmit",
    "submission.reruns", "submission.sweeps",
    "report.formats", "report.model", "report.text", "report.diagnosis", "report.live", "report.page", "report.site",
    "cli",
)  # fmt: skip
"""Rooms, and modules that stand alone on a floor, lowest first: FLOOR or FLOOR.ROOM."""
NODE_SIDE = ("run", "node", "training")
NODE_PACKAGES = {"torch", "numpy", "xxhash", "psutil", "submitit", "pynvml"}
"""What a node may need; trackers and notifications are used where they are installed."""
EXTRAS = {"tensorboard", "mlflow", "wandb", "apprise"}


@cache
def imports(path: Path) -> list[tuple[str, int, bool]]:
    """Each module named by an import in ``path``, its line, and whether it is for type checkers alone."""
    return list(_imports(path, ast.parse(path.read_text(), str(path))))


def _imports(path: Path, tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) in typing_only
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the floor they reach"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno, id(node) in typing_only


def room_of(module: str) -> str | None:
    """The room a dotted name of this package belongs to; None for the package itself and its public names."""
    parts = module.split(".")
    return next((room for room in (".".join(parts[1:3]), ".".join(parts[1:2])) if room in ROOMS), None)


def dotted(path: Path) -> str:
    """A module's name."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules() -> list[tuple[str, Path]]:
    """Every module of the package that lies on a floor, with its floor."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if top != "__init__":
            found.append((top, path))
    return found


def where(path: Path, line: int) -> str:
    """``file:line`` below the repository."""
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_module_lies_in_a_room() -> None:
    """Nothing in the package lies outside the rooms, so nothing escapes the order; a floor's own `__init__` holds no code."""
    strays = [
        str(path.relative_to(ROOT))
        for _, path in modules()
        if room_of(dotted(path)) is None and dotted(path) != "launcher.__main__"
        if path.name != "__init__.py" or imports(path)
    ]

    assert strays == []


def test_imports_only_go_down() -> None:
    """A module imports its own room or one below it, never one above: not even within a function, or for a type."""
    wrong = []
    for _, path in modules():
        own = room_of(dotted(path))
        for name, line, _ in imports(path):
            target = room_of(name)
            if target is None or own is None:
                continue
            if ROOMS.index(target) > ROOMS.index(own):
                wrong.append(f"{where(path, line)} imports {name}")

    assert wrong == []


def test_no_two_modules_import_each_other() -> None:
    """Of any two modules one can be read without the other, its types included."""
    known = {dotted(path): path for _, path in modules()}
    found = {
        module: {n if n in known else n.rpartition(".")[0] for n, _, _ in imports(path)}
        for module, path in known.items()
    }
    circles = sorted({tuple(sorted((a, b))) for a in found for b in found[a] if a != b and a in found.get(b, ())})

    assert circles == []


def test_every_room_says_who_lives_there() -> None:
    """A package's `__init__` begins with a sentence that tells what is in it."""
    silent = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("__init__.py")
        if not (ast.get_docstring(ast.parse(path.read_text())) or "").strip().endswith(".")
    ]

    assert silent == []


def test_node_and_training_never_import_each_other() -> None:
    """The agent's and the worker's sides meet only through messages and the run's files."""
    wrong = []
    for floor, path in modules():
        other = {"node": "training", "training": "node"}.get(floor)
        for name, line, typing_only in imports(path):
            if other and not typing_only and name.startswith(f"launcher.{other}"):
                wrong.append(f"{where(path, line)} imports {name}")

    assert wrong == []


def test_torch_is_imported_in_training_alone() -> None:
    """No verb but those that train can import torch: only the training floor names it."""
    wrong = [
        where(path, line)
        for floor, path in modules()
        for name, line, _ in imports(path)
        if name.split(".")[0] == "torch" and floor != "training"
    ]

    assert wrong == []


def test_nothing_above_training_imports_it() -> None:
    """Importing the training floor imports torch: others name its entry points as strings, and no lazy name of the package."""
    [homes] = [
        ast.literal_eval(node.value)
        for node in ast.parse((PACKAGE / "__init__.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES"
    ]
    lazy = {f"launcher.{name}" for name in homes}
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, line, typing_only in imports(path)
        if path.relative_to(PACKAGE).parts[0] != "training" and not typing_only
        if name.startswith("launcher.training") or name in lazy
    ]

    assert lazy == {"launcher.Training", "launcher.Worker", "launcher.attach", "launcher.load_checkpoint"}
    assert wrong == []


def test_submitit_is_imported_in_submission_alone() -> None:
    """One floor knows submitit, so one floor breaks when submitit changes."""
    wrong = [
        where(path, line)
        for floor, path in modules()
        for name, line, _ in imports(path)
        if name.split(".")[0] == "submitit" and floor != "submission"
    ]

    assert wrong == []


def test_the_package_never_imports_jobs_or_the_cluster() -> None:
    """``jobs/``, ``slurm/``, ``benchmarks/`` and ``tests/`` are not installed: nothing installed may need them."""
    wrong = [
        where(path, line)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, line, _ in imports(path)
        if name.split(".")[0] in ("jobs", "slurm", "benchmarks", "tests")
    ]

    assert wrong == []


def test_the_node_side_needs_only_what_nodes_have() -> None:
    """Agents and workers need the standard library, torch, psutil and submitit; no pydantic, omegaconf, click or rich."""
    todo = [path for floor, path in modules() if floor in NODE_SIDE]
    seen: set[Path] = set()
    wrong = []
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for name, line, typing_only in imports(path):
            top = name.split(".")[0]
            if typing_only or top in sys.stdlib_module_names or top == "__future__":
                continue
            if top == "launcher":
                todo += reached(name)
            elif top not in NODE_PACKAGES | EXTRAS:
                wrong.append(f"{where(path, line)} imports {name}")

    assert wrong == []


def reached(name: str) -> list[Path]:
    """The files that importing ``name`` (a module, or a name in one) executes."""
    parts = name.split(".")
    files = []
    for end in range(1, len(parts) + 1):
        base = ROOT.joinpath(*parts[:end])
        files += [p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()]
    return files
