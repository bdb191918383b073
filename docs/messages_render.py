"""What a string expression of the launcher's source gives with sample values, for docs/messages.md.

A parameter has the texts that its callers give it, a local variable those that the function assigns to it, a call of a function
of the package the texts that it returns. Formats and other pure functions are called. `messages_samples` has what is left.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import messages_samples as samples
from messages_samples import TEXT_METHODS, last_name

ROOT = Path(__file__).resolve().parents[1]
MOST = 10
"""Renderings of one expression, and callers or assignments that are looked at."""
DEEPEST = 7
_BUILTINS = {"len", "str", "int", "round", "min", "max", "sorted", "abs", "repr", "list", "set", "sum", "tuple"}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
Bound = dict[str, list[Any]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_open(value: object) -> bool:
    """No sample was found for a part of it."""
    return "‹" in str(value)


def is_text(value: object) -> bool:
    """Words for people, whole."""
    return isinstance(value, str) and re.search("[A-Za-z]", value) is not None and not is_open(value)


@dataclass
class Module:
    """The source of a module, and the module."""

    place: str
    """Its path below launcher/."""

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse((ROOT / "launcher" / self.place).read_text())

    @cached_property
    def names(self) -> dict[str, Any]:
        """What its names stand for."""
        name = "launcher." + self.place.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        return dict(vars(importlib.import_module(name)))

    @cached_property
    def imported(self) -> dict[str, Any]:
        """What functions import from modules of pure functions."""
        return {alias.name: getattr(importlib.import_module(node.module), alias.name) for node in ast.walk(self.tree)
                if isinstance(node, ast.ImportFrom) and node.module.rpartition(".")[2] in samples.PURE for alias in node.names}  # fmt: skip

    @cached_property
    def above(self) -> dict[ast.AST, ast.AST]:
        """Node → the one around it."""
        return {inner: node for node in ast.walk(self.tree) for inner in ast.iter_child_nodes(node)}

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Functions and methods by name."""
        return {n.name: n for n in ast.walk(self.tree) if isinstance(n, Function)}

    @cached_property
    def calls(self) -> dict[str, list[ast.Call]]:
        """Calls by the name of what they call; those of a class by the class."""
        found: dict[str, list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                found.setdefault(last_name(node.func), []).append(node)
        return found

    def function_of(self, node: ast.AST) -> Function | None:
        """The function that a node is in."""
        while (up := self.above.get(node)) is not None:
            if isinstance(up, Function) and node not in up.decorator_list and node is not up.args:
                return up
            node = up
        return None


@dataclass
class Reader:
    """Renders the expressions of one module."""

    module: Module
    modules: dict[str, Module]
    seen: dict[int, ast.expr] = field(default_factory=dict)
    """Strings met while rendering."""
    busy: list[ast.AST] = field(default_factory=list)

    def values(self, node: ast.expr, bound: Bound) -> list[Any]:
        """What an expression can give: several values where the code has several texts for it."""
        if node in self.busy or len(self.busy) > 12 * DEEPEST:
            return ["‹loop›"]
        self.busy.append(node)
        try:
            found = [value for value in self._values(node, bound) if value is not None]
        finally:
            self.busy.pop()
        whole = [value for value in found if not is_open(value)] or found[:1]
        filled = [value for value in whole if value != ""] or whole
        return list({str(value): value for value in filled}.values())[:MOST]

    def _sample(self, node: ast.expr) -> Any:
        return samples.of(self.module.place, last_name(node))

    def _values(self, node: ast.expr, bound: Bound) -> list[Any]:
        match node:
            case ast.Constant(value=value):
                self.seen[id(node)] = node
                return [value]
            case ast.JoinedStr(values=parts):
                self.seen[id(node)] = node
                return self._joined([self._part(part, bound) for part in parts])
            case ast.IfExp(body=one, orelse=other):
                return [*self.values(one, bound), *self.values(other, bound)]
            case ast.BoolOp(op=ast.Or(), values=[first, *others]):
                got = self.values(first, bound)
                more = [value for other in others for value in self.values(other, bound)]
                texts = [value for value in more if isinstance(value, str) and value.count(" ") > 1]
                return [*got, *texts] if got and not is_open(got[0]) and got != [""] else more
            case ast.BoolOp(values=parts):
                return self.values(parts[-1], bound)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._added(self.values(left, bound), self.values(right, bound)) or [self._sample(node)]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                number = self._calculated(_OPERATORS[type(op)], left, right, bound)
                return [self._sample(node) if number is None else number]
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return [abs(value) for value in self.values(inner, bound) if isinstance(value, (int, float))]
            case ast.Subscript(value=inner, slice=ast.Constant(value=int(place))) if (
                self._at(inner, place, bound) is not None
            ):
                return [self._at(inner, place, bound)]
            case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=ast.Constant(value=int(end)))):
                return [value[:end] if isinstance(value, (str, list)) else value for value in self.values(inner, bound)]
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [[value for part in parts for value in self.values(part, bound)[:1]]]
            case ast.ListComp(elt=inner, generators=[loop]) | ast.GeneratorExp(elt=inner, generators=[loop]):
                return [self._comprehended(inner, loop, bound)]
            case ast.NamedExpr(value=inner) | ast.Starred(value=inner) | ast.Await(value=inner):
                return self.values(inner, bound)
            case ast.Name(id=name):
                return self._named(node, name, bound)
            case ast.Call():
                return self._called(node, bound)
            case ast.Attribute(value=inner, attr=name):
                return self._attribute(node, inner, name, bound)
        return [self._sample(node)]

    def _calculated(self, operator: Callable[[Any, Any], Any], left: ast.expr, right: ast.expr, bound: Bound) -> Any:
        numbers = [value for side in (left, right) for value in self.values(side, bound)[:1]]
        return operator(*numbers) if len(numbers) == 2 and all(isinstance(n, (int, float)) for n in numbers) else None

    def _at(self, node: ast.expr, place: int, bound: Bound) -> Any:
        rows = [
            row for row in self.values(node, bound) if isinstance(row, (list, tuple)) and -len(row) <= place < len(row)
        ]
        return rows[0][place] if rows else None

    # --- strings ---

    def _part(self, part: ast.expr, bound: Bound) -> list[str]:
        if not isinstance(part, ast.FormattedValue):
            return [str(part.value)] if isinstance(part, ast.Constant) else [""]
        spec = "".join(self._part(p, bound)[0] for p in part.format_spec.values) if part.format_spec else ""  # type: ignore[attr-defined]
        return [self._formatted(value, spec, part) for value in self.values(part.value, bound)] or [""]

    def _formatted(self, value: Any, spec: str, part: ast.FormattedValue) -> str:
        if part.conversion == ord("r"):
            value = samples.written(value)
        if isinstance(value, (list, tuple, set, frozenset)):
            value = ", ".join(map(str, value))
        try:
            return format(value, spec)
        except (ValueError, TypeError):
            return f"‹{last_name(part.value)}:{spec}›"

    def _joined(self, parts: list[list[str]]) -> list[str]:
        """Each text of each part at least once."""
        return ["".join(p[i % len(p)] for p in parts) for i in range(max(map(len, parts), default=1))]

    def _added(self, left: list[Any], right: list[Any]) -> list[Any]:
        out: list[Any] = []
        for i in range(max(len(left), len(right)) if left and right else 0):
            a, b = left[i % len(left)], right[i % len(right)]
            if isinstance(a, type(b)) or isinstance(b, type(a)):
                out.append(a + b)
            elif not isinstance(a, list) and not isinstance(b, list):
                out.append(f"{a}{b}")
        return out

    def _comprehended(self, inner: ast.expr, loop: ast.comprehension, bound: Bound) -> list[Any]:
        rows = self.values(loop.iter, bound)
        row = rows[0] if rows else ""
        items = list(row)[:2] if isinstance(row, (list, tuple, set)) and row else [None]
        out: list[Any] = []
        for item in items:
            names = bound | (self._unpacked(loop.target, item) if item is not None else {})
            out += self.values(inner, names)[:1]
        return out

    def _unpacked(self, target: ast.expr, item: Any) -> Bound:
        if isinstance(target, ast.Name):
            return {target.id: [item]} if not is_open(item) else {}
        if isinstance(target, ast.Tuple) and isinstance(item, (list, tuple)) and len(item) == len(target.elts):
            return {k: v for t, i in zip(target.elts, item, strict=True) for k, v in self._unpacked(t, i).items()}
        return {}

    # --- names ---

    def _named(self, node: ast.expr, name: str, bound: Bound) -> list[Any]:
        if name in bound:
            return bound[name]
        function = self.module.function_of(node)
        given = samples.special(self.module.place, f"{function.name}:{name}") if function is not None else None
        given = samples.special(self.module.place, name) if given is None else given
        if isinstance(given, samples.Several):
            return list(given)
        found: list[Any] = []
        if function is not None:
            local, found = self._local(function, name, bound)
            if any(map(is_text, found)):
                return [value for value in found if is_text(value)]
            if given is not None:
                return [given]
            if local or found:
                known = samples.by_name(name, guess=False)
                return [known] if known is not None else found or [self._sample(node)]
        if given is not None:
            return [given]
        if name in self.module.names and not callable(self.module.names[name]):
            value = self.module.names[name]
            return [value] if isinstance(value, (str, int, float, list, tuple, set, dict)) else [self._sample(node)]
        return [self._sample(node)]

    def _local(self, function: Function, name: str, bound: Bound) -> tuple[bool, list[Any]]:
        """Whether a name is the function's own, and the values that it is assigned or called with."""
        found: list[Any] = []
        local = False
        for target, value in _assignments(function, name):
            local = True
            if value is not None and isinstance(target, ast.Name):
                found += self.values(value, bound)
        arguments = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if name in arguments or name in [a.arg for a in function.args.kwonlyargs]:
            local = True
            found += self._given(function, name, arguments)
        elif not local and (around := self.module.function_of(function)) is not None:
            return self._local(around, name, bound)
        return local, found

    def _given(self, function: Function, name: str, arguments: list[str]) -> list[Any]:
        """The texts that callers in the module give a parameter."""
        calls = self.module.calls.get(function.name, [])
        place = arguments.index(name) - (arguments[0] in ("self", "cls")) if name in arguments else -1
        found: list[Any] = []
        for call in calls if len(calls) <= MOST else []:
            given = [k.value for k in call.keywords if k.arg == name]
            if not given and 0 <= place < len(call.args):
                given = [call.args[place]]
            if given and not isinstance(given[0], ast.Starred):
                found += [value for value in self.values(given[0], {}) if is_text(value)]
        return found

    def _attribute(self, node: ast.expr, inner: ast.expr, name: str, bound: Bound) -> list[Any]:
        real = self._real(node)
        if isinstance(real, (str, int, float, list, tuple)):
            return [real]
        function = self.module.function_of(node)
        own = [f"{function.name}:{name}"] if function is not None else []
        for key in (*own, f"{last_name(inner)}.{name}", name):
            if (given := samples.special(self.module.place, key)) is not None:
                return list(given) if isinstance(given, samples.Several) else [given]
        base = self.values(inner, bound)[0] if isinstance(inner, (ast.Name, ast.Call, ast.Attribute)) else None
        if isinstance(base, PurePath) and hasattr(base, name):
            return [getattr(base, name)]
        return [self._sample(node)]

    def _real(self, node: ast.expr) -> Any:
        """The object of the module that a dotted name stands for."""
        if isinstance(node, ast.Name):
            function = self.module.function_of(node)
            if function is not None and self._is_own(function, node.id):
                return None
            if node.id not in self.module.names and (imported := self.module.imported.get(node.id)) is not None:
                return imported
            return self.module.names.get(node.id, getattr(builtins, node.id, None) if node.id in _BUILTINS else None)
        if isinstance(node, ast.Attribute):
            base = self._real(node.value)
            return getattr(base, node.attr, None) if inspect.ismodule(base) or inspect.isclass(base) else None
        return None

    def _is_own(self, function: Function, name: str) -> bool:
        return name in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)} or any(
            _assignments(function, name)
        )

    # --- calls ---

    def _called(self, node: ast.Call, bound: Bound) -> list[Any]:
        func = node.func
        name = last_name(func)
        given = samples.special(self.module.place, f"{name}()")
        if given is not None:
            return [given]
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Dict) and name == "get":
            rows = [value for row in func.value.values for value in self.values(row, bound)]
            return [
                *rows,
                *(value for a in node.args[1:] for value in self.values(a, bound) if is_text(value) and " " in value),
            ]
        if isinstance(func, ast.Attribute) and name in TEXT_METHODS and self._real(func) is None:
            return self._text_method(node, func, bound)
        real = self._real(func)
        if real is not None and self._is_pure(real):
            return self._really(real, node, bound) or [self._sample(node)]
        module, function = self._source(func, real)
        found = self._returned(module, function, node, bound) if function is not None else []
        return found or [self._sample(node)]

    def _is_pure(self, real: Any) -> bool:
        place = str(getattr(real, "__module__", ""))
        return (
            real in (str,)
            or getattr(builtins, getattr(real, "__name__", ""), None) is real
            or place.rpartition(".")[2] in samples.PURE
        )

    def _arguments(self, nodes: list[ast.expr], bound: Bound) -> list[list[Any]]:
        """Sets of arguments, so that each value of each is given once."""
        each = [self.values(node, bound) for node in nodes]
        if any(not values or isinstance(node, ast.Starred) for values, node in zip(each, nodes, strict=True)):
            return []
        return [[values[i % len(values)] for values in each] for i in range(max(map(len, each), default=1))]

    def _really(self, real: Any, node: ast.Call, bound: Bound) -> list[Any]:
        keys = [k.arg for k in node.keywords if k.arg]
        out = []
        for given in self._arguments([*node.args, *(k.value for k in node.keywords if k.arg)], bound):
            plain, named = given[: len(node.args)], dict(zip(keys, given[len(node.args) :], strict=True))
            if any(is_open(value) for value in given):
                continue
            try:
                out.append(real(*plain, **named))
            except Exception:  # (the sample does not fit: the caller takes that of the whole)
                continue
        return [sorted(value, key=str) if isinstance(value, (set, frozenset)) else value for value in out]

    def _text_method(self, node: ast.Call, func: ast.Attribute, bound: Bound) -> list[Any]:
        out = []
        for base, *given in self._arguments([func.value, *node.args], bound):
            if isinstance(base, list):
                continue
            if func.attr == "join" and isinstance(given[0], str):
                given = [[given[0]]]
            try:
                out.append(
                    getattr(str(base), func.attr)(*([[str(i) for i in given[0]]] if func.attr == "join" else given))
                )
            except Exception:  # likewise
                continue
        return out or [self._sample(node)]

    def _source(self, func: ast.expr, real: Any) -> tuple[Module, Function | None]:
        """The function of the package that is called, where it returns text."""
        module = self.module
        if inspect.isfunction(real) and real.__module__.startswith("launcher."):
            place = real.__module__.removeprefix("launcher.").replace(".", "/")
            module = self.modules.get(f"{place}.py", self.modules.get(f"{place}/__init__.py", module))
            found = module.functions.get(real.__name__)
        elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in ("self", "cls"):
            found = module.functions.get(func.attr)
        else:
            found = module.functions.get(func.id) if isinstance(func, ast.Name) else None
        said = ast.unparse(found.returns) if found is not None and found.returns is not None else ""
        return module, found if "str" in said and "dict" not in said and "Iterator" not in said else None

    def _returned(self, module: Module, function: Function, node: ast.Call, bound: Bound) -> list[Any]:
        if function in self.busy or len(self.busy) > 6 * DEEPEST:
            return []
        names = [a.arg for a in function.args.args if a.arg not in ("self", "cls")]
        given = {name: self.values(value, bound) for name, value in zip(names, node.args, strict=False)}
        given |= {k.arg: self.values(k.value, bound) for k in node.keywords if k.arg}
        given = {name: texts for name, values in given.items() if (texts := [v for v in values if not is_open(v)])}
        inside = Reader(module, self.modules, self.seen, [*self.busy, function])
        found: list[Any] = []
        for inner in _own(function):
            if isinstance(inner, ast.Return) and inner.value is not None:
                found += inside.values(inner.value, given)
        whole = [value for value in found if not is_open(value)]
        return whole


