"""Convert an sbatch script that starts torchrun, srun, accelerate or python to a job file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from launcher.config.convert.amounts import Amounts, node_range, put_resources, read_amounts, smallest_count
from launcher.config.convert.directives import directives
from launcher.config.convert.draft import Draft
from launcher.config.convert.launch import Launch, find_launch, references
from launcher.config.convert.shell_script import Command, Piece, Ref, Scope, commands, plain, source
from launcher.config.convert.slurm_keys import put_slurm
from launcher.errors import ConfigError
from launcher.redact import secret_name

_RENDEZVOUS = re.compile(
    r"MASTER_(?:ADDR|PORT)|(?:LOCAL_|NODE_|GROUP_)?RANK|(?:LOCAL_)?WORLD_SIZE|NNODES|NODE_RANK|RDZV_\w+|CUDA_VISIBLE_DEVICES"
    r"|SLURM_\w+|HEAD_NODE\w*|head_node\w*"
)
_SILENT = {
    "set", "echo", "printf", "clear", "date", "hostname", "nvidia-smi", "wait", "printenv", "env", "true", ":", "sleep", "pwd",
    "ls", "which", "exit", "unset", "scontrol", "squeue", "trap", "shopt", "local", "return", "sacct", "free", "lscpu", "tee",
}  # fmt: skip
_LONGEST_LINE = 4096
_SETUP = {"module", "ml", "ulimit", "umask", "spack", "eval", "source", "."}


@dataclass
class _Script(Draft):
    """A job file, and what reading the script has found so far."""

    scope: Scope = field(default_factory=Scope)
    has: Amounts = field(default_factory=Amounts)
    launches: list[Launch] = field(default_factory=list)
    rendezvous: list[str] = field(default_factory=list)


def convert_sbatch(text: str, filename: str) -> str:
    """Return the job file for an sbatch script.

    Raises ConfigError when it has neither ``#SBATCH`` nor a training command, or no end of brackets in brackets.
    """
    try:
        return _converted(text.replace("\r\n", "\n"), filename)
    except RecursionError:
        raise ConfigError(f"{filename}: quotes and brackets are nested too deeply") from None


def _converted(text: str, filename: str) -> str:
    if any(len(line) > _LONGEST_LINE for line in text.splitlines() if line.startswith("#SBATCH")):
        raise ConfigError(f"{filename}: an #SBATCH line has more than {_LONGEST_LINE:,} characters")
    given, late = directives(text)
    script = _Script(filename, has=read_amounts(given))
    _know(script)
    for command in commands(text):
        _read(script, command)
    launch = max(script.launches, key=lambda found: found.weight, default=None)
    if launch is None and not given:
        raise ConfigError(f"{filename} is not an sbatch script: it has no #SBATCH line and starts no Python program")
    if launch is not None and script.has.nodes == 1:  # without --nodes the count of torchrun or accelerate holds
        counts = (smallest_count(launch.settings.get(name)) for name in ("nnodes", "num-machines"))
        script.has.nodes = next(filter(None, counts), 1)
        script.has.node_range = node_range(launch.settings.get("nnodes", ""))
    _put_program(script, launch)
    put_resources(script, given, launch, script.has)
    put_slurm(script, given)
    _leave_rest(script, launch, late)
    return script.text()


def _know(script: _Script) -> None:
    """Set SLURM's variables that follow from the directives."""
    has = script.has
    tasks = has.slurm_tasks
    known = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), has.nodes),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), has.nodes * tasks),
        **dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), has.gpus),
        "SLURM_NTASKS_PER_NODE": tasks, "SLURM_GPUS": has.gpus * has.nodes, "SLURM_CPUS_PER_TASK": has.cpus_per_slurm_task,
    }  # fmt: skip
    script.scope.known.update({name: [str(value)] for name, value in known.items() if value})


# --- one command --------------------------------------------------------------------------------------------------------


