"""Collect problems and print each as ``file:line:column: key.path: what is wrong``."""

from __future__ import annotations

from collections.abc import Callable

from launcher.config.document.source import COMMAND_LINE, Origin, Problem, nearest
from launcher.errors import CodeError, ConfigError


class ProblemList:
    """The problems found so far, and where every key was set last."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.origin: dict[str, Origin] = {}
        self.problems: list[Problem] = []

    def add(self, path: str, message: str, place: str = "value", origin: Origin | None = None) -> None:
        """Add one fault at a key path ("" is the whole job)."""
        self.problems.append(Problem(path, message, place, origin))

    def line(self, problem: Problem) -> str:
        """Return the line that a user reads."""
        where = problem.origin or self.nearest(problem.path)
        head = where.at(problem.place)
        text = f"{head}: {problem.path}: {problem.message}" if problem.path else f"{head}: {problem.message}"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

    def nearest(self, path: str) -> Origin:
        """Return where ``path`` was set, or the nearest key above it; the top of the job where none was."""
        top = Origin(self.source) if self.source == COMMAND_LINE else Origin(self.source, 1, 1, 1, 1)
        return nearest(self.origin, path) or top

    def stop_if(self, serious: Callable[[Problem], bool]) -> None:
        """Raise every problem found so far when one of them is serious."""
        if not any(serious(p) for p in self.problems):
            return
        lines = dict.fromkeys(self.line(p) for p in sorted(self.problems, key=self._order))
        raise (CodeError if all(p.code for p in self.problems) else ConfigError)(list(lines))

    def _order(self, problem: Problem) -> tuple[str, int, int]:
        where = problem.origin or self.nearest(problem.path)
        return where.source, where.value_line or where.line, where.value_column or where.column
