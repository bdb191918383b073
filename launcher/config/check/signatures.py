"""Tell which parameters a class or function of the user's code takes, and which methods a class has. Read, never imported."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from launcher.config.check.user_code import (
    Definition,
    Module,
    Symbol,
    find_module,
    find_symbol,
    full_name,
    imported_names,
    parse,
)  # fmt: skip

_TASK_MODULE = "launcher.training.task"


@dataclass
class Signature:
    """What may be given by keyword."""

    parameters: dict[str, bool] = field(default_factory=dict)
    """Name → whether it has a default."""
    anything: bool = False
    """``**kwargs``."""
    too_few: bool = False
    """Fewer positional parameters than are passed."""


def function_signature(node: ast.FunctionDef | ast.AsyncFunctionDef, skip: int) -> Signature | None:
    """Read the parameters after the first ``skip``, which are passed by position; None when a decorator may change them."""
    if set(decorators(node)) - {"staticmethod", "classmethod", "override", "no_type_check"}:
        return None
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    with_default = {p.arg for p in positional[len(positional) - len(a.defaults) :]}
    result = Signature(anything=a.kwarg is not None, too_few=len(positional) < skip and a.vararg is None)
    for p in positional[skip:]:
        if p in a.args or p.arg not in with_default:
            result.parameters[p.arg] = p.arg in with_default
    result.parameters.update({p.arg: d is not None for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)})
    return result


def decorators(node: Definition) -> set[str]:
    """Return the last words of the decorators' names: ``dataclass`` of ``@dataclasses.dataclass(frozen=True)``."""
    targets = (d.func if isinstance(d, ast.Call) else d for d in node.decorator_list)
    return {ast.unparse(target).rpartition(".")[2] for target in targets}


def constructor(symbol: Symbol, depth: int = 0) -> Signature | None:
    """Read a class's constructor, its own or a base's; None when only running the code tells it."""
    node = symbol.node
    if not isinstance(node, ast.ClassDef) or depth > 8 or node.keywords:
        return None
    if "dataclass" in decorators(node):
        return _dataclass_constructor(symbol, node, depth)
    if decorators(node) - {"final"}:
        return None
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name in ("__init__", "__new__"):
            return function_signature(item, skip=1) if item.name == "__init__" else None
    base = next((base for base in node.bases if not is_object(base)), None)
    if base is None:
        return Signature()
    above = _base_class(symbol, base)
    return constructor(above, depth + 1) if above is not None else None


def _dataclass_constructor(symbol: Symbol, node: ast.ClassDef, depth: int) -> Signature | None:
    """Read the fields of a dataclass, those of its bases first."""
    result = Signature()
    for base in node.bases:
        if is_object(base):
            continue
        above = _base_class(symbol, base)
        inherited = constructor(above, depth + 1) if above is not None else None
        if above is None or above.node is None or inherited is None:
            return None
        if "dataclass" in decorators(above.node):
            result.parameters.update(inherited.parameters)
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return function_signature(item, skip=1)
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            _add_field(result.parameters, item.target.id, item)
    return result


def _add_field(parameters: dict[str, bool], name: str, item: ast.AnnAssign) -> None:
    if ast.unparse(item.annotation).partition("[")[0].rpartition(".")[2] == "ClassVar":
        return
    parameters.pop(name, None)
    value = item.value
    if not (isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "field"):
        parameters[name] = value is not None
        return
    options = {option.arg: option.value for option in value.keywords}
    init = options.get("init")
    if not (isinstance(init, ast.Constant) and init.value is False):
        parameters[name] = not {"default", "default_factory"}.isdisjoint(options)


def is_object(base: ast.expr) -> bool:
    """Tell whether a base class adds no parameter and no method: object, ABC, Generic or Protocol."""
    return ast.unparse(base).partition("[")[0] in ("object", "ABC", "abc.ABC", "Generic", "Protocol")


def _base_class(symbol: Symbol, base: ast.expr) -> Symbol | None:
    """Find the class that a base names: a name of the module, or one of an imported module."""
    base = base.value if isinstance(base, ast.Subscript) else base
    module: Module | None = symbol.module
    name = ast.unparse(base)
    if "." in name:
        path = symbol.module.path
        head, _, name = full_name(base, imported_names(parse(path)) if path else {}).rpartition(".")
        module = find_module(head, symbol.module.code_dir) if head else None
    found = find_symbol(module, name) if module else None
    if found is not None and found.node is None and name == "Training":  # launcher makes it by __getattr__
        task = find_module(_TASK_MODULE, symbol.module.code_dir)
        return find_symbol(task, name) if task else None
    return found


def missing_methods(symbol: Symbol) -> list[str]:
    """List the methods that launcher.Training asks for and that are surely nowhere among a class and its bases."""
    wanted: set[str] = set()
    defined: set[str] = set()
    todo = [symbol]
    for one in todo:
        node = one.node
        if not isinstance(node, ast.ClassDef) or len(todo) > 32:
            return []
        if node.name == "Training" and one.module.name == _TASK_MODULE:
            wanted |= {n.name for n in node.body if isinstance(n, Definition) and "abstractmethod" in decorators(n)}
            continue
        if node.keywords or decorators(node) - {"dataclass", "final"}:
            return []
        inside = list(ast.walk(node))  # more names than the class has at most: a doubt is no fault
        defined |= {n.name for n in inside if isinstance(n, Definition)}
        defined |= {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        bases = [_base_class(one, base) for base in node.bases if not is_object(base)]
        todo += [above for above in bases if above is not None]
        if None in bases:
            return []
    return sorted(wanted - defined)
