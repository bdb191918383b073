"""Convert what a script prepares: exported variables, modules, environments of Python, secrets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from launcher.config.check.rules import OWNED_VARIABLES
from launcher.config.convert.draft import literal
from launcher.config.convert.script_draft import ScriptDraft
from launcher.config.convert.shell_script import GUARDED, Command
from launcher.config.convert.shell_variables import Piece, Ref, plain, source
from launcher.redact import secret_name

CONDAS = ("conda", "mamba", "micromamba")
SETUP = {"module", "ml", "ulimit", "umask", "spack", "eval", "source", "."}
SILENT = {
    "set", "echo", "printf", "clear", "date", "hostname", "nvidia-smi", "wait", "printenv", "true", ":", "sleep", "pwd", "false",
    "ls", "which", "exit", "scontrol", "squeue", "trap", "shopt", "return", "sacct", "free", "lscpu", "tee", "[", "test", "break",
    "continue", "shift", "let", "uname", "id", "whoami", "df", "nvcc", "lsof", "type", "seq", "sinfo", "rocm-smi", "command",
}  # fmt: skip
"""Commands that only show something, or that only matter to the script itself."""
_CONDA_SILENT = {"deactivate", "info", "list", "config", "init", "--version"}
_RENDEZVOUS = re.compile(
    r"MASTER_(?:ADDR|PORT)|(?:LOCAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|NNODES|RDZV_\w+|CUDA_VISIBLE_DEVICES"
    r"|SLURM_\w+|HEAD_NODE\w*|head_node\w*"
)
_LAUNCHES = re.compile(r"\s*(?:srun|torchrun|accelerate|python3?|deepspeed)\s")


def read_export(script: ScriptDraft, command: Command) -> None:
    """Convert ``export NAME=value``; ``declare`` without -x only assigns."""
    exported = command.words[0] == "export" or any(re.match(r"-\w*x", word) for word in command.words[1:])
    exported = exported and not script.done
    keep_line = False
    if any(re.match(r"-\w*[fn]", word) for word in command.words[1:]) and command.words[0] == "export":
        script.leave(f"{command.place}: {script.short(command.raw)}.")
        return
    for word in command.words[1:]:
        name, equals, _ = word.partition("=")
        if word.startswith("-"):
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*\+?", name):
            keep_line = exported  # such as $(cat .env)
            continue
        assign(script, word if equals else "", command, exported=exported)
        if not equals and exported:
            put_variable(script, name, script.scope.known.get(name, [Ref(f"${name}", name)]), command)
    if keep_line:
        _add_setup(script, command)


def assign(script: ScriptDraft, word: str, command: Command, *, exported: bool) -> None:
    """Take ``NAME=value``. In a branch or loop the variable is not known any longer."""
    name, _, raw = word.partition("=")
    if not name:
        return
    scope, name = script.scope, name.removesuffix("+")
    exported = exported or name in script.exported
    line = f"export {name}="
    shown = None
    if (
        exported
        and name in scope.known
        and any(setup.startswith(line) for setup in script.values.get("environment.setup", []))
    ):
        outside = scope.copy()  # its value so far is set by a line of setup: this one builds on that
        outside.known.pop(name, None)
        outside.assigned.discard(name)
        shown = outside.expand(raw, assigned=True)
    scope.assign(word.partition("=")[0], raw)
    value = scope.known.get(name)
    if value is not None and secret_name(name):  # also of one that is not exported
        script.keep_secret(plain(value))
    if exported and value is not None:
        put_variable(script, name, shown or value, command)
    elif name.endswith("PATH") and value is not None and Ref(f"${name}", name) in value:
        script.leave(
            f"{command.place}: {script.short(word)}: it counts where it is exported before; see environment.setup."
        )
    if command.nested:
        scope.forget(name)


def put_variable(script: ScriptDraft, name: str, value: Sequence[Piece], command: Command) -> None:
    """Convert an exported variable: a value, a secret's name, a line of setup, or one that the launcher sets."""
    script.exported.add(name)
    if _LAUNCHES.match(source(value)) or (name == "CMD" and ".py" in source(value)):
        return  # a part of the launch line, already read
    text = plain(value)
    if _RENDEZVOUS.fullmatch(name):
        script.rendezvous.append(name)
    elif OWNED_VARIABLES.fullmatch(name):
        script.leave(f"{name}: SLURM or the launcher sets variables of such a name; it is left out.")
    elif secret_name(name):
        script.keep_secret(text)
        pass_variable(script, name)
        script.leave(f"the value of {name}: a secret; export it before you submit.")
    elif command.nested:
        script.leave(f"{command.place}: export {name}.")
    elif name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") and text:
        script.put("distributed.interface", text)
    elif name == "OMP_NUM_THREADS":
        script.leave("OMP_NUM_THREADS: the launcher sets it from resources.cpus_per_task.")
    elif text is not None:
        _remove(script, name)
        script.item("environment.variables", name, literal(text))
    elif list(value) == [Ref(f"${name}", name)]:
        pass_variable(script, name)
    else:
        line = f"export {name}={_quoted(value)}"
        local = any(isinstance(piece, Ref) and piece.local for piece in value)
        if local or not script.means_the_same_on_nodes(line):
            script.leave(f"{command.place}: {script.short(command.raw)}.")
        else:
            _remove(script, name, lines=False)
            script.add("environment.setup", literal(line))


def pass_variable(script: ScriptDraft, name: str) -> None:
    """Have a variable copied from the environment of submit, unless the script gives it a value."""
    if name not in script.values.get("environment.variables", {}):
        script.add("environment.pass", name)


