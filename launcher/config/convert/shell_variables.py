"""What the words of a shell script stand for. What only a run of the script tells stays as it is written."""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from launcher.config.convert.shell_script import extent, raw_words
from launcher.config.document.size_limit import SizeLimit
from launcher.frozen import frozen


@frozen
class Ref:
    """A part of a word that is only known when the script runs."""

    text: str
    """As it is written: ``$SLURM_PROCID``, ``$(hostname)``; variables of the script's own are filled in."""
    name: str = ""
    """The variable, where the text is its value and nothing else."""
    local: bool = False
    """It needs a variable that the script sets in a branch or loop: outside the script the text means nothing."""


Piece = str | Ref


@frozen
class ShellWord:
    """One word as a program gets it."""

    pieces: tuple[Piece, ...]
    pattern: bool = False
    """The shell would put the names of files, or several words, in its place."""

    @property
    def text(self) -> str:
        """The text, with what is only known later as it is written."""
        return source(self.pieces)


_ORDINARY = re.compile(r"[^\"'\\`$]+")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_BRACES = re.compile(r"([A-Za-z_]\w*|[0-9@*#])(?:(:?[-=+?])(.*))?", re.DOTALL)
_TILDE = re.compile(r"~[\w.-]*(?=/|:|$)")
_NAMES = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*)|\$\(\((.*?)\)\)", re.DOTALL)
_PATTERN = re.compile(r"[*?]|\[[^\[\]]+\]|\{[^{}]{0,99}(?:,|\.\.)[^{}]{0,99}\}")
_BARE = re.compile(r"[\w@%+=:,./ -]*")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_PWD = re.compile(r"\$\(\s*pwd\s*\)|`\s*pwd\s*`")
_DEEPEST = 20
_Part = tuple[Piece, bool, bool]


