"""Read the user's Python files: modules, names, imports and calls. Nothing of them is imported or executed."""

from __future__ import annotations

import ast
import errno
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, resolve_name
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from launcher.frozen import frozen
from launcher.opening import read_start

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
UNREADABLE = (SyntaxError, ValueError, OSError, RecursionError, MemoryError)
"""Errors of reading a file: it is not valid Python, cannot be opened, or is nested too deeply."""
_MOST_HOPS = 8
_MOST_BYTES = 1 << 20
"""Of one file: a syntax tree takes about a thousand times as much memory."""
_MOST_FILES = 256
"""Of a script's own modules: reading more of them would make every plan slower."""
_TORCHRUN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"}
"""A script that reads one of them has a branch for torchrun, and the launcher sets them as torchrun does."""


@frozen
class Module:
    """A module's source; ``path`` None: it exists, but not as readable source (an extension, a namespace)."""

    name: str
    path: Path | None
    code_dir: Path
    is_package: bool = False


@frozen
class Symbol:
    """A name in a module; ``node`` None: it exists, but only running the code tells what it is."""

    module: Module
    node: Definition | None


@frozen
class Import:
    """One name that an import statement binds."""

    module: str
    """The module after ``import`` or ``from``; empty in ``from . import x``."""
    name: str
    """The name taken from the module; empty for ``import module``."""
    bound: str
    """The name that the file uses."""
    level: int
    """Leading dots: 0 for an absolute import."""
    full: str
    """The dotted name that ``bound`` stands for; empty for a relative import."""


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


@lru_cache(maxsize=256)
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file. Raises what `UNREADABLE` lists."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in a user's file are not this command's to report
        return ast.parse(_read(path), str(path))


def _read(path: Path) -> bytes:
    data = read_start(path, _MOST_BYTES)
    if len(data) > _MOST_BYTES:
        amount = f"{_MOST_BYTES >> 20} MiB"
        raise OSError(errno.EFBIG, f"it is larger than {amount}", str(path))
    return data


