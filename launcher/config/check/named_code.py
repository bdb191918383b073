"""Is the named code there, and does it take its parameters? Read with ast; nothing is imported."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.config.check.user_code import Module, Symbol, find_module, find_symbol, names_in, parse
from launcher.config.document.schema import Job
from launcher.config.document.source import Problem, dump_yaml
from launcher.config.document.validation import nearest

__all__ = ["check"]


def check(job: Job, code_dir: Path) -> list[Problem]:
    """What is wrong with the code a job names."""
    if not code_dir.is_dir():
        return [Problem("code.dir", f"there is no directory {code_dir}", "value", code=True)]
    problems = [
        Problem(f"code.link[{index}]", f"there is nothing at {code_dir / path}", "value", code=True)
        for index, path in enumerate(job.code.link)
        if not (code_dir / path).exists()
    ]
    elsewhere = job.environment.python is not None or job.environment.container is not None
    if job.task is not None:
        problems += _named("task", job.task, job.params, code_dir, elsewhere)
    elif job.function is not None:
        problems += _named("function", job.function, job.params, code_dir, elsewhere)
    elif job.script is not None:
        problems += _script(job.script, code_dir, elsewhere)
    return problems


def _wrong(key: str, message: str) -> Problem:
    return Problem(key, message, "value", code=True)


# --- scripts ------------------------------------------------------------------------------------------------------------


def _script(script: str, code_dir: Path, elsewhere: bool) -> Iterator[Problem]:
    if script.startswith("-m"):
        yield from _runnable(script[2:].strip(), code_dir, elsewhere)
        return
    path = code_dir / script
    if not path.is_file():
        said = f"{path} is a directory" if path.is_dir() else f"there is no file {path}"
        yield _wrong("script", said + (_with_arguments(script, code_dir) or _similar(path)))
    elif code_dir.resolve() not in path.resolve().parents:
        yield _wrong("script", f"{script} lies outside the code directory {code_dir}; set code.dir")
    elif path.suffix == ".py":
        yield from _syntax("script", path)


def _with_arguments(script: str, code_dir: Path) -> str:
    """What to write instead of ``train.py --lr 3``; empty where the first word is no script either."""
    try:
        first, *rest = shlex.split(script) or [""]
    except ValueError:  # an open quote
        first, *rest = script.split()
    if not rest or not (code_dir / first).is_file():
        return ""
    return f"; arguments belong into args: write script: {first} and args: {dump_yaml(rest, flow=True)}"


def _similar(path: Path) -> str:
    files = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
    said = nearest(path.name, files)
    return said if "did you mean" in said else ""


def _runnable(name: str, code_dir: Path, elsewhere: bool) -> Iterator[Problem]:
    """``python -m name``: a package needs a ``__main__``."""
    module = find_module(name, code_dir)
    if module is not None and module.is_package:
        main = find_module(f"{name}.__main__", code_dir)
        if main is None:
            yield _wrong("script", f"{name} is a package without __main__.py, so -m cannot run it")
            return
        module = main
    if module is None:
        yield from _missing_module("script", name, code_dir, elsewhere)
    elif module.path is not None:
        yield from _syntax("script", module.path)


def _missing_module(key: str, name: str, code_dir: Path, elsewhere: bool) -> Iterator[Problem]:
    """No such module here; another interpreter or a container may still have it, unless its top lies in the code."""
    top = name.split(".")[0]
    if elsewhere and not (code_dir / top).exists() and not (code_dir / f"{top}.py").exists():
        return
    if name.endswith(".py") and (code_dir / name).is_file():
        yield _wrong(key, f'there is no module {name} in {code_dir}; did you mean "-m {name[:-3]}"?')
        return
    near = sorted({p.stem for p in code_dir.glob("*.py")} | {p.parent.name for p in code_dir.glob("*/__init__.py")})
    said = nearest(name, near) if name == top else ""
    yield _wrong(
        key, f"there is no module {name} in {code_dir}, nor an installed one" + (said if "did you" in said else "")
    )


def _syntax(key: str, path: Path) -> Iterator[Problem]:
    try:
        parse(path)
    except SyntaxError as error:
        place = f"{path}:{error.lineno}" if error.lineno else str(path)
        yield _wrong(key, f"{place} is no valid Python: {error.msg}")
    except (ValueError, RecursionError) as error:
        yield _wrong(key, f"{path} is no valid Python: {error}")
    except OSError as error:
        yield _wrong(key, f"{path} cannot be read: {error.strerror}")


# --- tasks and functions ------------------------------------------------------------------------------------------------


def _named(key: str, target: str, params: dict[str, Any], code_dir: Path, elsewhere: bool) -> Iterator[Problem]:
    module_name, _, name = target.partition(":")
    module = find_module(module_name, code_dir)
    if module is None:
        yield from _missing_module(key, module_name, code_dir, elsewhere)
        return
    if module.path is not None and (broken := list(_syntax(key, module.path))):
        yield from broken
        return
    try:
        symbol, owner = _nested(module, name)
        if symbol is None:
            kind = ast.ClassDef if key == "task" else ast.FunctionDef
            word = "class" if key == "task" else "function"
            yield _wrong(key, f"there is no {word} {name} in {module.path}{nearest(name, names_in(module, kind))}")
        elif symbol.node is not None:
            yield from _fits(key, name, symbol, owner, params)
    except (SyntaxError, ValueError, OSError, RecursionError) as error:
        yield _wrong(key, f"{target} leads to a file that cannot be read: {error}")


def _nested(module: Module, name: str) -> tuple[Symbol | None, Symbol | None]:
    """``Outer.Inner`` or ``Class.method``: the symbol and the class around it."""
    first, *rest = name.split(".")
    symbol, owner = find_symbol(module, first), None
    for part in rest:
        if symbol is None or symbol.node is None:
            return symbol, owner
        owner, body = symbol, symbol.node.body if isinstance(symbol.node, ast.ClassDef) else []
        nodes = [n for n in body if isinstance(n, _DEFINITIONS) and n.name == part]
        symbol = Symbol(symbol.module, nodes[-1]) if nodes else None
    return symbol, owner


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _fits(key: str, name: str, symbol: Symbol, owner: Symbol | None, params: dict[str, Any]) -> Iterator[Problem]:
    node = symbol.node
    if isinstance(node, ast.ClassDef):
        if key == "function":
            yield _wrong(key, f"{name} is a class; write task: for a subclass of launcher.Training")
            return
        if said := _no_training(name, node) or _unfinished(name, symbol):
            yield _wrong(key, said)
        signature = _constructor(symbol)
    else:
        if key == "task":
            yield _wrong(key, f"{name} is a function; write function: instead of task:")
            return
        if isinstance(node, ast.AsyncFunctionDef):
            yield _wrong(key, f"{name} is async, but is called like any other function")
            return
        static = owner is None or (node is not None and "staticmethod" in _decorators(node))
        signature = _signature(node, skip=1 if static else 2) if node is not None else None
        if signature is not None and signature.positional < 0:
            yield _wrong(key, f"{name} takes no argument, but is called with a launcher.Worker")
            return
    if signature is not None:
        yield from _arguments(name, signature, params)


def _no_training(name: str, node: ast.ClassDef) -> str | None:
    """A sentence where the bases show that a class is no Training; other bases may be one."""
    if node.keywords:
        return None
    if all(_is_object(base) for base in node.bases):
        return f"{name} is no subclass of launcher.Training: it has no base class"
    words = [ast.unparse(base) for base in node.bases]
    if all(word.rpartition(".")[2] in ("Module", "LightningModule", "Dataset") for word in words):
        return f"{name} is a subclass of {words[0]}, not of launcher.Training"
    return None


def _unfinished(name: str, symbol: Symbol) -> str | None:
    """A sentence where methods that launcher.Training asks for are surely nowhere among a class and its bases."""
    wanted: set[str] = set()
    defined: set[str] = set()
    todo = [symbol]
    for one in todo:
        node = one.node
        if not isinstance(node, ast.ClassDef) or len(todo) > 32:
            return None
        if node.name == "Training" and one.module.name == "launcher.training.task":
            wanted |= {n.name for n in node.body if isinstance(n, _DEFINITIONS) and "abstractmethod" in _decorators(n)}
            continue
        if node.keywords or set(_decorators(node)) - {"dataclass", "final"}:
            return None
        inside = list(ast.walk(node))  # more names than the class has at most: a doubt is no fault
        defined |= {n.name for n in inside if isinstance(n, _DEFINITIONS)}
        defined |= {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for base in node.bases:
            if not _is_object(base):
                above = _base(one, base)
                if above is None:
                    return None
                todo.append(above)
    missing = sorted(wanted - defined)
    if not missing:
        return None
    return f"{name} has no {' and no '.join(missing)}, which launcher.Training asks for"


@dataclass
class _Signature:
    """What may be given by keyword."""

    required: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    anything: bool = False
    """``**kwargs``."""
    positional: int = 0
    """Below 0: fewer positional parameters than are passed."""


def _arguments(name: str, signature: _Signature, params: dict[str, Any]) -> Iterator[Problem]:
    known = [*signature.required, *signature.optional]
    for key in params:
        if key not in known and not signature.anything:
            allowed = nearest(key, known) if known else "; it takes none"
            yield Problem(f"params.{key}", f'{name} has no parameter "{key}"{allowed}', code=True)
        elif signature.anything and not key.isidentifier():
            yield Problem(f"params.{key}", f'"{key}" cannot be the name of a parameter', code=True)
    for key in signature.required:
        if key not in params:
            yield Problem("params", f'{name} needs the parameter "{key}", which is not given', code=True)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, skip: int) -> _Signature | None:
    """Parameters after the first ``skip``, which are passed by position; None when a decorator may change them."""
    if set(_decorators(node)) - {"staticmethod", "classmethod", "override", "no_type_check"}:
        return None
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    with_default = {p.arg for p in positional[len(positional) - len(a.defaults) :]} if a.defaults else set()
    result = _Signature(anything=a.kwarg is not None)
    if len(positional) < skip and a.vararg is None:
        result.positional = len(positional) - skip
    for p in positional[skip:]:
        by_keyword = p in a.args
        if by_keyword or p.arg not in with_default:
            (result.optional if p.arg in with_default else result.required).append(p.arg)
    for p, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        (result.required if default is None else result.optional).append(p.arg)
    return result


def _decorators(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Last words of the decorators' names: ``dataclass`` of ``@dataclasses.dataclass(frozen=True)``."""
    found = []
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        found.append(ast.unparse(target).rpartition(".")[2])
    return found