def _remove(script: ScriptDraft, name: str, *, lines: bool = True) -> None:
    """Take back what an earlier export of the same name wrote: the last one holds."""
    values = script.values
    for path in ("environment.variables", "environment.pass", "environment.setup"):
        items = values.get(path)
        if isinstance(items, dict):
            items.pop(name, None)
        elif items and (lines or path == "environment.pass"):
            values[path] = [item for item in items if item != name and not item.startswith(f"export {name}=")]
        if path in values and not values[path]:
            del values[path]


def _quoted(value: Sequence[Piece]) -> str:
    parts = (re.sub(r'(["\\$`])', r"\\\1", piece) if isinstance(piece, str) else piece.text for piece in value)
    return f'"{"".join(parts)}"'


def read_unset(script: ScriptDraft, command: Command) -> None:
    """Convert ``unset NAME`` of a variable from outside the script."""
    for name in command.words[1:]:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            continue
        if command.nested:
            script.scope.forget(name)
            continue
        outside = name not in script.scope.assigned
        _remove(script, name)
        script.scope.set(name, [])
        if outside and not OWNED_VARIABLES.fullmatch(name) and not _RENDEZVOUS.fullmatch(name):
            script.add("environment.setup", f"unset {name}")


# --- lines of setup -----------------------------------------------------------------------------------------------------


def read_setup(script: ScriptDraft, command: Command) -> None:
    """Convert lines for each node; an activated environment becomes the interpreter where its path is known."""
    words = command.words
    if words[0] in ("source", ".") and len(words) > 1 and _activates(script, command):
        return
    if words[0] == "eval" and any(name in command.raw for name in ("conda", "mamba")):
        return
    _add_setup(script, command)


def _activates(script: ScriptDraft, command: Command) -> bool:
    """Convert ``source .../bin/activate``; tell whether it is that, or conda's own preparation."""
    words = command.words
    pieces = script.scope.expand(words[1])
    path = source(pieces)
    if path.endswith("/bin/activate"):
        *before, last = pieces
        put_python(script, (*before, str(last).removesuffix("activate") + "python"), script.short(command.raw), command)
    elif path == "activate":
        read_conda(script, words[2:], command)
    return path == "activate" or path.endswith("/bin/activate") or "conda.sh" in command.raw


def put_python(script: ScriptDraft, pieces: Sequence[Piece], said: str, command: Command) -> None:
    """Write the interpreter's path where it is known."""
    path, unknown = script.job_text(pieces)
    known = None if unknown or command.nested else script.path_from_here(path)
    if known:
        script.put("environment.python", known)
    else:
        script.leave(f"{said}: activate it before you submit (its interpreter is used), or set environment.python.")


def read_conda(script: ScriptDraft, words: list[str], command: Command) -> None:
    """Convert ``conda activate``: an environment that is named by its path is known."""
    pieces = script.scope.expand(words[0]) if words else []
    name = plain(pieces) or ""
    which = f"conda environment {name}" if name else "an environment that the script activates"
    if "/" in source(pieces):
        put_python(script, (*pieces, "/bin/python"), which, command)
    else:
        script.leave(f"{which}: activate it before you submit (its interpreter is used), or set environment.python.")


def reads_conda(words: Sequence[str]) -> bool:
    """Tell whether a command of conda's changes nothing that a job needs."""
    return words[0] in CONDAS and len(words) > 1 and words[1] in _CONDA_SILENT


def _add_setup(script: ScriptDraft, command: Command) -> None:
    """Keep a line for each node, as it is written; with what ``||`` or a condition joins to it."""
    whole = command.conditional and _only_prepares(command)
    raw = command.whole if whole else "" if command.nested else " ".join(command.words)
    line = " ".join(script.scope.fill(raw).replace("\\\n", " ").split("\n")).strip()
    line = _from_here(script, line)
    if not line or "\n" in raw.replace("\\\n", "") or not script.means_the_same_on_nodes(line):
        script.leave(f"{command.place}: {script.short(command.raw)}.")
    else:
        script.add("environment.setup", literal(line))


def _only_prepares(command: Command) -> bool:
    """Tell whether all that is joined to a command may run on each node."""
    allowed = {*SETUP, *SILENT}
    return len(command.joined) <= 20 and all(
        other.nested in ("", GUARDED)
        and (not other.words or other.words[0] in allowed or other.words[0].startswith("[["))
        for other in command.joined
    )


def _from_here(script: ScriptDraft, line: str) -> str:
    """Return a line with a file it sources named from the directory of the submission; "": that is not known."""
    if not script.folder and script.folder is not None:
        return line
    if not re.search(r"(?:^|[\s;&|{])(?:source|\.) ", line) or re.match(r"(?:source|\.) [\"']?[/$~`]", line):
        return line
    found = re.fullmatch(r"(source|\.) ([\"']?)([\w./+-]+)\2( .*)?", line)
    if not found or script.folder is None or "$" in script.folder:
        return ""
    path = posixpath.normpath(posixpath.join(script.folder, found[3]))
    return f"{found[1]} {found[2]}{path}{found[2]}{found[4] or ''}"


def read_login(script: ScriptDraft, command: Command) -> bool:
    """Note ``wandb login KEY`` and its kin, without the key; tell whether the command is one."""
    words = [word.text for word in script.scope.words(command.words)]
    tool = words[0].rsplit("/", 1)[-1] if words else ""
    name = {"wandb": "WANDB_API_KEY", "huggingface-cli": "HF_TOKEN", "hf": "HF_TOKEN"}.get(tool, "")
    if not name or "login" not in words:
        return False
    for word in words[words.index("login") + 1 :]:
        if len(word) >= 8 and not re.match(r"--[a-z-]+$|https?:", word):
            script.keep_secret(word.partition("=")[2] if word.startswith("-") else word)
    pass_variable(script, name)
    script.leave(f"{command.place}: {tool} login: export {name} before you submit.")
    return True
