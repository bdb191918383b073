"""Finds what a user's script calls, by full names: only what its own imports make certain. Nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from launcher.config.check.user_code import find_module, parse
from launcher.frozen import frozen

__all__ = ["Call", "attaches", "calls", "script_file"]

_TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"}
"""A script that asks for one of them has a branch for torchrun, and the launcher sets them as torchrun does."""

_MOST_FILES = 256
"""Of a script's own modules: reading more of them would be felt by everybody who plans."""


@frozen
class Call:
    """A call of another module's function."""

    name: str
    """In full: torch.multiprocessing.spawn."""
    place: str
    """``train.py:41``."""
    arguments: tuple[str, ...]
    """Names of what is passed by keyword, a number for what is passed by position, ``**`` for keywords unknown."""
    guarded: bool
    """It stands in a choice that depends on torchrun's variables."""


def script_file(script: str, code_dir: Path) -> Path | None:
    """The file that ``script: train.py`` or ``script: -m package.module`` runs; None where it is not in the code."""
    if not script.startswith("-m"):
        return code_dir / script if script else None
    name = script[2:].strip()
    module = find_module(name, code_dir)
    if module is not None and module.is_package:
        module = find_module(f"{name}.__main__", code_dir)
    return module.path if module is not None and module.path is not None and code_dir in module.path.parents else None


def calls(path: Path) -> list[Call]:
    """The calls in a file whose function its imports tell, in order; none where the file cannot be read."""
    try:
        tree = parse(path)
        names = _imported(tree)
        found = [(call, _full_name(call.func, names), guarded) for call, guarded in _calls(tree)]
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []
    return [
        Call(name, f"{path.name}:{call.lineno}", _arguments(call), guarded) for call, name, guarded in found if name
    ]


def attaches(script: Path, code_dir: Path) -> bool:
    """Whether a script, or a module of its own code that it imports, calls ``launcher.attach``."""
    return any(_says_attach(path) or _calls_attach(path) for path in _own_files(script, code_dir))


def _calls_attach(path: Path) -> bool:
    return any(call.name == "launcher.attach" for call in calls(path))


def _says_attach(path: Path) -> bool:
    """For a file that binds ``launcher`` twice: it works without the package, too."""
    try:
        return "launcher.attach" in path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _own_files(script: Path, code_dir: Path) -> Iterator[Path]:
    """The script and the files below ``code_dir`` that its imports lead to, the nearest first."""
    files = [script]
    for path in files:
        yield path
        try:
            names = list(_import_statements(parse(path)))
        except (SyntaxError, ValueError, OSError, RecursionError):
            continue
        for level, name in names:
            folders = [path.parents[level - 1]] if 0 < level <= len(path.parents) else [script.parent, code_dir]
            found = (file for folder in folders for file in _module_files(name, folder))
            files += [file for file in dict.fromkeys(found) if file not in files][: _MOST_FILES - len(files)]


def _import_statements(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Level (0: absolute) and name of what may be a module: ``from a import b`` names a, and perhaps a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names)


def _module_files(name: str, folder: Path) -> Iterator[Path]:
    """The files that importing ``name`` runs where it lies in ``folder``: those of its packages, and its own."""
    here = folder
    parts = name.split(".")
    for part in parts if parts[0] != "launcher" else ():  # no package of a user's can have that name
        here = here / part
        yield from (file for file in (here / "__init__.py", here.with_suffix(".py")) if file.is_file())


def _arguments(call: ast.Call) -> tuple[str, ...]:
    return (*(str(index) for index, _ in enumerate(call.args)), *(k.arg or "**" for k in call.keywords))


def _imported(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for; a name that the file binds to anything else, too, is left out."""
    names: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        for name, full in _bound(node):
            names.setdefault(name, set()).add(full)
    return {name: min(full) for name, full in names.items() if len(full) == 1 and "" not in full}


def _bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that a node binds, with what they stand for; "" where that is not another module's."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, "" if node.level else f"{node.module}.{alias.name}"
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id, ""
    elif isinstance(node, ast.arg):
        yield node.arg, ""
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, ""


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    """``torch.multiprocessing.spawn`` of ``mp.spawn``; "" where the imports do not tell."""
    if isinstance(node, ast.Attribute):
        above = _full_name(node.value, names)
        return f"{above}.{node.attr}" if above else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def _calls(node: ast.AST, guarded: bool = False) -> Iterator[tuple[ast.Call, bool]]:
    guarded = guarded or (isinstance(node, ast.If | ast.IfExp) and _asks_for_torchrun(node.test))
    if isinstance(node, ast.Call):
        yield node, guarded
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, guarded)


def _asks_for_torchrun(test: ast.expr) -> bool:
    return any(
        (isinstance(n, ast.Constant) and n.value in _TORCHRUN)
        or (isinstance(n, ast.Attribute) and n.attr == "is_torchelastic_launched")
        for n in ast.walk(test)
    )
