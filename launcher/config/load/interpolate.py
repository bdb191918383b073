"""Fill in ``${params.x}`` and OmegaConf's other interpolations when loading, ``${run.x}`` once the run has a directory.

Each value is filled in once, however many others name it, and what is made is bounded: sixty values that hold the one before
twice would be 2**60 texts. The grammar is OmegaConf's; what a name stands for is decided here alone, secrets included.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from launcher.config.document.problem_list import ProblemList
from launcher.config.document.size_limit import SizeLimit
from launcher.config.document.source import join
from launcher.config.document.validation import suggestion
from launcher.errors import ConfigError
from launcher.redact import secret_name

RUN_KEYS = ("dir", "id", "name")
MOST_MADE = 4 << 20
_SIMPLE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
_LONGEST = 4096
"""Longer texts may hold names alone: the grammar's parser takes a second for 64 KiB."""
_DEEPEST = 120
_Place = tuple["str | int", ...]


def limit_for(size: int) -> SizeLimit:
    """Return a limit of so many characters that filling in makes."""
    said = f"the values are larger than {size >> 20} MiB once interpolations are filled in; look for values that hold others many times"
    return SizeLimit(size, said)


def resolve_interpolations(
    container: dict[str, Any], faults: ProblemList, limit: SizeLimit | None = None
) -> dict[str, Any]:
    """Return plain values with every interpolation but ``${run.x}`` replaced. Raises ConfigError when they would take more than ``limit``."""
    resolver = _Resolver(container, faults, limit or limit_for(MOST_MADE))
    try:
        values = {key: resolver.child(value, (key,)) for key, value in container.items()}
        resolver.limit.take(sum(len(key) + resolver.measure(value)[0] for key, value in values.items()))
    except ConfigError as error:
        faults.add("", str(error), "key")
        faults.stop_if(lambda _: True)
    return values


def readable(text: str) -> bool:
    """Tell whether every ``${`` in a text opens an interpolation that OmegaConf can read."""
    if _is_simple(text) or len(text) > _LONGEST:
        return True
    from omegaconf.errors import GrammarParseError

    try:
        _parse(text)
    except (GrammarParseError, RecursionError):
        return False
    return True


def _is_simple(text: str) -> bool:
    return "${" not in text or ("\\" not in text and "${" not in _SIMPLE.sub("", text))


@lru_cache(maxsize=512)
def _parse(text: str, **rule: str) -> Any:
    """Parse with OmegaConf. It is imported here alone: most jobs do not need it, and it takes 70 ms."""
    from omegaconf.grammar_parser import parse

    return parse(text, **rule)


class _WrongError(Exception):
    """A sentence on what is wrong with a value."""


class _NotSetError(_WrongError):
    """A name stands for nothing."""


class _EndlessError(_WrongError):
    """A text refers to itself."""


class _DeepError(_WrongError):
    """A text stands for lists in lists, or names of names, without end."""


class _InvalidError(_WrongError):
    """A text is not valid, for the reason given."""


def _sentence(text: str, error: _WrongError) -> str:
    """Return what is wrong with the text of a value."""
    text = text if len(text) <= 60 else f"{text[:57]}..."
    if isinstance(error, _EndlessError):
        return f"{text} refers to itself"
    if isinstance(error, _DeepError):
        return f"{text} is nested too deeply"
    return f"{text} is not valid: {error}" if isinstance(error, _InvalidError) else str(error)


