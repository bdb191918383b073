"""Read as much of the shell as sbatch scripts use: commands, quotes, variables, arrays, here documents. Nothing is run."""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass, field

from launcher.frozen import frozen


@frozen
class Ref:
    """A part of a word that is only known when the script runs."""

    text: str
    """As it is written: ``$SLURM_PROCID``, ``$(hostname)``."""
    name: str = ""
    """The variable; empty for a command."""


Piece = str | Ref


@dataclass
class Command:
    """One simple command: its words as they are written, without redirections."""

    line: int
    words: list[str] = field(default_factory=list)
    nested: bool = False
    """Inside if, for, while or case."""
    raw: str = ""
    """As it is written, redirections included."""


_OPEN, _CLOSE = {"if", "for", "while", "until", "case"}, {"fi", "done", "esac"}
_SKIP = {"then", "do", "else", "!", "{", "}", "time", "exec", "nohup"}


def commands(text: str) -> list[Command]:
    """List every simple command of a script, in order."""
    found, depth = [], 0
    for command in _Splitter(text).split():
        words = command.words
        while words and words[0] in _SKIP:
            words = words[1:]
        first = words[0] if words else ""
        if first in _OPEN or first == "elif":
            depth += first in _OPEN
            continue
        if first in _CLOSE:
            depth -= 1
        elif first:
            found.append(Command(command.line, words, depth > 0, command.raw))
    return found


_REDIRECT = re.compile(r"\d*(?:&>>|&>|>>|>&|>\||<<<|<<-?|<>|<&|<|>)")