def parse_or_none(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file, or None where the file cannot be read."""
    try:
        return parse(path)
    except UNREADABLE:
        return None


def existing_mode(path: Path) -> int:
    """Return a file's mode, 0 where there is none. Raises OSError where it cannot be seen, which Path's own methods hide (Python 3.14)."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no path at all
        return 0
    except OSError as error:
        if error.errno == errno.ELOOP:
            return 0
        raise


# --- modules ------------------------------------------------------------------------------------------------------------


def find_module(name: str, code_dir: Path) -> Module | None:
    """Find the module ``name`` below ``code_dir``, else among the installed ones; None where there is none."""
    here = code_dir.joinpath(*name.split("."))
    if S_ISREG(existing_mode(here / "__init__.py")):
        return Module(name, here / "__init__.py", code_dir, True)
    if S_ISREG(existing_mode(here.with_suffix(".py"))):
        return Module(name, here.with_suffix(".py"), code_dir)
    if S_ISDIR(existing_mode(here)) and not _is_regular(name.split(".")[0]):
        return Module(name, None, code_dir, True)
    if any(here.parent.glob(here.name + ".*.so")) or S_ISREG(existing_mode(here.with_suffix(".so"))):
        return Module(name, None, code_dir)
    top = code_dir / name.split(".")[0]
    if S_ISREG(existing_mode(top / "__init__.py")) or S_ISREG(existing_mode(top.with_suffix(".py"))):
        return None  # it shadows an installed package of that name, for the code directory comes first
    return _installed(name, code_dir)


def _is_regular(top: str) -> bool:
    """Tell whether a top-level name is an installed package, which wins over a mere directory of that name."""
    found = _installed(top, Path())
    return found is not None and (found.path is not None or not found.is_package)


def _installed(name: str, code_dir: Path) -> Module | None:
    """Find an installed module; parents are searched, not imported as ``find_spec`` of a dotted name would."""
    full, *rest = name.split(".")
    try:
        spec = find_spec(full)
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            full = f"{full}.{part}"
            spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    path = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    return Module(name, path, code_dir, spec.submodule_search_locations is not None)


def runnable(name: str, code_dir: Path) -> Module | None:
    """Find the module that ``python -m name`` runs: of a package its ``__main__``."""
    module = find_module(name, code_dir)
    return find_module(f"{name}.__main__", code_dir) if module is not None and module.is_package else module


def script_file(script: str, code_dir: Path) -> Path | None:
    """Return the file that ``script: train.py`` or ``script: -m package.module`` runs; None where it is not in the code."""
    if not script.startswith("-m"):
        return code_dir / script if script else None
    module = runnable(script[2:].strip(), code_dir)
    return module.path if module is not None and module.path is not None and code_dir in module.path.parents else None


# --- names --------------------------------------------------------------------------------------------------------------


def imports(tree: ast.AST) -> Iterator[Import]:
    """Yield every name that an import in the tree binds, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imports_of(node)


def _imports_of(node: ast.Import | ast.ImportFrom) -> Iterator[Import]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            full = "" if node.level else f"{node.module}.{alias.name}"
            yield Import(node.module or "", alias.name, alias.asname or alias.name, node.level, full)
        else:
            top = alias.name.split(".")[0]
            yield Import(alias.name, "", alias.asname or top, 0, alias.name if alias.asname else top)


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Map each imported name to what it stands for; a name that the file also binds to anything else is left out."""
    names: dict[str, set[str]] = defaultdict(set)
    for found in imports(tree):
        names[found.bound].add(found.full)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names[node.id].add("")
        elif isinstance(node, ast.arg):
            names[node.arg].add("")
        elif isinstance(node, Definition):
            names[node.name].add("")
    return {name: full.pop() for name, full in names.items() if len(full) == 1 and "" not in full}


def full_name(node: ast.expr, names: dict[str, str]) -> str:
    """Return ``torch.multiprocessing.spawn`` for ``mp.spawn``; "" where the imported ``names`` do not tell."""
    if isinstance(node, ast.Attribute):
        above = full_name(node.value, names)
        return f"{above}.{node.attr}" if above else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def find_symbol(module: Module, name: str, hops: int = 0) -> Symbol | None:
    """Find a name at the top of a module, through its imports; None when it is surely not there.

    Raises what `parse` raises.
    """
    if module.path is None or hops > _MOST_HOPS:
        return Symbol(module, None)
    found: Symbol | None = None
    for node in _statements(parse(module.path)):
        found = _defines(module, node, name, hops) or found  # the last one wins, as when it runs
    if found is None and module.is_package and find_module(f"{module.name}.{name}", module.code_dir):
        return Symbol(module, None)
    return found


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements that run at import, those inside if, try, with, match and loops included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, Definition | ast.expr):
            yield from _statements(child)


def _defines(module: Module, node: ast.stmt, name: str, hops: int) -> Symbol | None:
    if isinstance(node, Definition):
        if node.name == name:
            return Symbol(module, node)
        return Symbol(module, None) if node.name == "__getattr__" else None  # at a module's top it can make any name
    if isinstance(node, ast.Import | ast.ImportFrom):
        return next(filter(None, (_through(module, found, name, hops) for found in _imports_of(node))), None)
    # A name that only a function inside the statement stores counts, too: a doubt is no fault.
    stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return Symbol(module, None) if name in stored else None


def _through(module: Module, found: Import, name: str, hops: int) -> Symbol | None:
    """Find the name as one import brings it."""
    if found.bound not in (name, "*"):
        return None
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    try:
        there = find_module(resolve_name("." * found.level + found.module, package), module.code_dir)
    except ImportError:
        there = None
    if not found.name or there is None:
        return Symbol(module, None)
    if found.name == "*":
        return find_symbol(there, name, hops + 1)
    return find_symbol(there, found.name, hops + 1) or Symbol(module, None)


def names_in(module: Module, kind: type[ast.ClassDef] | type[ast.FunctionDef]) -> list[str]:
    """List the public classes or functions that a module defines, for suggestions."""
    if module.path is None:
        return []
    return [n.name for n in _statements(parse(module.path)) if isinstance(n, kind) and not n.name.startswith("_")]


# --- calls --------------------------------------------------------------------------------------------------------------


