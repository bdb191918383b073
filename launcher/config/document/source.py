"""Read a YAML text as plain values, with the place of every key and value. A value with two meanings is a problem.

YAML 1.1 (PyYAML) and 1.2 (most else) read some plain words differently: ``12:30:00`` is 45000 to one and text to
the other, ``0123`` is 83 or 123, ``no`` is false or text. Such a value is a problem that says how to write it;
a key (``on:``) is always text. ``3e-4`` is a number, as OmegaConf and YAML 1.2 have it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from launcher.frozen import frozen

COMMAND_LINE = "command line"
FILE_BYTES = 256 << 10
"""A job file is a few KiB; a list of ten thousand values takes 100. PyYAML takes 3 s and 80 MB for so much."""
_MAX_NODES = 100_000
_LONGEST_KEY = 256


@frozen
class Origin:
    """Where a key was set: a file with the places of key and value (one-based), or the command line."""

    source: str
    line: int = 0
    column: int = 0
    value_line: int = 0
    value_column: int = 0

    def at(self, place: str = "key") -> str:
        """Return ``file:line:column`` of the key, or of the value; ``command line`` has no numbers."""
        if not self.line:
            return self.source
        if place == "value":
            return f"{self.source}:{self.value_line}:{self.value_column}"
        return f"{self.source}:{self.line}:{self.column}"

    def __str__(self) -> str:
        return self.at()


@frozen
class Problem:
    """One fault: the key path it concerns ("" is the whole file) and a sentence."""

    path: str
    message: str
    place: str = "key"
    """key or value: which of the two is pointed at."""
    origin: Origin | None = None
    """Where; unset: where ``path`` was set last."""
    code: bool = False
    """The fault lies in the named code, not in the configuration."""


@dataclass
class Document:
    """What a text holds: plain values, the origin of every key path, and what is wrong with it."""

    data: Any = None
    origins: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    writer: str = ""
    """Who else could have written the file that was read ("belongs to mallory"); "" for nobody."""


def join(path: str, key: str | int) -> str:
    """Return the key path of ``key`` below ``path``: ``a.b`` or ``a[0]``."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def parent(path: str) -> str:
    """Return the key path above: ``a.b[0]`` is below ``a.b`` below ``a``; "" is the top."""
    return re.sub(r"(?:\[\d+\]|(?:^|\.)[^.\[\]]*)$", "", path)


def nearest(origins: dict[str, Origin], path: str) -> Origin | None:
    """Return where ``path`` was set, or the nearest key above it."""
    while path and path not in origins:
        path = parent(path)
    return origins.get(path)


def is_below(path: str, above: str) -> bool:
    """Tell whether a key path is ``above`` itself or lies below it."""
    return path == above or path.startswith((above + ".", above + "["))


def value_at(data: Any, path: str) -> Any:
    """Return the plain value at a key path, or None."""
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and part.isdecimal() and int(part) < len(data):
            data = data[int(part)]
        else:
            return None
    return data


class _Loader(yaml.SafeLoader):
    """SafeLoader with one reading of plain words: that of YAML 1.2, and underscores in numbers."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own name


for _kind, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)$", [*"~nN", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("int", r"(?:[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+)$", [*"-+0123456789"]),
    (
        "float",
        r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        [*"-+0123456789."],
    ),
    ("merge", r"<<$", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)

_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_AS_WRITTEN = "environment.variables"
"""A variable is text, and 1e-3 or 1.10 would be another text once it has been a number."""
_BOOL_WORD = re.compile(r"yes|no|on|off", re.IGNORECASE)


def read_yaml(text: str, source: str, most: int = FILE_BYTES) -> Document:
    """Read a whole file; its faults are in ``problems``, also that it is larger than ``most`` characters."""
    document, problem = _Builder(source, most), ""
    where = Origin(source, 1, 1)
    root = None
    try:
        if len(text) > most:
            problem = too_large(most)
        else:
            root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        problem = _syntax(error)
        if mark := error.problem_mark or error.context_mark:
            where = Origin(source, mark.line + 1, mark.column + 1)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        where = Origin(source, before.count("\n") + 1, len(before) - before.rfind("\n"))
        problem = f"the character U+{error.character:04X} is not allowed in YAML"
    except RecursionError:
        problem = "lists and mappings are nested too deeply"
    if problem:
        document.problems.append(Problem("", problem, origin=where))
    elif root is not None:
        document.data = document.build(root, "", ())
    return document


def too_large(most: int) -> str:
    """Say that a file has more than ``most`` bytes."""
    return f"the file is larger than {most >> 10:,} KiB, too large for a job file"


def read_value(text: str, key: str = "") -> tuple[Any, str | None]:
    """Return the value of ``key=TEXT`` on the command line, and what is wrong with it (None: nothing).

    Clock times and leading zeros are text here: a shell has eaten whatever quotes there were.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError:
        # A plain word that YAML cannot read (``a: b``, ``@x``, ``[``) is taken for text unless it opens a list or mapping.
        if text[:1] in "[{\"'":
            return None, f"the value {text!r} is not valid YAML: check brackets and quotes"
        return text, None
    except RecursionError:
        return None, "the value is nested too deeply"
    if root is None:
        return None, None
    if isinstance(root, yaml.CollectionNode) and not root.flow_style:
        return text, None  # ``a: b`` is text on a command line
    document = _Builder(COMMAND_LINE)
    data = document.build(root, key, ())
    return data, (document.problems[0].message if document.problems else None)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that keeps NEL and the Unicode line ends, which it would write raw and read back as a space."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if any(c in "\x85\u2028\u2029\ufeff" for c in text) else None
    resolvers = _Loader.yaml_implicit_resolvers.get(text[:1], [])
    # 3e5 and 0:30:00 are text to PyYAML's own reader, which decides over quotes here, and not to others.
    if style is None and (_ambiguous(text, strict=True) or any(pattern.match(text) for _, pattern in resolvers)):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign]


