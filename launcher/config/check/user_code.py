"""Finds modules, classes and functions in source files with ast. Nothing of them is imported or executed."""

from __future__ import annotations

import ast
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

from launcher.frozen import frozen

__all__ = ["Module", "Symbol", "find_module", "find_symbol", "names_in", "parse"]

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_MOST_HOPS = 8


@frozen
class Module:
    """A module's source; ``path`` None: it exists, but not as readable source (an extension, a namespace)."""

    name: str
    path: Path | None
    code_dir: Path
    is_package: bool = False


@frozen
class Symbol:
    """A name in a module; ``node`` None: it is there, but what it is cannot be told without running code."""

    module: Module
    node: Definition | None


@lru_cache(maxsize=256)
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file. Raises SyntaxError (also for wrong encodings), ValueError (NUL bytes) and OSError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in a user's file are not this command's to report
        return ast.parse(path.read_bytes(), str(path))


def find_module(name: str, code_dir: Path) -> Module | None:
    """The module ``name``, below ``code_dir`` or else installed; None when there is none."""
    here = code_dir.joinpath(*name.split("."))
    if (here / "__init__.py").is_file():
        return Module(name, here / "__init__.py", code_dir, True)
    if here.with_suffix(".py").is_file():
        return Module(name, here.with_suffix(".py"), code_dir)
    if here.is_dir() and not _is_regular(name.split(".")[0]):
        return Module(name, None, code_dir, True)
    if any(here.parent.glob(here.name + ".*.so")) or here.with_suffix(".so").is_file():
        return Module(name, None, code_dir)
    top = code_dir / name.split(".")[0]
    if (top / "__init__.py").is_file() or top.with_suffix(".py").is_file():
        return None  # it shadows an installed package of that name, for the code directory comes first
    return _installed(name, code_dir)


def _is_regular(top: str) -> bool:
    """Whether a top-level name is an installed package, which wins over a mere directory of that name."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _installed(name: str, code_dir: Path) -> Module | None:
    """Installed in this interpreter; parents are searched, not imported as ``find_spec`` of a dotted name would."""
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for index, _ in enumerate(rest):
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(".".join([top, *rest[: index + 1]]), list(spec.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    path = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    return Module(name, path, code_dir, spec.submodule_search_locations is not None)


def find_symbol(module: Module, name: str, hops: int = 0) -> Symbol | None:
    """A name at the top of a module, followed through imports; None when it is surely not there.

    Raises what `parse` raises.
    """
    if module.path is None or hops > _MOST_HOPS:
        return Symbol(module, None)
    found: Symbol | None = None
    for node in _statements(parse(module.path).body):
        found = _defines(module, node, name, hops) or found  # the last one wins, as when it runs
    if found is None and module.is_package and find_module(f"{module.name}.{name}", module.code_dir):
        return Symbol(module, None)
    return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, those inside if, try, with and loops included."""
    for node in body:
        yield node
        for inner in ("body", "orelse", "finalbody"):
            if not isinstance(node, Definition):
                yield from _statements(getattr(node, inner, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _defines(module: Module, node: ast.stmt, name: str, hops: int) -> Symbol | None:
    if isinstance(node, Definition):
        # A module-level __getattr__ can make any name.
        return (
            Symbol(module, node) if node.name == name else Symbol(module, None) if node.name == "__getattr__" else None
        )
    if isinstance(node, ast.Import):
        return Symbol(module, None) if any((a.asname or a.name.split(".")[0]) == name for a in node.names) else None
    if isinstance(node, ast.ImportFrom):
        return _imported(module, node, name, hops)
    return Symbol(module, None) if name in _assigned(node) else None


def _assigned(node: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.For, ast.AsyncFor)):
        targets = [node.target]
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}


def _imported(module: Module, node: ast.ImportFrom, name: str, hops: int) -> Symbol | None:
    source = _source_of(module, node)
    for alias in node.names:
        if alias.name == "*":
            there = find_module(source, module.code_dir)
            if there is None:
                return Symbol(module, None)
            if found := find_symbol(there, name, hops + 1):
                return found
        elif (alias.asname or alias.name) == name:
            there = find_module(source, module.code_dir)
            return (find_symbol(there, alias.name, hops + 1) if there else None) or Symbol(module, None)
    return None


def _source_of(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of the module that an import names."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def names_in(module: Module, kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> list[str]:
    """Public classes or functions a module defines, for suggestions."""
    if module.path is None:
        return []
    return [n.name for n in _statements(parse(module.path).body) if isinstance(n, kind) and not n.name.startswith("_")]


def is_standard(name: str) -> bool:
    """Whether a module belongs to Python itself."""
    return name.split(".")[0] in sys.stdlib_module_names