@dataclass
class Scope:
    """Shell variables with a value known from the script alone."""

    known: dict[str, list[Piece]] = field(default_factory=dict)
    arrays: dict[str, list[ShellWord]] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    """Names that the script sets, also those whose value depends on a branch."""
    present: set[str] = field(default_factory=set)
    """Names from outside that are set for certain."""
    absent: set[str] = field(default_factory=set)
    """Names that are not set for certain."""
    limit: SizeLimit = field(
        default_factory=lambda: SizeLimit(1 << 20, "the script's variables stand for more than 1 MiB of text")
    )
    """A variable that holds the one before twice, sixty times over, is 2**60 texts."""
    depth: int = 0

    def copy(self) -> Scope:
        """Return a scope with the same variables, as a subshell has."""
        return replace(self, known=dict(self.known), arrays=dict(self.arrays), assigned=set(self.assigned))

    def assign(self, name: str, raw: str) -> None:
        """Take ``NAME=raw`` or ``NAME+=raw``; an array keeps its words."""
        name, plus = name.removesuffix("+"), name.endswith("+")
        if raw.startswith("("):
            inner = self.words(raw_words(raw[1:-1]))
            inner = self.arrays.get(name, []) + inner if plus else inner
            self.set(name, list(inner[0].pieces) if inner else [])
            self.arrays[name] = inner
        else:
            before = (self.known.get(name) or [Ref(f"${name}", name)]) if plus else []
            self.set(name, _joined([*before, *self.expand(raw, assigned=True)]))

    def set(self, name: str, value: list[Piece]) -> None:
        """Give a variable a value."""
        self.forget(name)
        self.known[name] = value

    def forget(self, name: str) -> None:
        """Know no longer what a variable of the script holds."""
        self.known.pop(name, None)
        self.arrays.pop(name, None)
        self.assigned.add(name)

    # --- words ---

    def words(self, raw: Sequence[str]) -> list[ShellWord]:
        """Return the words that raw words stand for: ``"${NAME[@]}"`` is many, ``"${NAME[*]}"`` one, an empty ``$NAME`` none."""
        result: list[ShellWord] = []
        for word in raw:
            found = re.fullmatch(r'"?\$\{?([A-Za-z_]\w*|@)(\[[@*]\])?\}?"?', word)
            if found and found[1] in self.arrays and (found[2] or found[1] == "@"):
                held = self.arrays[found[1]]
                self.limit.take(sum(len(w.text) + 1 for w in held))
                result += [_as_one(held)] if found[2] == "[*]" and word.startswith('"') else held
            else:
                result += self._fields(word)
        return result

    def _fields(self, raw: str) -> Iterator[ShellWord]:
        """Yield the words of one raw word: a variable that is not quoted is split at its spaces."""
        pieces: list[Piece] = []
        shown, begun = "", False
        for piece, quoted, variable in self._parts(raw, assigned=bool(_ASSIGNED.match(raw))):
            texts = [piece]
            if variable and not quoted and isinstance(piece, str):
                texts = re.split(r"[ \t\n]+", piece)
            for index, text in enumerate(texts):
                if index and begun:
                    yield ShellWord(tuple(_joined(pieces)), bool(_PATTERN.search(shown)))
                    pieces, shown, begun = [], "", False
                begun = begun or quoted or text != ""
                pieces.append(text)
                shown += text if isinstance(text, str) and not quoted else "\0"
        if begun:
            yield ShellWord(tuple(_joined(pieces)), bool(_PATTERN.search(shown)))

    def expand(self, raw: str, *, assigned: bool = False) -> list[Piece]:
        """Return what a raw word stands for, quotes removed and known variables filled in, not split."""
        return _joined([piece for piece, _, _ in self._parts(raw, assigned=assigned)])

    def text(self, raw: str) -> str:
        """Return what a raw word stands for, with what is only known later as it is written."""
        return source(self.expand(raw))

    def _parts(self, raw: str, *, assigned: bool = False) -> Iterator[_Part]:
        """Yield the parts of a raw word, each with whether it is quoted and whether it is a variable's."""
        at, quoted = 0, False
        while at < len(raw):
            char, size = raw[at], 1
            if char == '"':
                quoted = not quoted
                yield "", True, False
            elif raw.startswith("$'", at) and not quoted:
                size = 1 + extent(raw, at + 1)
                inside = raw[at + 2 : at + size].removesuffix("'")
                yield Ref(raw[at : at + size]) if "\\" in inside else inside, True, False
            elif char == "'" and not quoted:
                size = extent(raw, at)
                yield raw[at + 1 : at + size].removesuffix("'"), True, False
            elif char == "\\" and at + 1 < len(raw):
                size, escaped = 2, raw[at + 1]
                if escaped != "\n":
                    yield char + escaped if quoted and escaped not in '"\\$`' else escaped, True, False
            elif char == "`" or raw.startswith(("$(", "${"), at):
                size = extent(raw, at)
                yield from ((piece, quoted, True) for piece in self.reference(raw[at : at + size]))
            elif found := _VARIABLE.match(raw, at):
                size = len(found[0])
                yield from ((piece, quoted, True) for piece in self.reference(found[0]))
            elif found := self._tilde(raw, at, quoted, assigned):
                size = len(found[0])
                yield Ref("$HOME", "HOME") if size == 1 else Ref(found[0]), quoted, False
            else:
                size = self._ordinary(raw, at, assigned)
                yield raw[at : at + size], quoted, False
            at += size

    @staticmethod
    def _tilde(raw: str, at: int, quoted: bool, assigned: bool) -> re.Match[str] | None:
        begins = at == 0 or (assigned and raw[at - 1] in ":=")
        return _TILDE.match(raw, at) if begins and not quoted else None

    @staticmethod
    def _ordinary(raw: str, at: int, assigned: bool) -> int:
        found = _ORDINARY.match(raw, at)
        if not found:
            return 1
        stop = re.search(r"[:=](?=~)", found[0]) if assigned else None
        return stop.end() if stop else len(found[0])

    # --- variables ---

    def reference(self, text: str) -> list[Piece]:
        """Return the value of ``$NAME``, ``${NAME:-default}``, ``$((1 + 2))`` or ``$(command)``."""
        if text.startswith("$((") and text.endswith("))"):
            return [self.arithmetic(text)]
        if _PWD.fullmatch(text):
            return self._value("PWD", "$PWD")
        if text.startswith(("$(", "`")):
            return [self._later(text)]
        if not text.startswith("${"):
            return self._value(text[1:], text)
        found = _BRACES.fullmatch(text[2:-1])
        if not found:
            return [self._later(text)]
        name, how, other = found.groups()
        return self._alternative(text, name, how, other) if how else self._value(name, text)

    def _value(self, name: str, text: str) -> list[Piece]:
        value = self.known.get(name)
        return self._taken(value) if value is not None else [Ref(text, name, name in self.assigned)]

    def _alternative(self, text: str, name: str, how: str, other: str) -> list[Piece]:
        """Return ``${NAME:-other}`` and its kin. Only of a name that is the script's own is it known which holds."""
        value = self.known.get(name)
        if value is None and (name in self.absent or name.isdigit()):  # a job has no arguments
            is_set = False
        elif value is None and name in self.present and how[-1] != "+":
            return self._value(name, f"${name}")
        elif value is None:
            later = self._later(text.replace("=", "-", 1) if how[-1] == "=" else text)
            if how[-1] == "=":
                self.set(name, [later])
            return [later]
        elif how[0] == ":" and value and not any(isinstance(piece, str) for piece in value):
            return [Ref(text, local=True)]  # perhaps it is empty
        else:
            is_set = bool(value) or how[0] != ":"
        if how[-1] == "+":
            return self.expand(other) if is_set else []
        if is_set or how[-1] == "?":
            return self._taken(value or [])
        made = self.expand(other)
        if how[-1] == "=":
            self.set(name, made)
        return made

    def _taken(self, value: list[Piece]) -> list[Piece]:
        """Return the value of a variable, counted at every use. Raises ConfigError when that is too much."""
        self.limit.take(sum(len(piece.text if isinstance(piece, Ref) else piece) + 1 for piece in value))
        return value

    def arithmetic(self, text: str) -> Piece:
        """Return the number, where every variable is known."""
        filled = re.sub(
            r"\$?\{?([A-Za-z_]\w*)\}?",
            lambda m: (plain(self.known[m[1]]) if m[1] in self.known else None) or m[0],
            text[3:-2],
        )
        if "#" in filled:  # 10#08 names a base, and begins a comment of Python's
            return Ref(text)
        try:
            return str(_number(ast.parse(filled.strip(), mode="eval").body)) if len(filled) <= 200 else Ref(text)
        except (SyntaxError, ZeroDivisionError, KeyError, RecursionError, ValueError):
            return Ref(f"$(({filled}))", local=bool(self.assigned & set(re.findall(r"[A-Za-z_]\w*", filled))))

    def _later(self, text: str) -> Ref:
        """Return what only a run tells, with the script's own variables filled in."""
        opening = 1 if text.startswith("`") else 2
        if self.depth >= _DEEPEST:
            return Ref(text, local=True)
        self.depth += 1
        try:
            if text.startswith("${"):
                head = re.match(r"[#!]?\w*:?[-=+?]?", text[2:-1])
                opening += len(head[0]) if head else 0
            filled = text[:opening] + self.fill(text[opening:-1], quoted=text.startswith("${")) + text[-1:]
        finally:
            self.depth -= 1
        return Ref(filled, local=self.needs_own(filled))

    def fill(self, raw: str, *, quoted: bool = False) -> str:
        """Return shell text with the script's own known variables replaced, which means the same outside the script."""
        result: list[str] = []
        at = 0
        while at < len(raw):
            char, size = raw[at], 1
            if char == '"':
                quoted = not quoted
            if char == "'" and not quoted:
                size = extent(raw, at)
                result.append(raw[at : at + size])
            elif char == "\\":
                size = 2
                result.append(raw[at : at + 2])
            elif char == "`" or raw.startswith(("$(", "${"), at):
                size = extent(raw, at)
                result.append(_as_shell(self.reference(raw[at : at + size]), quoted))
            elif found := _VARIABLE.match(raw, at):
                size = len(found[0])
                result.append(_as_shell(self.reference(found[0]), quoted))
            else:
                found = re.compile(r"[^\"'\\`$]+").match(raw, at)
                size = len(found[0]) if found else 1
                result.append(raw[at : at + size])
            at += size
        return "".join(result)

    def needs_own(self, filled: str) -> bool:
        """Tell whether shell text that was filled in still names a variable of the script's own."""
        for name, inside in _NAMES.findall(filled):
            if name in self.assigned and f"${name}" not in self._names_of_its_own(name):
                return True
            if self.assigned & set(re.findall(r"[A-Za-z_]\w*", inside)):
                return True
        return False

    def _names_of_its_own(self, name: str) -> str:
        """Return the text of a known value: ``PATH=/x:$PATH`` names the PATH from outside."""
        return source(self.known.get(name, [])).replace("${", "$")