# --- constructors -------------------------------------------------------------------------------------------------------


def _constructor(symbol: Symbol, depth: int = 0) -> _Signature | None:
    """A class's constructor, its own or a base's; None when that cannot be told."""
    node = symbol.node
    if not isinstance(node, ast.ClassDef) or depth > 8 or node.keywords:
        return None
    decorators = set(_decorators(node))
    if "dataclass" in decorators:
        return _fields(symbol, depth)
    if decorators - {"final"}:
        return None
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return _signature(item, skip=1)
        if isinstance(item, ast.FunctionDef) and item.name == "__new__":
            return None
    for base in node.bases:
        if _is_object(base):
            continue
        above = _base(symbol, base)
        return _constructor(above, depth + 1) if above is not None and above.node is not None else None
    return _Signature()


def _is_object(base: ast.expr) -> bool:
    return ast.unparse(base).partition("[")[0] in ("object", "ABC", "abc.ABC", "Generic", "Protocol")


def _base(symbol: Symbol, base: ast.expr) -> Symbol | None:
    """The class that a base names: a name of the module, or ``launcher.Training``."""
    text = ast.unparse(base).partition("[")[0]
    module = symbol.module
    if "." in text:
        head, _, text = text.rpartition(".")
        found = find_module(head, module.code_dir)
        if found is None or _shadowed(module, head):
            return None
        module = found
    if module.name == "launcher" and text == "Training":  # lazy there, by __getattr__
        found = find_module("launcher.training.task", module.code_dir)
        return find_symbol(found, "Training") if found else None
    found_symbol = find_symbol(module, text)
    if found_symbol is not None and found_symbol.node is None and text == "Training":
        found = find_module("launcher.training.task", module.code_dir)
        return find_symbol(found, "Training") if found else None
    return found_symbol


