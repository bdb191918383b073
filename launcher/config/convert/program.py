"""Convert the program of a script: its file, its arguments, its interpreter and its container."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from launcher.config.convert.directives import smallest_count
from launcher.config.convert.draft import literal
from launcher.config.convert.launch import Launch
from launcher.config.convert.script_draft import ScriptDraft
from launcher.config.convert.script_environment import pass_variable, put_variable
from launcher.config.convert.shell_script import Command
from launcher.config.convert.shell_variables import Piece, Ref, ShellWord, source, written_pieces
from launcher.config.convert.starters import notes_on_settings
from launcher.config.convert.step_options import put_export
from launcher.redact import redact_words, secret_name


def put_program(script: ScriptDraft, launch: Launch | None, folder: str | None) -> None:
    """Write what the training runs; ``folder`` is the working directory where no launch tells it."""
    if launch is None:
        said = (
            "launcher init does not know what the script starts"
            if script.unclear
            else "the script starts no Python program"
        )
        script.put("script", "train.py", f"{said}; write the name of yours here")
        _put_folder(script, folder)
        return
    _put_script(script, launch)
    _put_args(script, launch)
    if launch.python and "environment.python" not in script.values:
        _put_interpreter(script, launch.python)
    _put_settings(script, launch)
    _put_container(script, launch)


def _put_folder(script: ScriptDraft, folder: str | None) -> None:
    if folder:
        script.put("code.dir", folder)


def _put_script(script: ScriptDraft, launch: Launch) -> None:
    text, unknown = script.job_text(launch.program)
    folder = launch.folder
    if unknown:
        shown = source(launch.program).replace("$", "")
        script.put("script", "train.py", f"was {shown}, known only when the script runs; write its name here")
        _put_folder(script, folder)
        return
    if launch.module:
        script.put("script", f"-m {text}")
        _put_folder(script, folder)
        return
    script.folder = folder
    path = script.path_from_here(text)
    if path is None:  # below a folder that is not known
        script.put("script", posixpath.normpath(text).lstrip("./"))
        return
    within = _below(path, folder or "")
    if within is not None:
        script.put("script", within)
        _put_folder(script, folder)
        return
    script.put("script", posixpath.basename(path))
    script.put("code.dir", posixpath.dirname(path) or ".")
    if folder or not path.startswith(("/", "${")):
        script.leave(f"the program ran in {folder or 'the directory of the submission'}; here it runs in code.dir.")


def _below(path: str, folder: str) -> str | None:
    """Return a path relative to a folder that holds it; None when it lies elsewhere."""
    if not folder:
        return None if path.startswith(("/", "${", "..")) else path
    return path[len(folder.rstrip("/")) + 1 :] if path.startswith(folder.rstrip("/") + "/") else None


def _put_interpreter(script: ScriptDraft, python: Sequence[Piece]) -> None:
    text, unknown = script.job_text(python)
    path = None if unknown else script.path_from_here(text)
    if path:
        script.put("environment.python", path)
    else:
        script.leave(f"the interpreter {source(python)}: set environment.python.")


# --- arguments ----------------------------------------------------------------------------------------------------------


def _put_args(script: ScriptDraft, launch: Launch) -> None:
    args: list[str | int] = []
    for word in _without_secrets(script, launch.args):
        text, unknown = script.job_text(word.pieces)
        for ref in unknown:
            _note_argument(script, ref)
        if any(_is_argument(ref) for ref in unknown):
            continue
        if word.pattern:
            said = "no shell reads args, so nothing is put in place of the pattern; write the words themselves"
            script.leave(f"{script.short(word.text)} in args: {said}.")
        args.append(int(text) if re.fullmatch(r"0|[1-9]\d{0,9}", text) else text)
    if args:
        script.put("args", args)


def _is_argument(ref: Ref) -> bool:
    return bool(re.match(r"\$\{?[1-9@*#]", ref.text))


def _note_argument(script: ScriptDraft, ref: Ref) -> None:
    shown = script.short(ref.text)
    if _is_argument(ref):
        script.leave(f"{shown}: a job file takes no arguments; write the value under args.")
    elif ref.local:
        script.leave(f"{shown} in args: the script sets it while it runs; write the value itself.")
    else:
        script.leave(f"{shown} in args: no shell reads args; write the value itself.")


def _without_secrets(script: ScriptDraft, words: list[ShellWord]) -> list[ShellWord]:
    """Leave out secrets, each with its option."""
    texts = [word.text for word in words]
    result: list[ShellWord] = []
    for word, text, shown in zip(words, texts, redact_words(texts), strict=True):
        if text == shown:
            result.append(word)
            continue
        name, _, value = text.partition("=")
        before = result[-1].text if result else ""
        if before.startswith("-") and secret_name(before.lstrip("-")):
            result.pop()
            name, value = before, text
        elif not secret_name(name.lstrip("-+~")):
            name, value = "a secret", text
        script.keep_secret(value)
        for found in re.findall(r"\$\{?([A-Za-z_]\w*)", value):
            pass_variable(script, found)
        script.leave(f"{name} in args: a secret; have the program read it from its environment, by environment.pass.")
    return result


# --- what is around it --------------------------------------------------------------------------------------------------


def _put_settings(script: ScriptDraft, launch: Launch) -> None:
    """Convert what is around the program: variables, settings of torchrun and accelerate, other programs."""
    restarts = smallest_count(launch.settings.get("max-restarts"))
    if restarts is not None:
        script.put("restart.max_restarts", restarts)
    for name, value in launch.variables.items():
        put_variable(script, name, value, Command(launch.line, raw=f"{name}={source(value)}"))
    if text := launch.srun.get("export"):
        put_export(script, "srun --export", text, lambda name, value: _put_given(script, name, value))
    for name in launch.unset:
        script.add("environment.setup", f"unset {name}")
    if launch.kind == "accelerate" and (precision := launch.settings.get("mixed-precision")):
        script.item("environment.variables", "ACCELERATE_MIXED_PRECISION", literal(precision))
    for sentence in (
        notes_on_settings(launch.kind, launch.settings) if launch.settings or launch.kind == "deepspeed" else ()
    ):
        script.leave(sentence)
    if launch.ranks_by_argument:
        script.leave("torch.distributed.launch gave the program --local-rank; here it must read LOCAL_RANK.")
    for wrapper in launch.wrappers:
        said = "activate that environment before you submit" if wrapper.endswith(" run") else "workers start without it"
        script.leave(f"{wrapper} around the program: {said}.")
    if launch.components:
        script.leave("srun starts more after a lone ':'; only the first component is here.")
    if launch.nested:
        place = Command(launch.line, nested=launch.nested).place
        script.leave(f"{place}: the training is started there; here it is started once, always.")


def _put_given(script: ScriptDraft, name: str, value: str | None) -> None:
    """Convert a variable of srun's ``--export``, which the shell has read."""
    pieces = [Ref(f"${name}", name)] if value is None else written_pieces(value)
    put_variable(script, name, pieces, Command(0, raw=f"srun --export={name}"))


def _put_container(script: ScriptDraft, launch: Launch) -> None:
    options = {k: v for k, v in launch.srun.items() if "container" in k}
    if image := options.pop("container-image", ""):
        texts = [image, *(f"--{name}={value}" if value else f"--{name}" for name, value in options.items())]
        words = [tuple(written_pieces(text)) for text in texts]
    else:
        words = [word.pieces for word in launch.container]
    made = []
    for word in words:
        text, unknown = script.job_text(word)
        for ref in unknown:
            script.leave(f"{script.short(ref.text)} in the container's arguments: write the value itself.")
        made.append(text)
    if made:
        script.put("environment.container", made[0])
    if made[1:]:
        script.put("environment.container_args", made[1:])
