"""Collect a new job file: values by key path, comments beside them, and what was not converted."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

from launcher.config.check.rules import secrets_set_in
from launcher.config.document.schema import Job
from launcher.config.document.source import dump_yaml
from launcher.config.document.texts import wrong_text
from launcher.config.document.validation import key_name
from launcher.redact import redact

_WIDTH = 110
_LONGEST = 500
_LONG_SECRET = 8
_ORDER = [key_name(f) for f in dataclasses.fields(Job)]


@dataclass
class Draft:
    """The values, comments and notes so far."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    """By key path; items of ``environment.variables``, ``slurm.extra`` and ``sweep`` are in mappings."""
    comments: dict[str, str] = field(default_factory=dict)
    left: dict[str, None] = field(default_factory=dict)
    """What was not converted, a sentence each, in their order."""
    heading: str = "Not converted:"
    secrets: list[str] = field(default_factory=list)
    """Texts that may be nowhere in the job file."""

    def put(self, path: str, value: Any, comment: str = "") -> None:
        """Set a key, with a comment beside it."""
        self.values[path] = value
        if comment:
            self.comments[path] = _one_line(comment)

    def item(self, path: str, key: str, value: Any) -> None:
        """Set one item of a mapping."""
        self.values.setdefault(path, {})[key] = value

    def add(self, path: str, value: Any) -> None:
        """Append to a list, once."""
        items = self.values.setdefault(path, [])
        if value not in items:
            items.append(value)

    def leave(self, sentence: str) -> None:
        """Note what is not converted, once."""
        self.left[_one_line(sentence)] = None

    def text(self) -> str:
        """Return the job file. What no job file may hold is left out, with a note."""
        for path in list(self.values):
            self._settle(path)
        lines = [f"# Made from {_one_line(self.source)} by launcher init. Check it, then: launcher plan FILE"]
        if self.left:
            lines += ["#", f"# {self.heading}"]
            for sentence in self.left:
                lines += textwrap.wrap(
                    redact(sentence, self.secrets),
                    _WIDTH,
                    initial_indent="# - ",
                    subsequent_indent="#   ",
                    break_long_words=False,
                )
        lines.append("")
        for top in _ORDER:
            if top in self.values:
                lines += self._entry(top, top, "")
            elif below := [path for path in self.values if path.startswith(top + ".")]:
                lines.append(f"{top}:")
                lines += [line for path in below for line in self._entry(path, path.removeprefix(top + "."), "  ")]
        return "\n".join(lines) + "\n"

    def _settle(self, path: str) -> None:
        """Take away what a job file may not hold."""
        value = self.values[path]
        if isinstance(value, dict):
            value = {key: item for key, item in value.items() if not self._refused(f"{path}.{key}", item)}
        elif isinstance(value, list):
            value = [item for index, item in enumerate(value) if not self._refused(f"{path}[{index}]", item)]
        elif self._refused(path, value):
            value = "train.py" if path == "script" else None
        if value == self.values[path]:
            return
        if value:
            self.values[path] = value
        else:
            del self.values[path]

    def _refused(self, path: str, value: Any) -> bool:
        """Tell whether a job file may not hold this, and say so."""
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return False
        said = wrong_text(path, text := str(value))
        if text == "???":
            said = "??? stands for a value that must be set"
        elif any(_holds(text, secret) for secret in self.secrets) or _sets_secret(path, text):
            said = "holds a secret; export it before you submit, and list its name under environment.pass"
        if said:
            self.leave(f"{path}: {said}.")
        return bool(said)

    def _entry(self, path: str, key: str, indent: str) -> list[str]:
        """Return the lines of one key: one where everything fits."""
        value, comment = self.values[path], redact(self.comments.get(path, ""), self.secrets)
        line = f"{indent}{key}: {_flow(value)}"
        lines = [line]
        if comment and len(line) + len(comment) <= _WIDTH:
            return [f"{line}  # {comment}"]
        if len(line) > _WIDTH and isinstance(value, dict):
            lines = [f"{indent}{key}:", *(f"{indent}  {_flow(k)}: {_flow(v)}" for k, v in value.items())]
        elif len(line) > _WIDTH and isinstance(value, list):
            lines = [f"{indent}{key}:", *(f"{indent}  - {_flow(item)}" for item in value)]
        return [*(f"{indent}# {part}" for part in textwrap.wrap(comment, _WIDTH - 4)), *lines]


def literal(text: str) -> str:
    """Return text from outside as a value of a job file: ``${x}`` in it is no reference to the job's keys."""
    return re.sub(r"(\\*)\$\{", lambda found: f"{found[1] * 2}\\${{", text)


def _holds(text: str, secret: str) -> bool:
    """Tell whether a secret is in a text; a short one is in many words by chance."""
    return text == secret or (len(secret) >= _LONG_SECRET and secret in text)


def _sets_secret(path: str, value: str) -> bool:
    """Tell whether a text that everybody sees gives a secret a value."""
    if path.startswith("slurm.extra."):
        value = f"{path.rpartition('.')[2]}={value}"
    shown = ("environment.setup[", "environment.container_args[", "slurm.comment", "slurm.extra.")
    return path.startswith(shown) and bool(secrets_set_in(value))


def _one_line(text: str) -> str:
    """Return ``text`` as one line of a comment: nothing in it can end the line."""
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return "".join(c if c.isprintable() else "?" for c in text)


def _flow(value: Any) -> str:
    return dump_yaml(value, flow=True)
