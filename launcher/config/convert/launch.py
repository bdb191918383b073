"""Read the command of a script that starts training: its program, number of workers and arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from launcher.config.convert.directives import options
from launcher.config.convert.shell_variables import Piece, ShellWord
from launcher.config.convert.starters import STARTERS, STARTING_MODULES

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_PYTHON_HARMLESS = ("-u", "-B", "-s", "-q")
_WHICH = re.compile(r"(?:\$\(|`)(?:which|command -v|type -p) ([\w./-]+)(?:\)|`)")
_SHELLS = ("bash", "sh", "zsh", "dash")
_CONTAINERS = ("singularity", "apptainer")
_CONTAINER_FLAGS = {
    "nv", "nvccli", "rocm", "cleanenv", "e", "contain", "c", "containall", "C", "fakeroot", "f", "writable", "w", "writable-tmpfs",
    "no-home", "no-privs", "keep-privs", "allow-setuid", "net", "userns", "u", "uts", "pid", "p", "ipc", "i", "compat", "sharens",
    "no-init", "no-umask", "no-eval", "no-https", "nohttps", "disable-cache", "unsquash", "underlay", "no-pid", "no-compat",
    "debug", "d", "quiet", "q", "verbose", "v", "silent", "s",
}  # fmt: skip
_RUNNERS = {
    "conda": {"no-capture-output", "live-stream", "v", "dev", "debug-wrapper-scripts"},
    "uv": {
        "no-sync", "frozen", "locked", "isolated", "active", "all-extras", "all-groups", "no-dev", "dev", "no-project", "offline", "quiet",
        "q", "verbose", "v", "exact", "no-cache", "n", "script", "s", "no-config", "refresh",
    },
    "poetry": set(), "pdm": set(), "pipenv": set(), "pixi": {"frozen", "locked"}, "hatch": set(), "rye": set(),
}  # fmt: skip
"""Programs whose ``run`` starts another one in an environment, and their options without a value."""
_RUNNERS |= dict.fromkeys(("mamba", "micromamba"), _RUNNERS["conda"])
_AROUND = {
    "numactl": {"l", "localalloc", "a", "all"}, "nice": set(), "ionice": {"t"}, "stdbuf": set(), "taskset": {"a", "c", "p"},
    "setsid": {"w", "f", "c"}, "unbuffer": {"p"}, "timeout": {"foreground", "preserve-status", "v", "verbose"}, "time": {"p", "v", "a"},
    "nsys": set(), "nvprof": set(), "ncu": {"f", "force-overwrite"}, "dcgmi": set(), "catchsegv": set(), "shifter": set(),
    "pyinstrument": set(), "perf": set(), "strace": {"f"}, "chrt": set(), "hwloc-bind": set(),
}  # fmt: skip
"""Programs that run another one and change it otherwise, and their options without a value."""
_MPI = ("mpirun", "mpiexec", "orterun", "prun")
_MPI_FLAGS = {
    "oversubscribe",
    "allow-run-as-root",
    "tag-output",
    "v",
    "verbose",
    "l",
    "prepend-rank",
    "report-bindings",
    "q",
    "quiet",
}
_TWO_VALUES = {"mca", "gmca", "genv", "env"}
_STARTING = {"horovodrun", "docker", "podman", "enroot", "ray", "lightning", "composer", "colossalai", "torchx"}
"""Programs that may start a training, and are not read."""
_DEEPEST, _MOST_AROUND = 3, 40


@dataclass
class Launch:
    """One command that starts a Python program."""

    kind: str = "python"
    """The program that starts the workers: torchrun, accelerate, deepspeed, srun or python."""
    line: int = 0
    nested: str = ""
    """Where it is, if it runs perhaps or more than once."""
    program: tuple[Piece, ...] = ()
    module: bool = False
    args: list[ShellWord] = field(default_factory=list)
    """Its arguments as they are where it is started."""
    srun: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    """Options of torchrun, accelerate or deepspeed, dashes for underscores."""
    python: tuple[Piece, ...] = ()
    """The interpreter's path, where it is named by one."""
    container: list[ShellWord] = field(default_factory=list)
    """Image, then the arguments of the container runtime."""
    variables: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    """Variables that are taken away."""
    wrappers: list[str] = field(default_factory=list)
    """Programs around it that are not converted."""
    under_srun: bool = False
    components: bool = False
    """srun starts more than this, after a lone ``:``."""
    shell: str | None = None
    """The commands of ``bash -c``, to be read before anything else is known."""
    depth: int = 0
    """How many shells it is inside."""
    ranks_by_argument: bool = False
    """torch.distributed.launch gives each worker ``--local-rank``."""
    folder: str | None = ""
    """Where it is started; None: not known."""

    @property
    def weight(self) -> int:
        """How surely this is the training: larger is surer."""
        alone = self.kind == "srun" and self.srun.get("ntasks") == "1"
        return {"srun": 0 if alone else 2, "python": 0}.get(self.kind, 3) + self.under_srun


