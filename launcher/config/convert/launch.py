"""Read the command of a script that starts training: its program, number of workers and arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from launcher.config.convert.directives import options
from launcher.config.convert.shell_script import Piece, Ref, Scope, commands, plain, source

_TORCHRUN_VALUES = {
    "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts", "monitor-interval",
    "start-method", "role", "log-dir", "r", "redirects", "t", "tee", "node-rank", "master-addr", "master-port", "local-addr",
    "local-ranks-filter", "logs-specs", "numa-binding",
}  # fmt: skip
_ACCELERATE_VALUES = {
    "config-file", "num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port", "mixed-precision",
    "num-cpu-threads-per-process", "rdzv-backend", "rdzv-conf", "max-restarts", "monitor-interval", "tee", "role", "log-dir",
    "dynamo-backend", "gpu-ids", "same-network", "gradient-accumulation-steps", "deepspeed-config-file", "zero-stage",
    "deepspeed-hostfile", "deepspeed-multinode-launcher",
}  # fmt: skip
_DEEPSPEED_VALUES = {
    "hostfile", "num-nodes", "num-gpus", "master-port", "master-addr", "launcher", "include", "exclude"
}  # fmt: skip
_CONTAINERS = {"singularity", "apptainer"}
_CONTAINER_VALUES = {
    "B", "bind", "H", "home", "W", "workdir", "pwd", "env", "env-file", "overlay", "o", "S", "scratch", "network", "app"
}  # fmt: skip
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")


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
    variables: dict[str, str] = field(default_factory=dict)
    wrappers: list[str] = field(default_factory=list)
    """Programs around it that are not converted."""
    under_srun: bool = False

    @property
    def weight(self) -> int:
        """How surely this is the training: larger is surer."""
        order = {"torchrun": 3, "accelerate": 3, "deepspeed": 3, "srun": 2}
        return order.get(self.kind, 0) + self.under_srun


def find_launch(raw: list[str], scope: Scope, line: int, depth: int = 0) -> Launch | None:
    """Find the launch in a command; None when it starts no Python program."""
    launch = Launch(line=line)
    words = scope.words(raw)
    for _ in range(12):
        if not words:
            return None
        step = _peel(words, launch, scope, depth)
        if step is None:
            return None
        if isinstance(step, Launch):
            return step
        words = step
    return None


def _peel(words: list[str], launch: Launch, scope: Scope, depth: int) -> list[str] | Launch | None:
    """Take one program off around the training; the launch itself when it is reached; None for other commands."""
    head = plain(scope.expand(words[0])) or ""
    name, rest = head.rsplit("/", 1)[-1], words[1:]
    if assigned := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL):
        launch.variables[assigned.group(1)] = source(scope.expand(assigned.group(2)))
        return rest
    if name == "srun":
        return _srun(rest, launch, scope)
    if name in ("bash", "sh") and rest and rest[0] in ("-c", "-lc", "-ec"):
        return _shell(rest[1] if len(rest) > 1 else "", launch, scope, depth)
    if name in _CONTAINERS:
        return _container(rest, launch, scope)
    if name in ("torchrun", "accelerate", "deepspeed") or _PYTHON.fullmatch(head):
        return _python_tool(name, head, rest, launch, scope)
    return _wrapper(name, rest, launch)


def _srun(words: list[str], launch: Launch, scope: Scope) -> list[str]:
    found, rest = options([source(scope.expand(w)) if w.startswith("-") else w for w in words])
    launch.srun.update({k: source(scope.expand(v)) if "$" in v or '"' in v else v for k, v in found.items()})
    launch.under_srun = True
    launch.kind = "srun"
    return rest


def _shell(script: str, launch: Launch, scope: Scope, depth: int) -> Launch | None:
    """The launch inside ``bash -c "..."``."""
    if depth > 3:
        return None
    inner = Scope(dict(scope.known), dict(scope.arrays))
    for command in commands(source(scope.expand(script))):
        found = find_launch(command.words, inner, launch.line, depth + 1)
        if found:
            found.srun, found.container = {**launch.srun, **found.srun}, found.container or launch.container
            found.wrappers = launch.wrappers + found.wrappers
            found.under_srun = launch.under_srun or found.under_srun
            found.kind = "srun" if found.kind == "python" and found.under_srun else found.kind
            return found
    return None


def _container(words: list[str], launch: Launch, scope: Scope) -> list[str] | None:
    if not words or words[0] not in ("exec", "run"):
        return None
    words, given = words[1:], list[str]()
    while words and words[0].startswith("-"):
        given.append(words[0])
        takes = words[0].lstrip("-") in _CONTAINER_VALUES
        words = words[1:]
        if takes and words:
            given.append(words[0])
            words = words[1:]
    if not words:
        return None
    launch.container = [source(scope.expand(w)) for w in (words[0], *given)]
    return words[1:]


def _wrapper(name: str, rest: list[str], launch: Launch) -> list[str] | None:
    """Programs that run another one."""
    if name == "env":
        return rest[1:] if rest[:1] == ["-i"] else rest
    if name in ("uv", "poetry", "pdm", "pipenv") and rest[:1] == ["run"]:
        launch.wrappers.append(f"{name} run")
        return ["python", *rest[1:]] if rest[1:] and rest[1].endswith(".py") else rest[1:]
    if name in ("conda", "mamba", "micromamba") and rest[:1] == ["run"]:
        launch.wrappers.append(f"{name} run")
        found, after = options(rest[1:])
        return after if found else rest[1:]
    if name in ("numactl", "nice", "ionice", "stdbuf", "nsys", "nvprof", "ncu", "dcgmi", "catchsegv", "shifter"):
        launch.wrappers.append(name)
        after = [w for w in rest if w != "profile"] if name == "nsys" else rest
        return options(after)[1] if after[:1] and after[0].startswith("-") else after
    if name in ("mpirun", "mpiexec", "orterun"):
        launch.wrappers.append(name)
        launch.kind = "srun"
        return options(rest)[1]
    if name == "timeout" and rest:
        return rest[1:]
    return None


def _python_tool(name: str, head: str, words: list[str], launch: Launch, scope: Scope) -> Launch | None:
    if _PYTHON.fullmatch(head):
        launch.python = head if "/" in head else ""
        words = _past_flags(words)
        if words[:1] == ["-m"] and len(words) > 1:
            module = plain(scope.expand(words[1])) or ""
            if module in ("torch.distributed.run", "torch.distributed.launch"):
                return _tool("torchrun", words[2:], _TORCHRUN_VALUES, launch, scope)
            if module == "accelerate.commands.launch":
                return _tool("accelerate", words[2:], _ACCELERATE_VALUES, launch, scope)
            launch.module = True
            words = words[1:]
        return _program(words, launch, scope)
    if name == "accelerate":
        return _tool(name, words[1:], _ACCELERATE_VALUES, launch, scope) if words[:1] == ["launch"] else None
    return _tool(name, words, _TORCHRUN_VALUES if name == "torchrun" else _DEEPSPEED_VALUES, launch, scope)


def _past_flags(words: list[str]) -> list[str]:
    """Without the interpreter's own flags (``-u``, ``-X dev``)."""
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        words = words[2:] if words[0] in ("-X", "-W") else words[1:]
    return words


def _tool(kind: str, words: list[str], takes: set[str], launch: Launch, scope: Scope) -> Launch | None:
    """torchrun, accelerate and deepspeed: their options, then the program."""
    launch.kind = kind
    while words and words[0].startswith("-"):
        name, equals, value = words[0].lstrip("-").partition("=")
        name, words = name.replace("_", "-"), words[1:]
        if name in ("m", "module"):
            launch.module = True
            continue
        if not equals and name in takes and words:
            value, words = words[0], words[1:]
        launch.settings[name] = source(scope.expand(value))
    return _program(words, launch, scope)


def _program(words: list[str], launch: Launch, scope: Scope) -> Launch | None:
    if not words or words[0] in ("-c", "-"):
        return None
    launch.program = scope.expand(words[0])
    launch.args = words[1:]
    return launch


def references(pieces: list[Piece]) -> list[Ref]:
    """List the parts of a word that are only known when the script runs."""
    return [p for p in pieces if isinstance(p, Ref)]
