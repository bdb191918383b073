"""Is the named code there? Read with ast; nothing is imported."""

from __future__ import annotations

from pathlib import Path

from launcher.config.schema import Job
from launcher.config.source import Problem

__all__ = ["check"]


def check(job: Job, code_dir: Path) -> list[Problem]:
    """What is wrong with the code a job names."""
    if not code_dir.is_dir():
        return [Problem("code.dir", f"there is no directory {code_dir}", "value", code=True)]
    return []