def _as_shell(pieces: list[Piece], quoted: bool) -> str:
    """Write a value as shell text, inside double quotes or outside."""
    result = ""
    for piece in pieces:
        if isinstance(piece, Ref):
            result += piece.text
        elif quoted:
            result += re.sub(r'(["\\$`])', r"\\\1", piece)
        else:
            result += piece if _BARE.fullmatch(piece) else " ".join(map(shlex.quote, piece.split()))
    return result


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_number(node.left), _number(node.right))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError("no arithmetic")


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces with neighbouring texts as one."""
    result: list[Piece] = []
    for is_text, group in groupby(pieces, lambda piece: isinstance(piece, str)):
        result += ["".join(map(str, group))] if is_text else list(group)  # noqa: B031 (one branch, once)
    return [piece for piece in result if piece != ""]


def _as_one(words: Sequence[ShellWord]) -> ShellWord:
    """Return the words as one, with spaces between them."""
    return ShellWord(tuple(_joined([piece for word in words for piece in (" ", *word.pieces)][1:])))


def plain(pieces: Sequence[Piece]) -> str | None:
    """Return the text, or None when a part of it is only known when the script runs."""
    return None if any(isinstance(piece, Ref) for piece in pieces) else source(pieces)


def source(pieces: Sequence[Piece]) -> str:
    """Return the text with references as they were written."""
    return "".join(piece.text if isinstance(piece, Ref) else piece for piece in pieces)


def written_pieces(text: str) -> list[Piece]:
    """Return a text in which references are still as they were written."""
    parts = re.split(r"(\$\{[^}]*\}|\$\w+|\$\([^)]*\)|`[^`]*`)", text)
    return [Ref(part) if index % 2 else part for index, part in enumerate(parts) if part]
