"""What reading an sbatch script has found so far: values of the job file, the shell's state, the programs it starts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from launcher.config.check.rules import OWNED_VARIABLES
from launcher.config.convert.amounts import Amounts
from launcher.config.convert.draft import Draft, literal
from launcher.config.convert.launch import Launch
from launcher.config.convert.shell_script import Command
from launcher.config.convert.shell_variables import Piece, Ref, Scope
from launcher.redact import redact_words, secret_name

_SHOWN = 70
_HERE = "${oc.env:PWD}"
_KNOWN_LATER = {
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"), "${run.id}"),
    "SLURM_JOB_NAME": "${run.name}",
    "SLURM_SUBMIT_DIR": _HERE,
}
"""What stands for a variable of SLURM in a job file: known once the run has a directory."""
_CERTAIN = {_HERE, *(f"${{oc.env:{name}}}" for name in ("HOME", "USER", "LOGNAME"))}
_OF_NODES = re.compile(
    r"\d+|HOST\w*|TMPDIR|TMP|TEMP|RANDOM|SRANDOM|SECONDS|EPOCH\w+|LINENO|SHLVL|PPID|E?UID|OLDPWD|BASH\w*|_|OMP_NUM_THREADS|NODE_RANK"
)
"""Variables that are others on the nodes than where ``launcher submit`` runs."""
_ARRAY_ID = "SLURM_ARRAY_TASK_ID"


@dataclass
class ScriptDraft(Draft):
    """A job file, and what reading the script has found so far."""

    scope: Scope = field(default_factory=Scope)
    has: Amounts = field(default_factory=Amounts)
    functions: dict[str, list[Command]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    """The functions that are being read."""
    called: set[str] = field(default_factory=set)
    launches: list[Launch] = field(default_factory=list)
    chosen: int | None = None
    """Which of them is the training, once all have been seen."""
    done: bool = False
    """The training has been read: what comes later is no preparation of it."""
    folder: str | None = ""
    """The working directory, relative to the one of the submission; None: not known."""
    exported: set[str] = field(default_factory=lambda: {"PATH"})
    """Variables that programs get: an assignment changes them there, too."""
    exports_all: bool = False
    """After ``set -a``."""
    rendezvous: list[str] = field(default_factory=list)
    unclear: bool = False
    """A command may be the training, and is not known."""
    renumbered: bool = False
    """The elements of the array have other numbers than the script's."""
    outside: list[dict[str, Any]] = field(default_factory=list)
    """What was known where each subshell began."""

    def enter_subshell(self) -> None:
        """Remember what a subshell cannot change."""
        self.outside.append(
            {
                "scope": self.scope.copy(),
                "folder": self.folder,
                "values": deepcopy(self.values),
                "left": dict(self.left),
            }
        )

    def leave_subshell(self, *, forget: bool = False) -> None:
        """Return to what was known before a subshell, but for what the training inside needs. ``forget``: notes, too."""
        if not self.outside:
            return
        before = self.outside.pop()
        self.scope, self.folder = before["scope"], before["folder"]
        if not self.done:
            self.values = before["values"]
            self.left = before["left"] if forget else self.left

    def short(self, text: str) -> str:
        """Return text of the script for a note, without secrets."""
        text = " ".join(redact_words(text.split()))
        for secret in self.secrets:
            text = text.replace(secret, "...")
        return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."

    def keep_secret(self, value: str | None) -> None:
        """Let a text be nowhere in the job file."""
        if value and len(value) >= 4 and not value.startswith("$"):
            self.secrets.append(value)

    # --- values that are known later ---

    def job_text(self, pieces: Sequence[Piece]) -> tuple[str, list[Ref]]:
        """Return a word as a value of a job file, which no shell reads, and the parts that no job file can name."""
        text, unknown = "", []
        for piece in pieces:
            if isinstance(piece, str):
                text += literal(piece)
            elif (value := self._known_later(piece)) is not None:
                backslashes = len(text) - len(text.rstrip("\\"))
                text += "\\" * backslashes + value
                self._note_doubt(piece, value)
            else:
                unknown.append(piece)
                text += literal(piece.text)
        return text, unknown

    def _note_doubt(self, ref: Ref, value: str) -> None:
        """Note a variable that lines of setup, such as ``module load``, may set on the nodes."""
        if "environment.setup" in self.values and re.fullmatch(r"\$\{oc\.env:\w+\}", value) and value not in _CERTAIN:
            said = "if a line of environment.setup sets it, write the value itself"
            self.leave(f"{self.short(ref.text)} is taken from the environment of launcher submit; {said}.")

    def _known_later(self, ref: Ref) -> str | None:
        found = None if ref.local else re.fullmatch(r"\$(?:(\w+)|\{(\w+)(?::?-([\w./:@%+,=-]*))?\})", ref.text)
        if not found:
            return None
        name, default = found[1] or found[2], found[3]
        if name == _ARRAY_ID and "sweep" in self.values:
            return "${params.array_task_id}"
        if default is None and name in _KNOWN_LATER:
            return _KNOWN_LATER[name]
        if OWNED_VARIABLES.fullmatch(name) or _OF_NODES.fullmatch(name) or secret_name(name):
            return None
        return f"${{oc.env:{name}}}" if default is None else f"${{oc.env:{name},'{default}'}}"

    def means_the_same_on_nodes(self, text: str) -> bool:
        """Tell whether shell text may run on each node: it has no name or argument of the script, no rank, no other number."""
        if self.scope.needs_own(text) or re.search(r"\$\{?(?:[0-9@*#](?!\w)|BASH_SOURCE\b)", text):
            return False
        if self.renumbered and _ARRAY_ID in text:
            return False
        return not re.search(r"SLURM_(?:PROC|LOCAL|NODE)ID", text)

    # --- the working directory ---

    def change_folder(self, target: Sequence[Piece]) -> bool:
        """Follow ``cd``; tell whether the folder is known then."""
        place, unknown = self.job_text(target)
        self.folder = None if unknown else self.path_from_here(place)
        if self.folder is None:
            self.scope.known.pop("PWD", None)
            self.scope.assigned.add("PWD")
        elif self.folder.startswith(("/", "${")):
            self.scope.known["PWD"] = list(target)
        else:
            there = f"/{self.folder}" if self.folder else ""
            self.scope.known["PWD"] = [Ref("$SLURM_SUBMIT_DIR", "SLURM_SUBMIT_DIR"), *([there] if there else [])]
        return self.folder is not None

    def path_from_here(self, path: str) -> str | None:
        """Return a path as a job file has it, relative to the directory of the submission; None: not known."""
        path = posixpath.normpath(path)
        if path == _HERE or path.startswith(_HERE + "/"):
            path = posixpath.normpath(path.removeprefix(_HERE).lstrip("/") or ".")
        elif not path.startswith(("/", "${")):
            if self.folder is None or (path.startswith("..") and "${" in self.folder):
                return None
            path = posixpath.normpath(posixpath.join(self.folder, path))
        return "" if path == "." else path