def find_launch(words: Sequence[ShellWord], around: Launch) -> Launch | None:
    """Return what a command starts, in what is ``around`` it; None when that is no Python program and no shell."""
    launch = replace(
        around,
        srun=dict(around.srun),
        settings={},
        container=list(around.container),
        variables=dict(around.variables),
        unset=list(around.unset),
        wrappers=list(around.wrappers),
        shell=None,
    )
    rest: list[ShellWord] | None = list(words)
    for _ in range(_MOST_AROUND):
        rest = _peel(rest, launch) if rest else None
        if launch.program or launch.shell is not None:
            return launch
    return None


def looks_like_a_launch(words: Sequence[ShellWord]) -> bool:
    """Tell whether a command may start the training in a way that is not known here."""
    texts = [word.text for word in words]
    first = texts[0].rsplit("/", 1)[-1] if texts else ""
    starts = first in ("srun", *_MPI, *_SHELLS, *_STARTING) or first.endswith(".sh") or first.startswith("$")
    return starts or any(text.endswith(".py") or bool(_PYTHON.fullmatch(text)) or text in STARTERS for text in texts)


def assignment(word: ShellWord) -> tuple[str, tuple[Piece, ...]] | None:
    """Return the name and the value of ``NAME=value``."""
    first = word.pieces[0] if word.pieces else ""
    found = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", first, re.DOTALL) if isinstance(first, str) else None
    return (found[1], tuple(p for p in (found[2], *word.pieces[1:]) if p != "")) if found else None


def _peel(words: list[ShellWord], launch: Launch) -> list[ShellWord] | None:
    """Take one program off around the training; the program itself when it is reached; None for other commands."""
    head = _WHICH.sub(r"\1", words[0].text)
    name, rest = head.rsplit("/", 1)[-1], words[1:]
    if found := assignment(words[0]):
        launch.variables[found[0]] = found[1]
        return rest
    if name == "srun":
        return _srun(rest, launch)
    if name in _SHELLS:
        return _shell(rest, launch)
    if name in _CONTAINERS:
        return _container(rest, launch)
    if name in STARTERS:
        return _starter(name, words[0] if "/" in head else None, rest, launch)
    if _PYTHON.fullmatch(head):
        return _python(words[0] if "/" in head else None, rest, launch)
    if name.endswith(".py"):
        launch.program, launch.args = words[0].pieces, rest
        return None
    return _wrapper(name, rest, launch)


def _srun(words: list[ShellWord], launch: Launch) -> list[ShellWord]:
    texts = [word.text for word in words]
    if ":" in texts:
        launch.components = True
        texts = texts[: texts.index(":")]
    found, rest = options(texts, srun=True)
    launch.srun.update(found)
    launch.under_srun = True
    launch.kind = "srun"
    return words[len(texts) - len(rest) : len(texts)]


def _shell(words: list[ShellWord], launch: Launch) -> list[ShellWord] | None:
    """Take the commands of ``bash -c "..."``; a script in another file is not read."""
    while words and re.fullmatch(r"-[a-z]+|--(?:login|noprofile|norc)", words[0].text):
        option = words[0].text
        is_text = not option.startswith("--") and "c" in option
        words = words[1 + (option.endswith("o") and not option.startswith("--")) :]  # -euo pipefail
        if is_text:
            if words and launch.depth < _DEEPEST:
                launch.shell = words[0].text
                launch.depth += 1
            return None
    return None


