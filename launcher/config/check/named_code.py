"""Check that the code a job names is there and takes its parameters. Nothing is imported."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from launcher.config.check import signatures
from launcher.config.check.user_code import (
    UNREADABLE,
    Definition,
    Module,
    Symbol,
    existing_mode,
    find_module,
    find_symbol,
    names_in,
    parse,
    runnable,
)  # fmt: skip
from launcher.config.document.schema import Job
from launcher.config.document.source import Problem, dump_yaml
from launcher.config.document.validation import did_you_mean, suggestion


def check_code(job: Job, code_dir: Path) -> list[Problem]:
    """List what is wrong with the code a job names."""
    try:
        return _check_code(job, code_dir)
    except OSError as error:  # such as a folder that is closed to this user
        return [_wrong("code.dir", f"{error.filename or code_dir}: {(error.strerror or str(error)).lower()}")]


def _check_code(job: Job, code_dir: Path) -> list[Problem]:
    if not S_ISDIR(existing_mode(code_dir)):
        return [_wrong("code.dir", f"directory not found: {code_dir}")]
    problems = [
        _wrong(f"code.link[{index}]", f"not found: {code_dir / path}")
        for index, path in enumerate(job.code.link)
        if not existing_mode(code_dir / path)
    ]
    elsewhere = job.environment.python is not None or job.environment.container is not None
    for key, target in (("task", job.task), ("function", job.function)):
        if target is not None:
            problems += _class_or_function(key, target, job.params, code_dir, elsewhere)
    if job.script is not None:
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
    if not S_ISREG(mode := existing_mode(path)):
        said = f"{path} is a directory, not a file" if S_ISDIR(mode) else f"file not found: {path}"
        near = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        yield _wrong("script", said + (_with_arguments(script, code_dir) or did_you_mean(path.name, near)))
    elif code_dir.resolve() not in path.resolve().parents:
        yield _wrong("script", f"{script} is outside the code directory {code_dir}; set code.dir to its directory")
    elif path.suffix == ".py":
        yield from _syntax("script", path)


def _with_arguments(script: str, code_dir: Path) -> str:
    """Return what to write instead of ``train.py --lr 3``; "" where the first word is not a script either."""
    try:
        first, *rest = shlex.split(script) or [""]
    except ValueError:  # an open quote
        first, *rest = script.split()
    if not rest or not (code_dir / first).is_file():
        return ""
    return f"; write the arguments under args, as in script: {first} and args: {dump_yaml(rest, flow=True)}"


def _runnable(name: str, code_dir: Path, elsewhere: bool) -> Iterator[Problem]:
    """Check ``python -m name``: a package needs a ``__main__``."""
    module = runnable(name, code_dir)
    if module is not None:
        yield from _syntax("script", module.path)
    elif find_module(name, code_dir) is not None:
        yield _wrong("script", f"-m cannot run {name}: this package has no __main__.py")
    else:
        yield from _missing_module("script", name, code_dir, elsewhere)


def _missing_module(key: str, name: str, code_dir: Path, elsewhere: bool) -> Iterator[Problem]:
    """Report a missing module, unless another interpreter or a container may have it."""
    top = name.split(".")[0]
    if elsewhere and not (code_dir / top).exists() and not (code_dir / f"{top}.py").exists():
        return
    if name.endswith(".py") and (code_dir / name).is_file():
        yield _wrong(key, f'module {name} not found in {code_dir}; did you mean "-m {name[:-3]}"?')
        return
    near = sorted({p.stem for p in code_dir.glob("*.py")} | {p.parent.name for p in code_dir.glob("*/__init__.py")})
    said = did_you_mean(name, near) if name == top else ""
    yield _wrong(key, f"module {name} not found: it is neither in {code_dir} nor installed{said}")


def _syntax(key: str, path: Path | None) -> Iterator[Problem]:
    """Report a file that cannot be read; None is a module without readable source."""
    try:
        if path is not None:
            parse(path)
    except SyntaxError as error:
        place = f"{path}:{error.lineno}" if error.lineno else str(path)
        yield _wrong(key, f"{place} is not valid Python: {error.msg}")
    except OSError as error:
        yield _wrong(key, f"{path} cannot be read: {error.strerror}")
    except UNREADABLE as error:
        yield _wrong(key, f"{path} is not valid Python: {error}")


# --- tasks and functions ------------------------------------------------------------------------------------------------


def _class_or_function(
    key: str, target: str, params: dict[str, Any], code_dir: Path, elsewhere: bool
) -> Iterator[Problem]:
    module_name, _, name = target.partition(":")
    module = find_module(module_name, code_dir)
    if module is None:
        yield from _missing_module(key, module_name, code_dir, elsewhere)
        return
    if broken := list(_syntax(key, module.path)):
        yield from broken
        return
    try:
        symbol, owner = _nested(module, name)
        if symbol is None:
            word, kind = ("class", ast.ClassDef) if key == "task" else ("function", ast.FunctionDef)
            yield _wrong(key, f"{word} {name} not found in {module.path}{suggestion(name, names_in(module, kind))}")
        elif symbol.node is not None:
            yield from _fits(key, name, symbol, owner, params)
    except UNREADABLE as error:
        yield _wrong(key, f"{target} leads to a file that cannot be read: {error}")


def _nested(module: Module, name: str) -> tuple[Symbol | None, Symbol | None]:
    """Find ``Outer.Inner`` or ``Class.method``: the symbol and the class around it."""
    first, *rest = name.split(".")
    symbol, owner = find_symbol(module, first), None
    for part in rest:
        if symbol is None or symbol.node is None:
            return symbol, owner
        owner, body = symbol, symbol.node.body if isinstance(symbol.node, ast.ClassDef) else []
        nodes = [n for n in body if isinstance(n, Definition) and n.name == part]
        symbol = Symbol(symbol.module, nodes[-1]) if nodes else None
    return symbol, owner


def _fits(key: str, name: str, symbol: Symbol, owner: Symbol | None, params: dict[str, Any]) -> Iterator[Problem]:
    node = symbol.node
    signature: signatures.Signature | None = None
    said = None
    if isinstance(node, ast.ClassDef):
        if key == "function":
            said = f"{name} is a class; write task: instead of function:, with a subclass of launcher.Training"
        else:
            said = _no_training(name, node)
            if not said and (missing := signatures.missing_methods(symbol)):
                said = f"{name} does not define all methods that launcher.Training requires; add {', '.join(missing)}"
        signature = signatures.constructor(symbol)
    elif key == "task":
        said = f"{name} is a function; write function: instead of task:"
    elif isinstance(node, ast.AsyncFunctionDef):
        said = f"{name} is an async function; the launcher calls it without await, so write a plain function"
    elif node is not None:
        static = owner is None or "staticmethod" in signatures.decorators(node)
        signature = signatures.function_signature(node, skip=1 if static else 2)
        if signature is not None and signature.too_few:
            said = f"{name} takes no argument, but the launcher calls it with a launcher.Worker"
    if said:
        yield _wrong(key, said)
    elif signature is not None:
        yield from _parameters(name, signature, params)


def _no_training(name: str, node: ast.ClassDef) -> str | None:
    """Return a sentence where the bases show that a class is not a Training. Other bases may be one."""
    if node.keywords:
        return None
    if all(signatures.is_object(base) for base in node.bases):
        return f"{name} is not a subclass of launcher.Training: it has no base class"
    words = [ast.unparse(base) for base in node.bases]
    if all(word.rpartition(".")[2] in ("Module", "LightningModule", "Dataset") for word in words):
        return f"{name} is a subclass of {words[0]}, not of launcher.Training"
    return None


def _parameters(name: str, signature: signatures.Signature, params: dict[str, Any]) -> Iterator[Problem]:
    known = signature.parameters
    for key in params:
        if key not in known and not signature.anything:
            allowed = suggestion(key, known) or "; it takes no parameters"
            yield Problem(f"params.{key}", f'{name} has no parameter "{key}"{allowed}', code=True)
        elif signature.anything and not key.isidentifier():
            yield Problem(f"params.{key}", f'"{key}" is not a valid parameter name', code=True)
    for key, optional in known.items():
        if not optional and key not in params:
            yield Problem("params", f'{name} needs the parameter "{key}", which is not set', code=True)
