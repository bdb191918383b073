"""Read as much of the shell as sbatch scripts use: commands, quotes, variables, arrays, here documents. Nothing is run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from launcher.config.document.room import Room
from launcher.frozen import frozen


@frozen
class Ref:
    """A part of a word that is only known when the script runs."""

    text: str
    """As it is written: ``$SLURM_PROCID``, ``$(hostname)``."""
    name: str = ""
    """The variable; empty for a command."""


Piece = str | Ref
_P = TypeVar("_P", bound="str | Ref")


@dataclass
class Command:
    """One simple command: its words as they are written, without redirections."""

    line: int
    words: list[str] = field(default_factory=list)
    nested: bool = False
    """Inside if, for, while or case."""
    raw: str = ""
    """As it is written, redirections included."""

    @property
    def place(self) -> str:
        """The line, for a note."""
        return f"line {self.line}{' (inside if or for)' if self.nested else ''}"


_OPEN, _CLOSE = {"if", "for", "while", "until", "case"}, {"fi", "done", "esac"}
_SKIP = {"then", "do", "else", "!", "{", "}", "time", "exec", "nohup"}


def commands(text: str) -> Iterator[Command]:
    """Yield every simple command of a script, in order."""
    depth = 0
    for command in _split(text):
        while command.words and command.words[0] in _SKIP:
            command.words.pop(0)
        first = command.words[0] if command.words else ""
        if first in _OPEN:
            depth += 1
        elif first in _CLOSE:
            depth -= 1
        elif first not in ("", "elif"):
            command.nested = depth > 0
            yield command


_BLANK = re.compile(r"(?:\\\n|[^\S\n])+|#.*")
_REDIRECT = re.compile(r"\d*(?:&>>|&>|>>|>&|>\||<<<|<<-?|<>|<&|<|>)")
_UNQUOTED = re.compile(r"\\.?|[^\s\\'\"`$;|&()<>]+|\$", re.DOTALL)


def _split(text: str) -> Iterator[Command]:
    """Split a script into commands and raw words."""
    at = start = counted = 0
    line, redirect = 1, ""
    words: list[str] = []
    documents: list[str] = []  # the last lines of here documents that begin on the next line
    while at <= len(text):
        if found := _BLANK.match(text, at):
            at = found.end()
        elif found := _REDIRECT.match(text, at):
            redirect, at = found[0], found.end()
        elif (char := text[at : at + 1]) in "\n;|&()":  # also "", the end
            if words:
                yield Command(line, words, raw=text[start:at].strip())
            words, redirect, at = [], "", at + 1
            while char == "\n" and documents:
                last = re.compile(rf"^[^\S\n]*{re.escape(documents.pop(0))}[^\S\n]*$", re.MULTILINE).search(text, at)
                at = last.end() + 1 if last else len(text)
            start = at
        else:
            line, counted = (line, counted) if words else (line + text.count("\n", counted, at), at)
            word, at = _word(text, at)
            if not redirect:
                words.append(word)
            elif redirect in ("<<", "<<-"):
                documents.append(word.strip("'\"\\"))
            redirect = ""


def _word(text: str, at: int) -> tuple[str, int]:
    """Return the raw word at ``at``, and where it ends."""
    word = ""
    while at < len(text):
        if text[at] in "'\"`" or text.startswith(("$(", "${"), at) or (text[at] == "(" and word.endswith("=")):
            part = text[at : at + _extent(text, at)]
        elif found := _UNQUOTED.match(text, at):
            part = found[0]
        else:
            break
        at += len(part)
        word += part if part != "\\\n" else ""
    return word, at


_INSIDE = {"'": ("'", ""), '"': ('"', ""), "`": ("`", "'"), "(": (")", "'\"`("), "{": ("}", "'\"`(")}
"""By the opening character: the closing one, and those that open another part inside."""


def _extent(text: str, at: int) -> int:
    """Return how many characters the quoted or bracketed part at ``at`` has; to the end where it is not closed."""
    position = at + (2 if text[at] == "$" else 1)
    opener = text[position - 1]
    closing, inside = _INSIDE[opener]
    while position < len(text):
        if text[position] == closing:
            return position + 1 - at
        if opener == "'":
            position += 1
        elif text[position] in inside or text.startswith(("$(", "${"), position):
            position += _extent(text, position)
        else:
            position += 2 if text[position] == "\\" else 1
    return len(text) - at


# --- variables ----------------------------------------------------------------------------------------------------------

_ORDINARY = re.compile(r"[^\"'\\`$]*")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_BRACES = re.compile(r"([A-Za-z_]\w*|[0-9@*#])(?:\[[@*]\])?(?::?([-=+?])(.*))?", re.DOTALL)


@dataclass
class Scope:
    """Shell variables with a value known from the script alone."""

    known: dict[str, list[Piece]] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    room: Room = field(
        default_factory=lambda: Room(1 << 20, "the script's variables stand for more than 1 MiB of text")
    )
    """A variable that holds the one before twice, sixty times over, is 2**60 texts."""

    def assign(self, name: str, raw: str) -> None:
        """Take ``NAME=raw`` or ``NAME+=raw``; an array keeps its words."""
        name, plus = name.removesuffix("+"), name.endswith("+")
        if raw.startswith("("):
            inner = self.words(_words(raw[1:-1].replace("\n", " ")))
            self.arrays[name] = self.arrays.get(name, []) + inner if plus else inner
            self.known.pop(name, None)
        else:
            self.known[name] = _joined([*(self.known.get(name, []) if plus else []), *self.expand(raw)])

    def words(self, raw: list[str], depth: int = 0) -> list[str]:
        """Return raw words with ``$NAME`` and ``"${NAME[@]}"`` that stand alone replaced by the words they hold."""
        result: list[str] = []
        if depth > 10:
            return raw
        for word in raw:
            found = re.fullmatch(r'"?\$\{?([A-Za-z_]\w*)(\[[@*]\])?\}?"?', word)
            name = found[1] if found else ""
            if name in self.arrays:
                self._taken(self.arrays[name])
                result += self.words(self.arrays[name], depth + 1)
            elif (
                name in self.known
                and not word.startswith('"')
                and any(isinstance(p, str) and " " in p for p in self.known[name])
            ):
                result += self.words(_words(source(self._taken(self.known[name]))), depth + 1)
            else:
                result.append(word)
        return result

    def expand(self, raw: str) -> list[Piece]:
        """Return what a raw word stands for, quotes removed and known variables filled in."""
        pieces: list[Piece] = []
        at = 0
        quoted = False
        while at < len(raw):
            char, size = raw[at], 1
            if char == '"':
                quoted = not quoted
            elif char == "'" and not quoted:
                size = _extent(raw, at)
                pieces.append(raw[at + 1 : at + size].removesuffix("'"))
            elif char == "\\" and at + 1 < len(raw):
                size, escaped = 2, raw[at + 1]
                if escaped != "\n":
                    pieces.append(char + escaped if quoted and escaped not in '"\\$`' else escaped)
            elif char == "`" or raw.startswith(("$(", "${"), at):
                size = _extent(raw, at)
                pieces += self.reference(raw[at : at + size])
            elif found := _VARIABLE.match(raw, at):
                size = len(found[0])
                pieces += self.reference(found[0])
            else:
                size = len(_ORDINARY.match(raw, at)[0]) or 1  # type: ignore[index]
                pieces.append(raw[at : at + size])
            at += size
        return _joined(pieces)

    def text(self, raw: str) -> str:
        """Return what a raw word stands for, with what is only known later as it is written."""
        return source(self.expand(raw))

    def reference(self, text: str) -> list[Piece]:
        """Return the value of ``$NAME``, ``${NAME:-default}``, ``$((1 + 2))`` or ``$(command)``."""
        if text.startswith("$((") and text.endswith("))"):
            return [self.arithmetic(text)]
        if text.startswith(("$(", "`")):
            return [Ref(text)]
        if text.startswith("${"):
            found = _BRACES.fullmatch(text[2:-1])
            if not found:
                return [Ref(text, re.sub(r"\W.*", "", text[2:]))]
            name, how, other = found.groups()
            if name in self.known:
                return self._taken(self.known[name])
            return self.expand(other) if how and how in "-=" else [Ref(text, name)]
        name = text[1:]
        return self._taken(self.known.get(name) or [Ref(text, name)])

    def _taken(self, value: list[_P]) -> list[_P]:
        """Return the value of a variable, counted at every use. Raises ConfigError when that is too much."""
        self.room.take(sum(len(piece.text if isinstance(piece, Ref) else piece) + 1 for piece in value))
        return value

    def arithmetic(self, text: str) -> Piece:
        """Return the number, where every variable is known."""
        filled = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: plain(self.known.get(m[1], [Ref("")])) or "?", text[3:-2])
        try:
            return str(_value(ast.parse(filled.strip(), mode="eval").body)) if len(filled) <= 200 else Ref(text)
        except (SyntaxError, ZeroDivisionError, KeyError, RecursionError, ValueError):
            return Ref(text)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError("no arithmetic")


def _words(text: str) -> list[str]:
    return [word for command in _split(text) for word in command.words]


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with neighbouring texts as one."""
    result: list[Piece] = []
    for is_text, group in groupby(pieces, lambda piece: isinstance(piece, str)):
        result += ["".join(map(str, group))] if is_text else list(group)  # noqa: B031 (one branch, once)
    return [piece for piece in result if piece != ""]


def plain(pieces: list[Piece]) -> str | None:
    """Return the text, or None when a part of it is only known when the script runs."""
    return None if any(isinstance(piece, Ref) for piece in pieces) else source(pieces)


def source(pieces: list[Piece]) -> str:
    """Return the text with references as they were written."""
    return "".join(piece.text if isinstance(piece, Ref) else piece for piece in pieces)