def _container(words: list[ShellWord], launch: Launch) -> list[ShellWord] | None:
    _, words = leading(words, _CONTAINER_FLAGS)
    if not words or words[0].text not in ("exec", "run"):
        return None
    given, rest = leading(words[1:], _CONTAINER_FLAGS)
    if not rest:
        return None
    launch.container = [rest[0], *(word for option in given for word in option)]
    return rest[1:]


def leading(words: list[ShellWord], flags: set[str] | frozenset[str]) -> tuple[list[list[ShellWord]], list[ShellWord]]:
    """Split off leading options, each with its value: those not in ``flags`` take one, joined or the next word."""
    found: list[list[ShellWord]] = []
    while words and words[0].text.startswith("-") and words[0].text != "-":
        text = words[0].text
        if text == "--":
            return found, words[1:]
        name = text.lstrip("-").replace("_", "-")
        alone = "=" in text or name in flags
        size = 1 if alone or (not text.startswith("--") and text[1:2] not in flags and _joined_value(text)) else 2
        found.append(words[:size])
        words = words[size:]
    return found, words


def _joined_value(text: str) -> bool:
    """Tell whether a short option such as ``-n10`` or ``-oL`` holds its value."""
    return bool(re.fullmatch(r"-[A-Za-z][\d:].*|-\d+|-oL|-eL|-[ioe][L0]", text))


def _starter(name: str, path: ShellWord | None, words: list[ShellWord], launch: Launch) -> list[ShellWord] | None:
    """Read torchrun, accelerate or deepspeed: its options, then the program."""
    if name == "accelerate":
        if not words or words[0].text != "launch":
            return None
        words = words[1:]
    if path is not None:
        launch.python = _beside(path, "python")
    launch.kind = name
    given, words = leading(words, STARTERS[name].flags)
    for option, *value in given:
        key, _, joined = option.text.lstrip("-").partition("=")
        key = key.replace("_", "-")
        if key in ("m", "module"):
            launch.module = True
        else:
            launch.settings[key] = value[0].text if value else joined
    if launch.settings.pop("no-python", None) is not None:
        inner = find_launch(words, replace(launch, kind="python"))
        if inner is None or inner.kind != "python" or inner.shell is not None:
            return None
        launch.program, launch.args, launch.module, launch.python = (
            inner.program,
            inner.args,
            inner.module,
            inner.python,
        )
        return None
    _program(words, launch)
    return None


def _beside(path: ShellWord, name: str) -> tuple[Piece, ...]:
    """Return the path of another file in the same folder."""
    *before, last = path.pieces
    return (*before, f"{last.rpartition('/')[0]}/{name}") if isinstance(last, str) else ()


def _python(path: ShellWord | None, words: list[ShellWord], launch: Launch) -> list[ShellWord] | None:
    launch.python = path.pieces if path is not None else launch.python
    while words and re.fullmatch(r"-[^mc-].*|--[a-z].*", words[0].text):
        if words[0].text not in _PYTHON_HARMLESS:
            launch.wrappers.append(f"python {words[0].text}")
        words = words[2 if words[0].text in ("-X", "-W", "--check-hash-based-pycs") else 1 :]
    text = words[0].text if words else ""
    if text == "-m" and len(words) > 1:
        starter = STARTING_MODULES.get(words[1].text, "")
        if starter:
            rest = [ShellWord(("launch",)), *words[2:]] if starter == "accelerate" else words[2:]
            result = _starter(starter, None, rest, launch)
            launch.ranks_by_argument = words[1].text.endswith(".launch") and "use-env" not in launch.settings
            launch.ranks_by_argument &= starter == "torchrun"
            return result
        launch.module = True
        _program(words[1:], launch)
        return None
    if found := _WHICH.fullmatch(text):
        return _starter(found[1], None, words[1:], launch) if found[1] in STARTERS else None
    if text.rsplit("/", 1)[-1] in STARTERS:
        return _starter(text.rsplit("/", 1)[-1], words[0] if "/" in text else None, words[1:], launch)
    if not text.startswith("-"):
        _program(words, launch)
    return None


