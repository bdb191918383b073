"""Read the shell's grammar as far as sbatch scripts use it: commands, quotes, branches, functions. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Command:
    """One simple command: its words as they are written, without redirections."""

    line: int
    words: list[str] = field(default_factory=list)
    raw: str = ""
    """As it is written, redirections included."""
    end: str = ""
    """The operator after it."""
    kind: str = ""
    """``for`` sets its one word in a loop, ``function`` is named by it, ``(`` and ``)`` enclose a subshell; "": a command."""
    nested: str = ""
    """Where it runs perhaps, or more than once: ``in a branch``; "" runs once."""
    body: list[Command] = field(default_factory=list)
    """The commands of a function."""
    joined: list[Command] = field(default_factory=list)
    """It and the commands that ``&&``, ``||`` and ``|`` join to it."""
    whole: str = ""
    """The text of all of them."""
    optional: bool = False
    """An ``||`` is among them."""

    @property
    def place(self) -> str:
        """The line, for a note."""
        return f"line {self.line}{f' ({self.nested})' if self.nested else ''}"

    @property
    def conditional(self) -> bool:
        """Whether an ``||`` or a condition joins it to others, so that it means something only together with them."""
        return self.nested == GUARDED or self.optional


GUARDED, _BRANCH, _LOOP = "under a condition", "in a branch", "in a loop"
_OPENING = {
    "if": ("fi", _BRANCH), "case": ("esac", _BRANCH), "while": ("done", _LOOP), "until": ("done", _LOOP), "for": ("done", _LOOP),
    "select": ("done", _LOOP), "{": ("}", ""),
}  # fmt: skip
"""What each is closed by, and how what is inside runs."""
_CLOSING = {"fi", "done", "esac", "}"}
_AGAIN = {"then", "do", "else", "elif"}
_SKIPPED = {"!", "time", "exec", "nohup", "builtin", "command"}
_KEYWORDS = {*_OPENING, *_CLOSING, *_AGAIN, *_SKIPPED, "function"}
_SURE = {
    "cd", "mkdir", "module", "ml", "source", ".", "export", "set", "echo", "conda", "mamba", "micromamba", "eval", "pushd", "true",
    "ulimit", "umask", "date", "pwd",
}  # fmt: skip
"""Commands that a script takes for granted: what ``&&`` joins to them runs."""


@dataclass
class _Block:
    closed_by: str
    nested: str
    out: list[Command]
    pattern: bool = False
    """A pattern of ``case`` comes next."""
    silent: bool = False
    """The brackets after a function's name."""