def _read(script: _Script, command: Command) -> None:
    words = command.words
    if all(re.fullmatch(r"[A-Za-z_]\w*\+?=.*", w, re.DOTALL) for w in words):
        for word in words:
            name, _, value = word.partition("=")
            script.scope.assign(name, value)
        return
    first = words[0]
    if first in ("export", "declare", "typeset"):
        _exports(script, command)
    elif first in ("conda", "mamba", "micromamba") and words[1:2] == ["activate"]:
        _conda(script, words[2:])
    elif first in _SETUP or (first in ("conda", "mamba") and words[1:2] != ["run"]):
        _setup(script, command)
    elif first == "cd":
        _directory(script, words[1:])
    elif found := find_launch(words, script.scope, Launch(line=command.line)):
        script.launches.append(found)
    elif first not in _SILENT:
        hint = "" if command.nested else "; if every node needs it before Python starts, add it to environment.setup"
        script.leave(f"{command.place}: {_short(command.raw)}{hint}.")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 70 else text[:67] + "..."


def _exports(script: _Script, command: Command) -> None:
    for word in command.words[1:]:
        name, equals, raw = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            continue
        if equals:
            script.scope.assign(name, raw)
        _variable(script, name, script.scope.known.get(name, None if equals else [Ref(f"${name}", name)]), command)


def _variable(script: _Script, name: str, value: list[Piece] | None, command: Command) -> None:
    """Convert an exported variable: a value, a secret's name, a line of setup, or one that the launcher sets."""
    if (
        value is None
        or re.match(r"\s*(?:srun|torchrun|accelerate|python3?|deepspeed)\s", source(value))
        or name == "CMD"
    ):
        return  # a part of the launch line, already read
    text = plain(value)
    if _RENDEZVOUS.fullmatch(name):
        script.rendezvous.append(name)
    elif secret_name(name):
        script.add("environment.pass", name)
        script.leave(f"the value of {name}: a secret; export it before you submit.")
    elif command.nested:
        script.leave(f"{command.place}: export {name}.")
    elif name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") and text:
        script.put("distributed.interface", text)
    elif name == "OMP_NUM_THREADS":
        script.leave("OMP_NUM_THREADS: the launcher sets it from resources.cpus_per_task.")
    elif text is not None:
        script.item("environment.variables", name, text)
    elif value == [Ref(f"${name}", name)]:
        script.add("environment.pass", name)
    elif all(not re.match(r"SLURM_(?:PROC|LOCAL|NODE)ID|\d|[@*#]", r.name) for r in references(value)):
        script.add("environment.setup", f"export {name}={_quoted(value)}")
    else:
        script.leave(f"{command.place}: {_short(command.raw)}.")


def _quoted(value: list[Piece]) -> str:
    return '"' + "".join(re.sub(r'(["\\])', r"\\\1", p) if isinstance(p, str) else p.text for p in value) + '"'


def _setup(script: _Script, command: Command) -> None:
    """Convert lines for each node; an activated environment becomes the interpreter where its path is known."""
    words = command.words
    if words[0] in ("source", ".") and len(words) > 1:
        path = script.scope.text(words[1])
        if path.endswith("/bin/activate") and "$" not in path:
            script.put("environment.python", path.removesuffix("activate") + "python")
            return
        if path == "activate" or path.endswith("/bin/activate"):
            _conda(script, words[2:])
            return
        if "conda.sh" in command.raw:
            return
    if words[0] == "eval" and ("conda" in command.raw or "mamba" in command.raw):
        return
    if command.nested:
        script.leave(f"{command.place}: {_short(command.raw)}.")
        return
    line = " ".join(script.scope.text(word) if "$" in word else word for word in words)
    script.add("environment.setup", line.replace("\n", " "))


def _conda(script: _Script, words: list[str]) -> None:
    name = plain(script.scope.expand(words[0])) if words else ""
    if name and "/" in name:
        script.put("environment.python", f"{name}/bin/python")
    else:
        which = f"conda environment {name}" if name else "an environment that the script activates"
        script.leave(f"{which}: activate it before you submit (its interpreter is used), or set environment.python.")


def _directory(script: _Script, words: list[str]) -> None:
    target = plain(script.scope.expand(words[0])) if words else None
    if target and target != ".":
        script.put("code.dir", target)
    elif words and "SLURM_SUBMIT_DIR" not in words[0] and target is None:
        script.leave(f"cd {_short(words[0])}: set code.dir.")


# --- the program --------------------------------------------------------------------------------------------------------