def dump_yaml(data: Any, *, flow: bool = False) -> str:
    """Write plain values as a YAML text that `read_yaml`, and any other reader, reads back to the same values.

    ``flow`` puts everything on one line, as in ``[a, b]``.
    """
    style: dict[str, Any] = {"default_flow_style": True, "width": float("inf")} if flow else {"width": 120}
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **style)
    return text.removesuffix("...\n").rstrip("\n") if flow else text


def _pairs(text: str) -> str:
    """Join surrogate pairs: JSON writes characters beyond U+FFFF as two escapes, which PyYAML leaves apart."""
    return re.sub(
        "[\ud800-\udbff][\udc00-\udfff]", lambda m: m[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
    )


def _integer(text: str) -> int:
    value = int(text.replace("_", ""), 16 if text[:2].lower() == "0x" else 10) if len(text) <= 40 else 1 << 64
    if not -(1 << 63) <= value < 1 << 64:
        raise OverflowError
    return value


def _syntax(error: yaml.MarkedYAMLError) -> str:
    said = (error.problem or "the parser stopped here").replace("\n", " ")
    if "\\t" in said or "'\t'" in said:
        said = "tabs cannot indent; use spaces"
    elif said.startswith("mapping values are not allowed"):
        said = 'a ":" is not allowed here; check the indentation, or put quotes around the value'
    return f"this is not valid YAML: {said}"


class _Builder(Document):
    """Builds a document from PyYAML's nodes: values, origins, duplicate keys, ambiguous words, unknown tags."""

    def __init__(self, source: str, most: int = FILE_BYTES) -> None:
        super().__init__()
        self.source, self.strict, self.count, self.left = source, source != COMMAND_LINE, 0, 4 * most

    def build(self, node: yaml.Node, path: str, above: tuple[int, ...]) -> Any:
        self.count += 1
        if self.count > _MAX_NODES:
            if self.count == _MAX_NODES + 1:
                self.wrong(node, path, "the file has more than 100,000 values; check its aliases (*name)")
            return None
        # An alias takes a few characters, and stands for a text and the names of all keys above it.
        self.left -= len(path) + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
        if self.left < 0:
            if self.count <= _MAX_NODES:
                self.wrong(node, path, "the file is too large once its aliases (*name) are followed")
                self.count = _MAX_NODES + 1
            return None
        if id(node) in above or len(above) > 100:
            self.wrong(node, path, "this value contains itself or is nested too deeply")
            return None
        above = (*above, id(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, above)
        if isinstance(node, yaml.SequenceNode):
            return self.sequence(node, path, above)
        return self.scalar(node, path) if isinstance(node, yaml.ScalarNode) else None

    def wrong(self, node: yaml.Node, path: str, message: str) -> None:
        self.problems.append(Problem(path, message, origin=self.origin(node, node)))

    def origin(self, key: yaml.Node, value: yaml.Node) -> Origin:
        if not self.strict:
            return Origin(self.source)
        a, b = key.start_mark, value.start_mark
        return Origin(self.source, a.line + 1, a.column + 1, b.line + 1, b.column + 1)

    def mapping(self, node: yaml.MappingNode, path: str, above: tuple[int, ...]) -> dict[str, Any]:
        if node.tag != "tag:yaml.org,2002:map":
            self.wrong(node, path, f"the tag {_tag(node)} is not allowed")
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                self.merge(value, path, above, merged)
                continue
            name = self.key(key, path)
            if name is None:
                continue
            here = join(path, name)
            if name in result:
                first = self.origins[here]
                self.wrong(key, here, f"this key is set twice, first on line {first.line}; remove one")
                continue
            self.origins[here] = self.origin(key, value)
            result[name] = self.build(value, here, above)
        return {**{k: v for k, v in merged.items() if k not in result}, **result}

    def merge(self, value: yaml.Node, path: str, above: tuple[int, ...], merged: dict[str, Any]) -> None:
        parts = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for part in parts:
            if not isinstance(part, yaml.MappingNode):
                self.wrong(part, path, "<< merges mappings only")
                continue
            for name, item in (self.build(part, path, above) or {}).items():
                merged.setdefault(name, item)

    def key(self, key: yaml.Node, path: str) -> str | None:
        if not isinstance(key, yaml.ScalarNode):
            self.wrong(key, path, "a key must be a word, not a list or mapping")
            return None
        if (key.style is None and key.tag.rsplit(":", 1)[-1] in ("int", "float", "null")) or "\n" in key.value:
            self.wrong(key, join(path, key.value), f'a key must be text; put quotes around it: "{key.value}"')
            return None
        if len(key.value) > _LONGEST_KEY:
            self.wrong(key, path, f"a key has more than {_LONGEST_KEY} characters")
            return None
        return _pairs(str(key.value))

    def sequence(self, node: yaml.SequenceNode, path: str, above: tuple[int, ...]) -> list[Any]:
        if node.tag != "tag:yaml.org,2002:seq":
            self.wrong(node, path, f"the tag {_tag(node)} is not allowed")
        result = []
        for index, item in enumerate(node.value):
            here = join(path, index)
            self.origins[here] = self.origin(item, item)
            result.append(self.build(item, here, above))
        return result

    def scalar(self, node: yaml.ScalarNode, path: str) -> Any:
        kind, text = node.tag.rsplit(":", 1)[-1], _pairs(str(node.value))
        if node.style is None and kind == "str":
            if said := _ambiguous(text, strict=self.strict):
                self.wrong(node, path, said)
            return text
        if kind == "str" or (kind != "null" and parent(path) == _AS_WRITTEN):
            return text
        try:
            return _SCALARS[kind](text)
        except OverflowError:
            self.wrong(node, path, "this number exceeds 64 bits; put quotes around it if it is text")
        except (KeyError, ValueError):
            self.wrong(node, path, f"the tag {_tag(node)} is not allowed")
        return None


def _tag(node: yaml.Node) -> str:
    return str(node.tag).replace("tag:yaml.org,2002:", "!!")


_SCALARS: dict[str, Any] = {
    "null": lambda _text: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": _integer,
    "float": lambda text: float(re.sub(r"_|\.(?=inf|nan)", "", text.lower())),
}


def _ambiguous(text: str, *, strict: bool) -> str | None:
    """Return a sentence when YAML readers differ over this plain word, else None."""
    if _BOOL_WORD.fullmatch(text):
        boolean = "true" if text.lower() in ("yes", "on") else "false"
        return f'some YAML readers take {text} for text, others for {boolean}; write {boolean}, or "{text}" in quotes'
    if not strict:
        return None
    if _SEXAGESIMAL.fullmatch(text):
        return (
            f'put quotes around "{text}"; without quotes some YAML readers take it for the number {_sexagesimal(text)}'
        )
    if _LEADING_ZERO.fullmatch(text):
        return f'put quotes around "{text}", or remove the leading zero; without quotes some YAML readers take it for another number'
    return None


def _sexagesimal(text: str) -> str:
    value = 0.0
    for part in text.replace("_", "").lstrip("+-").split(":"):
        value = value * 60 + float(part)
    return f"{value:g}" if value % 1 else str(int(value))


def value_text(value: Any) -> str:
    """Show a value in a message, in at most 60 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if not isinstance(value, str) else '"' + value.encode("unicode_escape").decode() + '"'
    return text if len(text) <= 60 else text[:57] + '..."'