class _Resolver:
    """Fills in the values of one job. A place is the keys on the way to a value."""

    def __init__(self, container: dict[str, Any], faults: ProblemList, limit: SizeLimit) -> None:
        self.container, self.faults, self.limit = container, faults, limit
        self._known: dict[_Place, Any] = {}
        self._begun: set[_Place] = set()
        self._sizes: dict[int, tuple[Any, int, int]] = {}

    def child(self, node: Any, place: _Place) -> Any:
        """Return the value of ``node`` at ``place``; None, and a problem, where something is wrong with it."""
        try:
            return self._at(place, node)
        except _WrongError as error:
            path = ""
            for key in place:
                path = join(path, key)
            self.faults.add(path, _sentence(str(node), error))
            return None

    def measure(self, value: Any) -> tuple[int, int]:
        """Return the characters of a value as they would be written, and how deep it is; what occurs twice counts twice."""
        if not isinstance(value, (dict, list)):
            return (len(value) if isinstance(value, str) else 8), 0
        if id(value) not in self._sizes:
            items = value.items() if isinstance(value, dict) else [("", item) for item in value]
            sizes = [(len(str(key)) + 2, *self.measure(item)) for key, item in items]
            size, depth = 2 + sum(a + b for a, b, _ in sizes), 1 + max((c for _, _, c in sizes), default=0)
            self._sizes[id(value)] = value, size, depth  # the value is kept: as long as it lives, no other has its id
        return self._sizes[id(value)][1:]

    def _at(self, place: _Place, node: Any) -> Any:
        """Return the value of ``node``, which is at ``place``, worked out once. Raises _WrongError."""
        if place in self._begun:
            raise _EndlessError
        if place not in self._known:
            self._begun.add(place)
            try:
                value = self._fill(node, place)
                if self.measure(value)[1] > _DEEPEST:
                    raise RecursionError
                self._known[place] = value
            except _WrongError as error:
                self._known[place] = error
            except RecursionError:
                self._known[place] = _DeepError()
            finally:
                self._begun.discard(place)
        found = self._known[place]
        if isinstance(found, _WrongError):
            raise type(found)(str(found))
        return found

    def _fill(self, node: Any, place: _Place) -> Any:
        if isinstance(node, dict):
            return {key: self.child(item, (*place, key)) for key, item in node.items()}
        if isinstance(node, list):
            return [self.child(item, (*place, index)) for index, item in enumerate(node)]
        if node == "???":
            raise _WrongError("is marked ??? and must be set")
        if not isinstance(node, str) or "${" not in node:
            return node
        if not _is_simple(node):
            return self._grammar(node, place)
        if whole := _SIMPLE.fullmatch(node):
            return self._look(whole[1].split("."), whole[1])
        parts: list[Any] = _SIMPLE.split(node)
        parts[1::2] = [self._counted(self._look(name.split("."), name)) for name in parts[1::2]]
        self.limit.take(len(node))
        return "".join(map(str, parts))

    def _counted(self, value: Any) -> Any:
        self.limit.take(self.measure(value)[0])
        return value

    def _look(self, keys: list[Any], name: str) -> Any:
        """Return the value of the key path ``keys``, which the text calls ``name``. Raises _WrongError."""
        if keys[:1] == ["run"]:
            return _of_run(keys, name)
        node: Any = self.container
        place: _Place = ()
        filled = False
        for key in keys:
            if isinstance(node, str) and not filled:  # an interpolation that stands for a mapping or list
                node, filled = self._at(place, node), True
            node, key = _step(node, key, name)
            place = (*place, key)
        if not filled and node == "???":
            raise _WrongError(f"names {name}, which is marked ???")
        return node if filled else self._at(place, node)

    # --- what needs the grammar ---

    def _grammar(self, text: str, place: _Place) -> Any:
        from omegaconf.grammar_visitor import GrammarVisitor

        _require_short(text)

        def node(key: Any, memo: object) -> Any:  # OmegaConf 2.3 hands over a text, 2.4 an object
            raw = str(getattr(key, "raw", key))
            keys = list(getattr(key, "parts", ())) or re.findall(r"[^.\[\]]+", raw)
            return self._counted(self._look(self._absolute(raw, keys, place), raw))

        def resolver(name: str, args: tuple[Any, ...], args_str: object) -> Any:
            return self._counted(self._function(visitor, place, name, *args))

        visitor = GrammarVisitor(node, resolver, None)
        try:
            return visitor.visit(_parse(text))
        except (_WrongError, ConfigError, RecursionError):
            raise
        except Exception as error:  # the grammar's own, and a function's for arguments of a wrong kind
            raise _InvalidError(str(error).partition("\n")[0] or type(error).__name__) from None

    def _absolute(self, raw: str, keys: list[Any], place: _Place) -> list[Any]:
        """Return the key path from the top: of ``.x`` it is beside ``place``, of ``..x`` beside what holds it."""
        dots = len(raw) - len(raw.lstrip("."))
        if dots > len(place):
            raise _WrongError(f"${{{raw}}} names a key that is not set")
        return [*place[: len(place) - dots], *keys] if dots else keys

    def _function(self, visitor: Any, place: _Place, name: str, *args: Any) -> Any:
        """Call one of OmegaConf's functions. Others, and one that imports any module by its name, are not known."""

        def at(key: str, *default: Any) -> Any:
            try:
                return self._look(self._absolute(key, re.findall(r"[^.\[\]]+", key), place), key)
            except _NotSetError:
                if default:
                    return default[0]
                raise

        if name == "oc.env":
            return _variable(*args)
        if name == "oc.select":
            return at(args[0], *(args[1:] or (None,)))
        if name == "oc.deprecated":
            return at(args[0])
        if name in ("oc.dict.keys", "oc.dict.values"):
            return list(getattr(at(args[0]), name.rpartition(".")[2])())
        if name == "oc.create":
            return args[0]
        if name == "oc.decode":
            _require_short(args[0])
            return args[0] and visitor.visit(_parse(args[0], parser_rule="singleElement", lexer_mode="VALUE_MODE"))
        raise _InvalidError(f"Unsupported interpolation type {name}")