def _shadowed(module: Module, head: str) -> bool:
    """Whether ``head`` in ``head.Class`` is another name for a module than its own (``import x as head``)."""
    if module.path is None:
        return True
    imports = [a for n in ast.walk(parse(module.path)) if isinstance(n, ast.Import) for a in n.names]
    return not any(a.asname is None and (a.name == head or a.name.startswith(head + ".")) for a in imports)


def _fields(symbol: Symbol, depth: int) -> _Signature | None:
    """The fields of a dataclass, those of its bases first."""
    node = symbol.node
    result = _Signature()
    for base in node.bases if isinstance(node, ast.ClassDef) else []:
        if _is_object(base):
            continue
        above = _base(symbol, base)
        inherited = _constructor(above, depth + 1) if above is not None else None
        if inherited is None:
            return None
        if above is not None and above.node is not None and "dataclass" in _decorators(above.node):
            result.required += inherited.required
            result.optional += inherited.optional
    for item in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return _signature(item, skip=1)
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            _add_field(result, item.target.id, item)
    return result


def _add_field(result: _Signature, name: str, item: ast.AnnAssign) -> None:
    if ast.unparse(item.annotation).partition("[")[0].rpartition(".")[2] == "ClassVar":
        return
    value = item.value
    is_field = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field"
    options = {k.arg: k.value for k in value.keywords} if is_field and isinstance(value, ast.Call) else {}
    for names in (result.required, result.optional):
        if name in names:
            names.remove(name)
    init = options.get("init")
    if isinstance(init, ast.Constant) and init.value is False:
        return
    has_default = bool({"default", "default_factory"} & set(options)) if is_field else value is not None
    (result.optional if has_default else result.required).append(name)
