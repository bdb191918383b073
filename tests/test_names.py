"""One word for one thing: no public name is defined in two modules, no module's name means two things."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "launcher"
SAME_EVERYWHERE = {
    "command": "a verb: each module of cli/ has one",
    "main": "an entry point: ``python -m`` and the console script",
}
"""Names that several modules define on purpose."""
SAME_MODULES = {"__init__", "__main__", "main", "messages"}
"""Names of modules that mean the same in each of their rooms: entry points, and messages between two kinds of process."""


def public_names() -> dict[str, set[str]]:
    """Each public top-level name of the package, and the modules that define it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            targets: list[str] = []
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                targets = [node.name]
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                left = node.targets if isinstance(node, ast.Assign) else [node.target]
                targets = [target.id for target in left if isinstance(target, ast.Name)]
            for name in targets:
                if not name.startswith("_"):
                    found[name].add(str(path.relative_to(PACKAGE)))
    return found


def test_no_public_name_is_defined_twice() -> None:
    """Whoever searches for a name finds one thing."""
    twice = {name: where for name, where in public_names().items() if len(where) > 1}

    assert {name: where for name, where in twice.items() if name not in SAME_EVERYWHERE} == {}
    assert set(SAME_EVERYWHERE) - set(twice) == set(), "listed, but no longer defined twice"


def test_no_module_name_means_two_things() -> None:
    """A file name leads to one place; verbs (cli/) may share the name of the module that they call."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "cli":
            rooms[path.stem].append(str(path.relative_to(PACKAGE)))

    assert {name: where for name, where in rooms.items() if len(where) > 1 and name not in SAME_MODULES} == {}