@dataclass
class _Reader:
    """Follows branches, loops, subshells and functions."""

    blocks: list[_Block]
    guard: str = ""
    function: str = ""
    """The name of a function whose body comes next."""

    def take(self, command: Command) -> None:
        """Take the next command that is written."""
        block = self.blocks[-1]
        if block.pattern and command.words[:1] != ["esac"]:
            block.pattern = command.end != ")"
            return
        self._keywords(command)
        if len(command.words) == 1 and command.end == "(":
            self.function = command.words.pop()
        elif command.words:
            self._add(command)
        self._operator(command)

    def _keywords(self, command: Command) -> None:
        words = command.words
        while words and words[0] in _KEYWORDS:
            if words[0] in _SKIPPED and words[1:] and words[1].startswith("-"):
                break  # an option of its own
            word = words.pop(0)
            command.raw = command.raw.removeprefix(word).lstrip()
            if word in _CLOSING:
                self._close(word, command.line)
            elif word == "function":
                self.function = words.pop(0) if words else ""
            elif word in _OPENING:
                self._open(*_OPENING[word], command.line)
                if word in ("for", "select"):
                    self._add(Command(command.line, words[:1], kind="for"))
                elif word == "case":
                    self.blocks[-1].pattern = command.end != ")"
                if word in ("for", "select", "case"):
                    words.clear()
            elif word in _AGAIN:
                self.guard = ""

    def _open(self, closed_by: str, nested: str, line: int) -> None:
        above = self.blocks[-1]
        block = _Block(closed_by, above.nested or self.guard or nested, above.out)
        if self.function and closed_by in ("}", ")"):
            made = Command(line, [self.function], kind="function")
            self._add(made)
            block, self.function = _Block(closed_by, "", made.body), ""
        elif closed_by == ")":
            self._add(Command(line, kind="("))
        self.blocks.append(block)
        self.guard = ""

    def _close(self, word: str, line: int) -> None:
        """Close the block; one that was never opened is no matter."""
        block = self.blocks[-1]
        if block.closed_by == word and len(self.blocks) > 1:
            self.blocks.pop()
            if word == ")" and block.out is self.blocks[-1].out and not block.silent:
                self._add(Command(line, kind=")"))

    def _add(self, command: Command) -> None:
        block = self.blocks[-1]
        command.nested = block.nested or self.guard
        block.out.append(command)

    def _operator(self, command: Command) -> None:
        end = command.end
        if end == "(" and self.function and command.raw:
            self.blocks.append(_Block(")", "", self.blocks[-1].out, silent=True))
        elif end == "(":
            self._open(")", "", command.line)
        elif end == ")":
            self._close(")", command.line)
        elif end in (";;", ";&", ";;&"):
            self.blocks[-1].pattern = self.blocks[-1].closed_by == "esac"
        if end == "||" or (end == "&&" and not _is_sure(command)):
            self.guard = GUARDED
        elif end not in ("&&", "|", "|&"):
            self.guard = ""


def _is_sure(command: Command) -> bool:
    words = command.words
    return bool(words) and (words[0] in _SURE or all(re.match(r"[A-Za-z_]\w*\+?=", word) for word in words))


def commands(text: str) -> list[Command]:
    """List every simple command of a script, in order; those of a function are in its ``body``."""
    result: list[Command] = []
    reader = _Reader([_Block("", "", result)])
    for command in _split(text):
        reader.take(command)
    return result


def raw_words(text: str) -> list[str]:
    """Return the words of a text, as they are written."""
    return [word for command in _split(text) for word in command.words]


# --- words and operators ------------------------------------------------------------------------------------------------

_BLANK = re.compile(r"(?:\\\n|[^\S\n])+|#.*")
_REDIRECT = re.compile(r"\d*(?:&>>|&>|>>|>&|>\||<<<|<<-?|<>|<&|<|>)")
_OPERATOR = re.compile(r"&&|\|\||\|&|;;&|;;|;&|[\n;|&()]|\Z")
_UNQUOTED = re.compile(r"\\.?|[^\s\\'\"`$;|&()<>]+|\$", re.DOTALL)
_LONGEST_TEST, _DEEPEST_TEST = 2000, 20
_TEST = re.compile(rf"\[\[\s.{{0,{_LONGEST_TEST}}}?\s\]\](?=[\s;&|)]|\Z)", re.DOTALL)
_SUBSTITUTES = ("<(", ">(")


def _split(text: str) -> Iterator[Command]:
    """Split a script at its operators, into raw words; a command without words tells of its operator alone."""
    at = start = counted = stop = 0
    line, redirect = 1, ""
    words: list[str] = []
    documents: list[str] = []  # the last lines of here documents that begin on the next line
    together = _Together(text)
    while at <= len(text):
        if found := _BLANK.match(text, at):
            at = found.end()
        elif not text.startswith(_SUBSTITUTES, at) and (found := _REDIRECT.match(text, at)):
            redirect, at = found[0], found.end()
        elif not (is_test := _is_test(text, at, words)) and (found := _OPERATOR.match(text, at)):
            raw = text[start : max(stop, start)].strip()
            yield from together.add(Command(line, words, raw, found[0]), start, max(stop, start))
            words, redirect, at = [], "", max(found.end(), at + 1)
            while found[0] == "\n" and documents:
                last = re.compile(rf"^[^\S\n]*{re.escape(documents.pop(0))}[^\S\n]*$", re.MULTILINE).search(text, at)
                at = last.end() + 1 if last else len(text)
            start = at
        else:
            line, counted = (line, counted) if words else (line + text.count("\n", counted, at), at)
            word, at = (text[at : at + is_test], at + is_test) if is_test else _word(text, at)
            if not redirect:
                words.append(word)
            elif redirect in ("<<", "<<-"):
                documents.append(word.strip("'\"\\"))
            redirect, stop = "", at
    yield from together.rest()


