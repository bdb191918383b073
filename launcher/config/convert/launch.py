"""Read the command of a script that starts training: its program, number of workers and arguments."""

from __future__ import annotations

import re
from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain

from launcher.config.convert.directives import options
from launcher.config.convert.shell_script import Piece, Ref, Scope, commands, plain

_VALUES = {
    "torchrun": {
        "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts", "monitor-interval",
        "start-method", "role", "log-dir", "r", "redirects", "t", "tee", "node-rank", "master-addr", "master-port", "local-addr",
        "local-ranks-filter", "logs-specs", "numa-binding",
    },
    "accelerate": {
        "config-file", "num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port",
        "mixed-precision", "num-cpu-threads-per-process", "rdzv-backend", "rdzv-conf", "max-restarts", "monitor-interval", "tee",
        "role", "log-dir", "dynamo-backend", "gpu-ids", "same-network", "gradient-accumulation-steps", "deepspeed-config-file",
        "zero-stage", "deepspeed-hostfile", "deepspeed-multinode-launcher",
    },
    "deepspeed": {"hostfile", "num-nodes", "num-gpus", "master-port", "master-addr", "launcher", "include", "exclude"},
}  # fmt: skip
"""Options that take a value, of each program that starts workers."""
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
_CONDAS = ("conda", "mamba", "micromamba")
_CONTAINER_VALUES = {
    "B", "bind", "H", "home", "W", "workdir", "pwd", "env", "env-file", "overlay", "o", "S", "scratch", "network", "app"
}  # fmt: skip


@dataclass
class Launch:
    """One command that starts a Python program."""

    kind: str = "python"
    """The program that starts the workers: torchrun, accelerate, deepspeed, srun or python."""
    line: int = 0
    program: list[Piece] = field(default_factory=list)
    module: bool = False
    args: list[str] = field(default_factory=list)
    """Raw words."""
    srun: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    """Options of torchrun, accelerate or deepspeed, dashes for underscores."""
    python: str = ""
    """The interpreter's path, where it is named by one."""
    container: list[str] = field(default_factory=list)
    """Image, then the arguments of the container runtime."""
    variables: dict[str, list[Piece]] = field(default_factory=dict)
    wrappers: list[str] = field(default_factory=list)
    """Programs around it that are not converted."""
    under_srun: bool = False

    @property
    def weight(self) -> int:
        """How surely this is the training: larger is surer."""
        return {"srun": 2, "python": 0}.get(self.kind, 3) + self.under_srun


def find_launch(raw: list[str], scope: Scope, launch: Launch, depth: int = 0) -> Launch | None:
    """Complete ``launch`` from a command; None when it starts no Python program."""
    words = scope.words(raw)
    while words:
        step = _peel(words, launch, scope, depth)
        if not isinstance(step, list):
            return step
        words = step
    return None


def _peel(words: list[str], launch: Launch, scope: Scope, depth: int) -> list[str] | Launch | None:
    """Take one program off around the training; the launch itself when it is reached; None for other commands."""
    head = plain(scope.expand(words[0])) or ""
    name, rest = head.rsplit("/", 1)[-1], words[1:]
    if assigned := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL):
        launch.variables[assigned[1]] = scope.expand(assigned[2])
        return rest
    if name == "srun":
        return _srun(rest, launch, scope)
    if name in ("bash", "sh") and rest[:1] in (["-c"], ["-lc"], ["-ec"]):
        return _shell(rest[1:2], launch, scope, depth)
    if name in ("singularity", "apptainer"):
        return _container(rest, launch, scope)
    if name in _VALUES or re.fullmatch(r"(?:.*/)?python[\d.]*", head):
        return _python_tool(name, head, rest, launch, scope)
    return _wrapper(name, rest, launch)


def _srun(words: list[str], launch: Launch, scope: Scope) -> list[str]:
    found, rest = options([scope.text(w) if w.startswith("-") else w for w in words])
    launch.srun.update({name: scope.text(value) for name, value in found.items()})
    launch.under_srun = True
    launch.kind = "srun"
    return rest


def _shell(script: list[str], launch: Launch, scope: Scope, depth: int) -> Launch | None:
    """Find the launch inside ``bash -c "..."``."""
    if depth > 3 or not script:
        return None
    inner = Scope(dict(scope.known), dict(scope.arrays), scope.room)
    found = (
        find_launch(command.words, inner, deepcopy(launch), depth + 1) for command in commands(scope.text(script[0]))
    )
    return next(filter(None, found), None)


def _container(words: list[str], launch: Launch, scope: Scope) -> list[str] | None:
    given, rest = _leading(words[1:], _CONTAINER_VALUES)
    if words[:1] not in (["exec"], ["run"]) or not rest:
        return None
    launch.container = [scope.text(word) for word in (rest[0], *chain(*given))]
    return rest[1:]


def _leading(
    words: list[str], valued: Collection[str], last: Collection[str] = ()
) -> tuple[list[list[str]], list[str]]:
    """Split off leading options, each with its value where it is a word of its own; those in ``last`` end them."""
    found = []
    while words and words[0].startswith("-") and words[0] not in last:
        size = 2 if words[0].lstrip("-").replace("_", "-") in valued else 1
        found.append(words[:size])
        words = words[size:]
    return found, words


def _wrapper(name: str, rest: list[str], launch: Launch) -> list[str] | None:
    """Take off a program that runs another one."""
    if name == "env":
        return rest[1:] if rest[:1] == ["-i"] else rest
    if name in (*_CONDAS, "uv", "poetry", "pdm", "pipenv") and rest[:1] == ["run"]:
        launch.wrappers.append(f"{name} run")
        if name in _CONDAS:
            return options(rest[1:])[1]
        return ["python", *rest[1:]] if rest[1:] and rest[1].endswith(".py") else rest[1:]
    if name in ("numactl", "nice", "ionice", "stdbuf", "nsys", "nvprof", "ncu", "dcgmi", "catchsegv", "shifter"):
        launch.wrappers.append(name)
        return options([word for word in rest if name != "nsys" or word != "profile"])[1]
    if name in ("mpirun", "mpiexec", "orterun"):
        launch.wrappers.append(name)
        launch.kind = "srun"
        return options(rest)[1]
    if name == "timeout" and rest:
        return rest[1:]
    return None


def _python_tool(name: str, head: str, words: list[str], launch: Launch, scope: Scope) -> Launch | None:
    """Read python, torchrun, accelerate or deepspeed: its options, then the program."""
    tool = name if name in _VALUES else ""
    if name == "accelerate":
        if words[:1] != ["launch"]:
            return None
        words = words[1:]
    elif not tool:
        launch.python = head if "/" in head else ""
        _, words = _leading(words, ("X", "W"), ("-m", "-c", "-"))
        if words[:1] == ["-m"] and len(words) > 1:
            tool = _MODULES.get(scope.text(words[1]), "")
            launch.module = not tool
            words = words[2 if tool else 1 :]
    if tool:
        launch.kind = tool
        given, words = _leading(words, _VALUES[tool])
        for option, *value in given:
            key, _, joined = option.lstrip("-").partition("=")
            if key in ("m", "module"):
                launch.module = True
            else:
                launch.settings[key.replace("_", "-")] = scope.text(value[0] if value else joined)
    if not words or words[0] in ("-c", "-"):
        return None
    launch.program, launch.args = scope.expand(words[0]), words[1:]
    return launch


def references(pieces: list[Piece]) -> list[Ref]:
    """List the parts of a word that are only known when the script runs."""
    return [p for p in pieces if isinstance(p, Ref)]