def _put_program(script: _Script, launch: Launch | None) -> None:
    if launch is None:
        script.put("script", "train.py", "the script starts no Python program; write the name of yours here")
        return
    program = source(launch.program)
    if references(launch.program):
        said = f"was {program.replace('$', '')}, known only when the script runs; write its name here"
        script.put("script", "train.py", said)
    elif launch.module:
        script.put("script", f"-m {program}")
    elif program.startswith("/"):
        folder, _, name = program.rpartition("/")
        script.put("script", name)
        script.put("code.dir", folder or "/")
    else:
        script.put("script", program.removeprefix("./"))
    _put_args(script, launch)
    if launch.python and "environment.python" not in script.values:
        script.put("environment.python", launch.python)
    _put_launcher_settings(script, launch)
    _put_container(script, launch)


def _put_args(script: _Script, launch: Launch) -> None:
    args: list[str | int] = []
    for word in script.scope.words(launch.args):
        text = _argument(script, script.scope.expand(word))
        if text is not None:
            args.append(int(text) if re.fullmatch(r"0|[1-9]\d{0,9}", text) else text)
    if args:
        script.put("args", args)


_KNOWN_LATER = {
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"), "${run.id}"),
    "SLURM_JOB_NAME": "${run.name}",
    "SLURM_ARRAY_TASK_ID": "${params.array_task_id}",
    "SLURM_SUBMIT_DIR": "${oc.env:PWD}",
    **{
        name: f"${{oc.env:{name}}}"
        for name in (
            "HOME", "USER", "LOGNAME", "SCRATCH", "WORK", "PROJECT", "DATA", "STORE", "GROUP_HOME", "WORKDIR", "PWD",
        )
    },
}  # fmt: skip
"""What stands for a variable in a job file: known once the run has a directory, or at submission."""


def _argument(script: _Script, pieces: list[Piece]) -> str | None:
    """Write a word as an argument. No shell reads it, so what is only known later is interpolated or noted."""
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece.replace("${", "\\${")
        elif piece.name in _KNOWN_LATER:
            text += _KNOWN_LATER[piece.name]
        elif re.fullmatch(r"\d|[@*#]", piece.name):
            script.leave(f"{piece.text}: a job file takes no arguments; write the value under args.")
            return None
        else:
            script.leave(f"{_short(piece.text)} in args: no shell reads args; write the value itself.")
            text += piece.text.replace("${", "\\${")
    return text


def _put_launcher_settings(script: _Script, launch: Launch) -> None:
    """Convert the settings of torchrun and accelerate other than the rendezvous."""
    restarts = smallest_count(launch.settings.get("max-restarts"))
    if restarts is not None:
        script.put("restart.max_restarts", restarts)
    for name, value in launch.variables.items():
        _variable(script, name, value, Command(launch.line, raw=f"{name}={source(value)}"))
    if launch.kind == "accelerate":
        if precision := launch.settings.get("mixed-precision"):
            script.item("environment.variables", "ACCELERATE_MIXED_PRECISION", precision)
        if "config-file" in launch.settings:
            said = "the program gets its FSDP or DeepSpeed settings only from accelerate launch"
            script.leave(
                f"accelerate's --config_file {launch.settings['config-file']}: {said}; set them in the program."
            )
    if launch.kind == "deepspeed":
        script.leave("the deepspeed command: the program must call deepspeed.init_distributed() and read LOCAL_RANK.")
    for wrapper in launch.wrappers:
        said = "activate that environment before you submit" if wrapper.endswith(" run") else "workers start without it"
        script.leave(f"{wrapper} around the program: {said}.")
    for option in ("cpu-bind", "gpu-bind"):
        if option in launch.srun:
            script.leave(f"srun --{option}: the launcher binds every worker to its own cores and GPU.")


def _put_container(script: _Script, launch: Launch) -> None:
    options = {k: v for k, v in launch.srun.items() if "container" in k}
    if image := options.pop("container-image", ""):
        script.put("environment.container", image)
        args = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    elif launch.container:
        script.put("environment.container", launch.container[0])
        args = launch.container[1:]
    else:
        return
    if args:
        script.put("environment.container_args", args)


def _leave_rest(script: _Script, launch: Launch | None, late: list[str]) -> None:
    if script.rendezvous:
        names = ", ".join(dict.fromkeys(script.rendezvous))
        script.leave(f"{names}: the launcher sets the rank, GPU and rendezvous of every worker.")
    for other in script.launches:
        if other is not launch:
            script.leave(
                f"line {other.line}: a second program, {_short(source(other.program))}; write a job file for it "
                "and submit both: launcher submit job.yaml then other.yaml"
            )
    for line in late:
        script.leave(f"{line}: SLURM ignores directives after the first command.")