_MOST_JOINED = 100


@dataclass
class _Together:
    """Holds commands back until all that ``&&``, ``||``, ``|`` and brackets join to them are read."""

    text: str
    held: list[Command] = field(default_factory=list)
    start: int = 0
    depth: int = 0

    def add(self, command: Command, start: int, end: int) -> list[Command]:
        """Take a command; return those that are complete."""
        if not self.held:
            self.start = start
        joined = self.depth or (bool(self.held) and self.held[-1].end in ("&&", "||"))
        self.held.append(command)
        first = next((w for w in command.words if w not in _KEYWORDS or w in "{}"), "")
        if joined:  # a bracket that begins a line is no part of a list
            self.depth += (first == "{") + (command.end == "(") - (first == "}") - (command.end == ")")
            self.depth = max(self.depth, 0)
        if command.end in ("&&", "||", "|", "|&") or (self.depth and len(self.held) < _MOST_JOINED):
            return []
        return self.rest(end)

    def rest(self, end: int | None = None) -> list[Command]:
        """Return all that are held."""
        found, self.held, self.depth = self.held, [], 0
        if len(found) > 1:
            whole = self.text[self.start : end].strip()
            optional = any(command.end == "||" for command in found)
            for command in found:
                command.joined, command.whole, command.optional = found, whole, optional
        return found


def _is_test(text: str, at: int, words: list[str]) -> int:
    """Return how long the ``[[ test ]]`` or ``(( arithmetic ))`` at ``at`` is; 0 for none."""
    if words and words[-1] not in _KEYWORDS:
        return 0
    if text.startswith("((", at):
        return _closed(text, at)
    found = _TEST.match(text, at) if text.startswith("[[", at) else None
    return len(found[0]) if found else 0


def _closed(text: str, at: int) -> int:
    """Return how long the brackets at ``at`` are."""
    depth = 0
    for found in re.compile(r"[()\n]").finditer(text, at, at + _LONGEST_TEST):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0 and found[0] != "\n":
            return found.end() - at
        if depth > _DEEPEST_TEST or found[0] == "\n":
            return 0
    return 0


def _word(text: str, at: int) -> tuple[str, int]:
    """Return the raw word at ``at``, and where it ends."""
    parts: list[str] = []
    while at < len(text):
        opens = text[at] in "'\"`" or text.startswith(("$(", "${", *_SUBSTITUTES), at)
        if opens or (text[at] == "(" and parts and parts[-1].endswith("=")):
            part = text[at : at + extent(text, at)]
        elif found := _UNQUOTED.match(text, at):
            part = found[0]
        else:
            break
        at += len(part)
        parts.append(part if part != "\\\n" else "")
    return "".join(parts), at


_INSIDE = {"'": ("'", ""), '"': ('"', ""), "`": ("`", "'"), "(": (")", "'\"`("), "{": ("}", "'\"`(")}
"""By the opening character: the closing one, and those that open another part inside."""


def extent(text: str, at: int) -> int:
    """Return how many characters the quoted or bracketed part at ``at`` has; to the end where it is not closed."""
    position = at + (2 if text[at] in "$<>" else 1)
    opener = text[position - 1]
    closing, inside = _INSIDE[opener]
    while position < len(text):
        if text[position] == closing:
            return position + 1 - at
        if opener == "'":
            position += 1
        elif text[position] in inside or text.startswith(("$(", "${"), position):
            position += extent(text, position)
        else:
            position += 2 if text[position] == "\\" else 1
    return len(text) - at