def _require_short(text: Any) -> None:
    if isinstance(text, str) and len(text) > _LONGEST:
        raise _WrongError(f"has more than {_LONGEST:,} characters: in so long a text only plain names are filled in")


def _step(node: Any, key: Any, name: str) -> tuple[Any, Any]:
    """Return what is below ``node`` at ``key``, and the key as the node has it. Raises _NotSetError."""
    if isinstance(node, dict) and key in node:
        return node[key], key
    if isinstance(node, list) and str(key).isdecimal() and int(key) < len(node):
        return node[int(key)], int(key)
    raise _NotSetError(f"${{{name}}} names a key that is not set")


def _of_run(keys: list[Any], name: str) -> Any:
    """Return ``${run.x}`` as it is written: it is known only once the run has a directory."""
    if len(keys) == 1:
        return {key: f"${{run.{key}}}" for key in RUN_KEYS}
    if len(keys) == 2 and keys[1] in RUN_KEYS:
        return f"${{run.{keys[1]}}}"
    raise _NotSetError(f"${{{name}}} does not exist{suggestion(name, [f'run.{k}' for k in RUN_KEYS])}")


def _variable(name: Any, *default: Any) -> str | None:
    """Return an environment variable or, where it is not set, the default. Raises _WrongError for the name of a secret."""
    name = str(name)
    if secret_name(name):
        raise _WrongError(
            f"the value of {name} is a secret and would be written into files; list {name} under environment.pass instead"
        )
    if name in os.environ:
        return os.environ[name]
    if not default:
        raise _WrongError(f"the environment variable {name} is not set")
    return None if default[0] is None else str(default[0])


def interpolate_run(values: Any, run_dir: str | Path, run_id: str, name: str) -> Any:
    """Return a copy of ``values`` (text, lists, mappings) with ``${run.dir}``, ``${run.id}`` and ``${run.name}`` filled in.

    Raises ConfigError when that makes more than `MOST_MADE` characters.
    """
    known, limit = {"dir": str(run_dir), "id": run_id, "name": name}, limit_for(MOST_MADE)

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            limit.take(sum(len(known[key]) for key in re.findall(r"\$\{run\.(dir|id|name)\}", value)))
            return re.sub(r"\$\{run\.(dir|id|name)\}", lambda found: known[found[1]], value)
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        return [fill(item) for item in value] if isinstance(value, (list, tuple)) else value

    return fill(values)