def _program(words: list[ShellWord], launch: Launch) -> None:
    if words:
        launch.program, launch.args = words[0].pieces, words[1:]


# --- what runs another program ------------------------------------------------------------------------------------------


def _wrapper(name: str, rest: list[ShellWord], launch: Launch) -> list[ShellWord] | None:
    """Take off a program that runs another one."""
    if name == "env":
        return _env(rest, launch)
    if name in _RUNNERS and rest and rest[0].text == "run":
        return _runner(name, rest[1:], launch)
    if name in _MPI:
        return _mpi(name, rest, launch)
    if name not in _AROUND:
        return None
    launch.wrappers.append(name)
    while rest and rest[0].text in ("profile", "launch", "start", "record", "stat") and name in ("nsys", "perf"):
        rest = rest[1:]
    _, rest = _options(rest, _AROUND[name])
    takes_word = name in ("timeout", "taskset", "chrt", "hwloc-bind") and rest and not _is_program(rest[0].text)
    return rest[1:] if takes_word else rest


def _env(rest: list[ShellWord], launch: Launch) -> list[ShellWord]:
    given, rest = _options(rest, {"i", "ignore-environment", "0", "null", "v", "debug"})
    for name, value in given:
        if name in ("u", "unset"):
            launch.unset.append(value)
        elif name not in ("S", "split-string", "v", "debug"):
            launch.wrappers.append(f"env -{name}")
    return rest


def _runner(name: str, rest: list[ShellWord], launch: Launch) -> list[ShellWord]:
    given, rest = _options(rest, _RUNNERS[name], stop=("m", "module"))
    launch.wrappers.append(f"{name} run")
    prefix = next((value for option, value in given if option in ("p", "prefix") and "$" not in value), "")
    if prefix and name in ("conda", "mamba", "micromamba"):
        launch.python = (f"{prefix.rstrip('/')}/bin/python",)
        launch.wrappers.pop()
    return [ShellWord(("python",)), *rest] if rest and rest[0].text in ("-m", "--module") else rest


def _mpi(name: str, rest: list[ShellWord], launch: Launch) -> list[ShellWord]:
    given, rest = _options(rest, _MPI_FLAGS, long_by_one_dash=True)
    launch.wrappers.append(name)
    launch.kind = "srun"
    for option, value in given:
        if option in ("np", "n", "c"):
            launch.srun["ntasks"] = value
        elif option in ("npernode", "N", "ppn"):
            launch.srun["ntasks-per-node"] = value
        elif option == "x":
            variable, equals, text = value.partition("=")
            if equals:
                launch.variables[variable] = (text,) if text else ()
    return rest


def _options(
    words: list[ShellWord], flags: set[str], *, stop: Sequence[str] = (), long_by_one_dash: bool = False
) -> tuple[list[tuple[str, str]], list[ShellWord]]:
    """Split off options of a program that runs another: what looks like a program is no value of theirs."""
    found = []
    while words and words[0].text.startswith("-") and words[0].text != "-":
        text = words[0].text
        name, equals, value = text.lstrip("-").partition("=")
        if name in stop:
            break
        words = words[1:]
        if text == "--":
            break
        if not text.startswith("--") and len(name) > 1 and not long_by_one_dash and not equals:
            name, value = name[:1], name[1:]
        elif not equals and name not in flags and words and _is_value(name, words[0].text):
            value, words = words[0].text, words[1:]
            words = words[1:] if name in _TWO_VALUES else words
        found.append((name, value))
    return found, words


def _is_value(option: str, text: str) -> bool:
    """Tell whether a word is the value of an option; the name of an environment may be that of a program."""
    return option in ("n", "name", "p", "prefix") or not (text.startswith("-") or _is_program(text))


def _is_program(text: str) -> bool:
    """Tell whether a word is a program that this module knows."""
    name = _WHICH.sub(r"\1", text).rsplit("/", 1)[-1]
    known = {"srun", "env", *_SHELLS, *_CONTAINERS, *STARTERS, *_RUNNERS, *_AROUND, *_MPI}
    return name in known or name.endswith(".py") or bool(_PYTHON.fullmatch(name))
