"""Keep what runs, logs and error texts hold from steering the terminal: its control characters are shown, not sent."""

from __future__ import annotations

import codecs
import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import click

from launcher.errors import LauncherError

# C0 without tab and line feed, DEL, C1; what turns the direction of text around; line and paragraph separators.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[{_CONTROLS}]")
_OWN_STYLE = re.compile(rf"(\x1b\[(?:0|1|3[1-7])m)|[{_CONTROLS}]")
"""Bold and colours are what the verbs themselves print."""
_LOG_STYLE = re.compile(rf"(\x1b\[[0-9;:]{{0,64}}m|\r)|[{_CONTROLS}]")
_SHOWN = 300
_HALF = re.compile(r"\x1b(?:\[[0-9;:]{0,64})?\Z")
"""What may be the beginning of a colour."""


def harmless(text: str, instead: str | None = None) -> str:
    r"""Return ``text`` with its control characters written out, ``\x1b`` and the like, or with ``instead`` in their places.

    Tabs and line feeds stay.
    """
    return _UNSAFE.sub(_written_out if instead is None else instead, text)


def _written_out(found: re.Match[str]) -> str:
    allowed = found.re.groups and found[1]
    return found[0] if allowed else found[0].encode("unicode_escape").decode()


class HarmlessStream:
    """A text stream that sends on what is `harmless`, and the verbs' own bold and colours."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        if self.encoding.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968"):
            self.encoding = "utf-8"  # click would write around a stream in ASCII; what that lacks becomes ?
        self._pending = ""
        """The beginning of what was written since the last flush."""

    def write(self, text: str) -> int:
        """Write a text. Raises LauncherError, with the text, where the file system refuses it: what a verb did stays done."""
        self._pending = (self._pending + text)[:_SHOWN]
        with self._telling():
            self.stream.write(_OWN_STYLE.sub(_written_out, text))
        return len(text)

    def flush(self) -> None:
        """Write what is held back. Raises as `write`."""
        with self._telling():
            self.stream.flush()
        self._pending = ""

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            lost, self._pending = self._pending.strip(), ""
            said = f"; it was: {lost}" if lost else ""
            raise LauncherError(
                f"the output cannot be written ({(error.strerror or str(error)).lower()}){said}"
            ) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def real_output() -> TextIO:
    """Return standard output itself, for what moves the cursor on purpose."""
    return sys.stdout.stream if isinstance(sys.stdout, HarmlessStream) else sys.stdout


class LogStream:
    """Prints the bytes of logs: as they are into a pipe or a file, to a terminal with colours and carriage returns alone."""

    def __init__(self) -> None:
        self._shown = sys.stdout.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._rest = ""

    def write(self, block: bytes) -> None:
        """Print what was read of a log."""
        if not self._shown:
            click.echo(block, nl=False)
            return
        text = self._rest + self._decoder.decode(block)
        self._rest = half[0] if (half := _HALF.search(text)) else ""
        self._send(text[: len(text) - len(self._rest)])

    def close(self) -> None:
        """Print what was held back, and end the colours that a log has left on."""
        if self._shown:
            self._send(self._rest + self._decoder.decode(b"", final=True) + "\x1b[0m")

    def _send(self, text: str) -> None:
        said = _LOG_STYLE.sub(_written_out, text)
        click.echo(said.encode(getattr(sys.stdout, "encoding", None) or "utf-8", "replace"), nl=False)