def _own(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it, in the order of lines."""
    todo: list[ast.AST] = list(reversed(function.body))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (*Function.__args__, ast.Lambda, ast.ClassDef)):  # type: ignore[attr-defined]
            todo += reversed(list(ast.iter_child_nodes(node)))


def _assignments(function: Function, name: str) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """(target, value) wherever a function sets a name; no value where it is one of several, or of a loop."""
    for node in _own(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _paired(target, value, name)
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                if isinstance(target, ast.Name) and target.id == name:
                    yield target, value
            case ast.AugAssign(target=ast.Name(id=found), value=value) if found == name:
                yield node.target, ast.copy_location(_before(function, node, value), value)
            case ast.For(target=target) | ast.comprehension(target=target):
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(target)):
                    yield target, None
            case ast.ExceptHandler(name=found) if found == name:
                yield ast.Name(name), None
            case ast.withitem(optional_vars=ast.Name(id=found)) if found == name:
                yield ast.Name(name), None


_ADDED: dict[int, ast.expr] = {}


def with_before(module: Module, node: ast.AugAssign) -> ast.expr:
    """What ``name += value`` gives."""
    function = module.function_of(node)
    return node.value if function is None else _before(function, node, node.value)


def _before(function: Function, node: ast.AugAssign, value: ast.expr) -> ast.expr:
    """What ``name += value`` gives: the first text that the name had, and this one."""
    if id(node) not in _ADDED:
        name = node.target.id  # type: ignore[union-attr]
        first = next((n.value for n in _own(function) if isinstance(n, (ast.Assign, ast.AnnAssign)) and n.value is not None
                      and any(isinstance(t, ast.Name) and t.id == name for t in getattr(n, "targets", [getattr(n, "target", None)]))),
                     ast.Constant(""))  # fmt: skip
        _ADDED[id(node)] = ast.BinOp(first, ast.Add(), value)
    return _ADDED[id(node)]


def _paired(target: ast.expr, value: ast.expr, name: str) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(target, ast.Name) and target.id == name:
        yield target, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            for t, v in zip(target.elts, value.elts, strict=True):
                yield from _paired(t, v, name)
        elif isinstance(value, ast.IfExp):
            yield from _paired(target, value.body, name)
            yield from _paired(target, value.orelse, name)
        elif any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(target)):
            yield target, None