class _Splitter:
    """Splits a script into commands and raw words."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text, 0, 1
        self.word, self.found, self.current = "", list[Command](), Command(1)
        self.waiting: list[str] = []
        """Ends of here documents that begin on the next line."""
        self.redirect = ""
        self.start = 0

    def split(self) -> list[Command]:
        while self.at < len(self.text):
            self.step(self.text[self.at])
        self.end_command()
        return self.found

    def step(self, char: str) -> None:
        if self.text.startswith("\\\n", self.at):
            self.take(2, keep=False)
        elif char == "\\":
            self.take(2)
        elif char in "'\"`" or self.text.startswith(("$(", "${"), self.at) or (char == "(" and self.word.endswith("=")):
            self.take(_extent(self.text, self.at))
        elif char == "#" and not self.word:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif (found := _REDIRECT.match(self.text, self.at)) and (not self.word or not found[0][0].isdigit()):
            self.end_word()
            self.redirect = found[0]
            self.take(len(found[0]), keep=False)
        elif char in "\n;|&()":
            self.end_command()
            self.take(1, keep=False)
            if char == "\n":
                self.skip_documents()
        elif char.isspace():
            self.end_word()
            self.take(1, keep=False)
        else:
            self.take(1)

    def take(self, count: int, *, keep: bool = True) -> None:
        piece = self.text[self.at : self.at + count]
        if keep and not self.word and not self.current.words:
            self.current.line = self.line
        if keep:
            self.word += piece
        self.line += piece.count("\n")
        self.at += count

    def end_word(self) -> None:
        if not self.word:
            return
        if not self.redirect:
            self.current.words.append(self.word)
        elif self.redirect.startswith("<<") and self.redirect != "<<<":
            self.waiting.append(self.word.strip("'\"\\"))
        self.word = self.redirect = ""

    def end_command(self) -> None:
        self.end_word()
        self.redirect = ""
        if self.current.words:
            self.current.raw = self.text[self.start : self.at].strip()
            self.found.append(self.current)
        self.current, self.start = Command(self.line), self.at + 1

    def skip_documents(self) -> None:
        documents = bool(self.waiting)
        while self.waiting:
            mark = self.waiting.pop(0)
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                row = self.text[self.at : end]
                self.take(end - self.at + 1, keep=False)
                if row.strip() == mark:
                    break
        if documents:
            self.start = self.at


def _extent(text: str, at: int) -> int:
    """How many characters the quoted or bracketed part at ``at`` has; to the end where it is not closed."""
    if text[at] == "'":
        end = text.find("'", at + 1)
        return (len(text) if end < 0 else end + 1) - at
    closing = {'"': '"', "`": "`", "(": ")", "{": "}"}
    opener = text[at + 1] if text[at] == "$" else text[at]
    position = at + (2 if text[at] == "$" else 1)
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 2
        elif char == closing[opener]:
            return position + 1 - at
        elif (
            (char == "'" and opener != '"')
            or (char in '"`(' and opener not in '"`')
            or text.startswith(("$(", "${"), position)
        ):
            position += _extent(text, position)
        else:
            position += 1
    return len(text) - at


# --- variables ----------------------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|([0-9@*#?$!-]))")
_BRACES = re.compile(r"([A-Za-z_]\w*|[0-9@*#])(?:\[[@*]\])?(?::?([-=+?])(.*))?", re.DOTALL)


@dataclass
class Scope:
    """Shell variables with a value known from the script alone."""

    known: dict[str, list[Piece]] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)

    def assign(self, name: str, raw: str) -> None:
        """Take ``NAME=raw`` or ``NAME+=raw``; an array keeps its words."""
        if name.endswith("+"):
            name = name[:-1]
            before = self.known.get(name, [])
            had = self.arrays.get(name, [])
            self.assign(name, raw)
            if raw.startswith("("):
                self.arrays[name] = had + self.arrays[name]
            else:
                self.known[name] = _joined([*before, *self.known[name]])
            return
        if raw.startswith("("):
            inner = _Splitter(raw[1:-1].replace("\n", " ")).split()
            self.arrays[name] = self.words([w for c in inner for w in c.words])
            self.known.pop(name, None)
        else:
            self.known[name] = self.expand(raw)

    def words(self, raw: list[str], depth: int = 0) -> list[str]:
        """Return raw words with ``$NAME`` and ``"${NAME[@]}"`` that stand alone replaced by the words they hold."""
        result: list[str] = []
        if depth > 10:
            return raw
        for word in raw:
            found = re.fullmatch(r'"?\$\{?([A-Za-z_]\w*)(\[[@*]\])?\}?"?', word)
            name = found.group(1) if found else ""
            if name in self.arrays:
                result += self.words(self.arrays[name], depth + 1)
            elif (
                name in self.known
                and not word.startswith('"')
                and any(isinstance(p, str) and " " in p for p in self.known[name])
            ):
                inner = _Splitter(source(self.known[name])).split()
                result += self.words([w for c in inner for w in c.words], depth + 1)
            else:
                result.append(word)
        return result

    def expand(self, raw: str) -> list[Piece]:
        """Return what a raw word stands for, quotes removed and known variables filled in."""
        pieces: list[Piece] = []
        at = 0
        quoted = False
        while at < len(raw):
            char = raw[at]
            if char == '"':
                quoted = not quoted
                at += 1
            elif char == "'" and not quoted:
                size = _extent(raw, at)
                pieces.append(raw[at + 1 : at + size].removesuffix("'"))
                at += size
            elif raw.startswith("\\\n", at):
                at += 2
            elif char == "\\" and at + 1 < len(raw):
                keep = quoted and raw[at + 1] not in '"\\$`\n'
                pieces.append(raw[at : at + 2] if keep else raw[at + 1])
                at += 2
            elif char in "$`":
                size = _reference(raw, at)
                pieces += self.reference(raw[at : at + size]) if size > 1 else [char]
                at += size
            else:
                pieces.append(char)
                at += 1
        return _joined(pieces)

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
                return self.known[name]
            return self.expand(other) if how and how in "-=" else [Ref(text, name)]
        name = text[1:]
        return self.known.get(name) or [Ref(text, name)]

    def arithmetic(self, text: str) -> Piece:
        """Return the number, where every variable is known."""
        filled = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda m: plain(self.known.get(m[1], [Ref("")])) or "?", text[3:-2])
        value = _calculate(filled)
        return Ref(text) if value is None else str(value)


def _reference(raw: str, at: int) -> int:
    if raw[at] == "`" or raw.startswith(("$(", "${"), at):
        return _extent(raw, at)
    found = _VARIABLE.match(raw, at)
    return len(found[0]) if found else 1


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _calculate(text: str) -> int | None:
    if len(text) > 200 or not re.fullmatch(r"[\d\s+*/%()-]+", text) or "**" in text:
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, KeyError, RecursionError, ValueError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        return int(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))  # type: ignore[operator,index]
    raise ValueError("no arithmetic")


def _joined(pieces: list[Piece]) -> list[Piece]:
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and result and isinstance(result[-1], str):
            result[-1] = result[-1] + piece
        elif piece != "":
            result.append(piece)
    return result


def plain(pieces: list[Piece]) -> str | None:
    """Return the text, or None when a part of it is only known when the script runs."""
    return "".join(p for p in pieces if isinstance(p, str)) if not any(isinstance(p, Ref) for p in pieces) else None


def source(pieces: list[Piece]) -> str:
    """Return the text with references as they were written."""
    return "".join(p if isinstance(p, str) else p.text for p in pieces)