def calls(path: Path) -> list[Call]:
    """List the calls in a file whose function its imports tell, in order; none where the file cannot be read."""
    try:
        tree = parse(path)
        names = imported_names(tree)
        return [
            Call(name, f"{path.name}:{call.lineno}", _arguments(call), guarded)
            for call, guarded in _calls(tree)
            if (name := full_name(call.func, names))
        ]
    except UNREADABLE:
        return []


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, bool]]:
    """Yield the calls in their order, each with whether it is guarded; an expression may be nested deeper than Python recurses."""
    nodes = [(tree, False)]
    while nodes:
        node, guarded = nodes.pop()
        guarded = guarded or (isinstance(node, ast.If | ast.IfExp) and _asks_for_torchrun(node.test))
        if isinstance(node, ast.Call):
            yield node, guarded
        nodes += [(child, guarded) for child in reversed(list(ast.iter_child_nodes(node)))]


def _asks_for_torchrun(test: ast.expr) -> bool:
    return any(
        (isinstance(n, ast.Constant) and n.value in _TORCHRUN)
        or (isinstance(n, ast.Attribute) and n.attr == "is_torchelastic_launched")
        for n in ast.walk(test)
    )


def _arguments(call: ast.Call) -> tuple[str, ...]:
    return (*(str(index) for index, _ in enumerate(call.args)), *(k.arg or "**" for k in call.keywords))


def unguarded_loader(script: Path) -> str:
    """Return where a script without ``if __name__ == "__main__"`` asks for loader processes (``train.py:41``), "" where it does not.

    A call with ``num_workers=`` counts, unless that is 0 or the script chooses the start method itself.
    """
    tree = parse_or_none(script)
    if tree is None:
        return ""
    if any(isinstance(n, ast.Compare) and {"__name__", "__main__"} <= _words(n) for n in ast.walk(tree)):
        return ""
    found = [call for call, _ in _calls(tree)]
    if any(getattr(call.func, "attr", getattr(call.func, "id", "")) == "set_start_method" for call in found):
        return ""
    for call in found:
        given = {k.arg: k.value for k in call.keywords}
        workers = given.get("num_workers", ast.Constant(0))
        if not (isinstance(workers, ast.Constant) and workers.value == 0) and "multiprocessing_context" not in given:
            return f"{script.name}:{call.lineno}"
    return ""


def _words(node: ast.AST) -> set[object]:
    """Return the names and constants in an expression."""
    return {
        n.id if isinstance(n, ast.Name) else n.value for n in ast.walk(node) if isinstance(n, ast.Name | ast.Constant)
    }


def attaches(script: Path, code_dir: Path) -> bool:
    """Tell whether a script, or a module of its own code that it imports, calls ``launcher.attach``."""
    return any(_calls_attach(path) for path in _own_files(script, code_dir))


def _calls_attach(path: Path) -> bool:
    try:  # the text alone, for a file that binds ``launcher`` twice: it works without the package, too
        if b"launcher.attach" in _read(path):
            return True
    except OSError:
        return False
    return any(call.name == "launcher.attach" for call in calls(path))


def _own_files(script: Path, code_dir: Path) -> Iterator[Path]:
    """Yield the script and the files below ``code_dir`` that its imports lead to, the nearest first."""
    files = [script]
    for path in files:
        yield path
        tree = parse_or_none(path)
        for found in imports(tree) if tree else ():
            name = ".".join(filter(None, (found.module, found.name)))  # `from a import b` names a, and perhaps a.b
            level = found.level
            folders = [path.parents[level - 1]] if 0 < level <= len(path.parents) else [script.parent, code_dir]
            new = dict.fromkeys(file for folder in folders for file in _module_files(name, folder))
            files += [file for file in new if file not in files][: _MOST_FILES - len(files)]


def _module_files(name: str, folder: Path) -> Iterator[Path]:
    """Yield the files that importing ``name`` runs where it lies in ``folder``: those of its packages, and its own."""
    here = folder
    parts = name.split(".")
    for part in parts if parts[0] != "launcher" else ():  # no package of a user's can have that name
        here = here / part
        yield from (file for file in (here / "__init__.py", here.with_suffix(".py")) if S_ISREG(existing_mode(file)))
