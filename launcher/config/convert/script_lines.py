"""Read the commands of an sbatch script one by one, as the shell would run them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from launcher.config.convert.directives import options, smallest_count
from launcher.config.convert.launch import Launch, find_launch, looks_like_a_launch
from launcher.config.convert.script_draft import ScriptDraft
from launcher.config.convert.script_environment import (
    CONDAS,
    SETUP,
    SILENT,
    assign,
    read_conda,
    read_export,
    read_login,
    read_setup,
    read_unset,
    reads_conda,
)
from launcher.config.convert.shell_script import Command, commands
from launcher.config.convert.shell_variables import Ref, Scope, ShellWord, written_pieces

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=.*", re.DOTALL)
_ELEMENT = re.compile(r"([A-Za-z_]\w*)\[[^\]]*\]\+?=.*", re.DOTALL)
_MOST_CALLS = 8


def read_commands(script: ScriptDraft, found: Sequence[Command], around: Launch) -> None:
    """Read commands in their order, in what is ``around`` them."""
    for command in found:
        _read(script, command, around)


def _read(script: ScriptDraft, command: Command, around: Launch) -> None:
    words = command.words
    if command.kind == "(":
        script.enter_subshell()
    elif command.kind == ")":
        script.leave_subshell()
    elif command.kind == "function":
        script.functions[words[0]] = command.body
    elif command.kind == "for":
        for name in words:
            script.scope.forget(name)
    elif all(_ASSIGNMENT.fullmatch(word) for word in words) and script.done:
        for word in words:
            script.scope.assign(*word.split("=", 1))
    elif all(_ASSIGNMENT.fullmatch(word) for word in words):
        for word in words:
            assign(script, word, command, exported=script.exports_all)
    elif words[0] in script.functions:
        _call(script, command, around)
    elif not _sets_variables(script, command):
        _command(script, command, around)


def _is_silent(words: Sequence[str]) -> bool:
    """Tell whether a command has nothing for a job file."""
    return words[0] in {*SETUP, *SILENT, "export", "unset"} or reads_conda(words) or list(words) == ["env"]


def _sets_variables(script: ScriptDraft, command: Command) -> bool:
    """Follow what only changes the shell's variables; tell whether the command is that."""
    scope, words = script.scope, command.words
    while len(words) > 1 and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]  # IFS=, read A B
    first = words[0]
    if element := _ELEMENT.fullmatch(first):
        scope.forget(element[1])
    elif first in ("read", "mapfile", "readarray", "getopts", "local", "readonly", "declare", "typeset"):
        if first in ("local", "readonly", "declare", "typeset"):
            read_export(script, command)
        else:
            for word in filter(str.isidentifier, words[1:]):
                scope.forget(word)
    elif first == "printf" and words[1:2] == ["-v"] and len(words) > 2:
        scope.forget(words[2])
    elif first == "let" or first.startswith("(("):
        for name in re.findall(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)", " ".join(words)):
            scope.forget(name)
    elif first == ":":
        for word in words[1:]:
            scope.expand(word)  # ${NAME:=value} sets it
            for name in re.findall(r"\$\{(\w+):?=", word) if command.nested else ():
                scope.forget(name)
    else:
        return first.startswith("[[")
    return True


def _call(script: ScriptDraft, command: Command, around: Launch) -> None:
    """Read the commands of a function where it is called."""
    name, scope = command.words[0], script.scope
    script.called.add(name)
    if name in script.calls or len(script.calls) >= _MOST_CALLS:
        return
    given = scope.words(command.words[1:])
    before = {key: scope.known[key] for key in map(str, range(1, 10)) if key in scope.known}, scope.arrays.get("@")
    _set_arguments(scope, given)
    scope.limit.take(sum(len(inner.raw) for inner in script.functions[name]))
    script.calls.append(name)
    read_commands(
        script, [replace(inner, nested=command.nested or inner.nested) for inner in script.functions[name]], around
    )
    script.calls.pop()
    script.scope.known = {k: v for k, v in script.scope.known.items() if not k.isdigit()} | before[0]
    script.scope.arrays.pop("@", None)
    if before[1] is not None:
        script.scope.arrays["@"] = before[1]


def _set_arguments(scope: Scope, given: list[ShellWord]) -> None:
    """Set ``$1``, ``$2``, ... and ``$@`` of a function."""
    scope.known = {key: value for key, value in scope.known.items() if not key.isdigit()}
    scope.known |= {str(index): list(word.pieces) for index, word in enumerate(given[:9], 1)}
    scope.arrays["@"] = given


def _shift(script: ScriptDraft, command: Command) -> None:
    """Follow ``shift`` in a function; in a branch, or by what is not known, its arguments are not known any longer."""
    scope, held = script.scope, script.scope.arrays.get("@")
    if held is None:  # of the job itself, which has none; or not known already
        return
    count = smallest_count("".join(word.text for word in scope.words(command.words[1:])) or "1")
    if command.nested or count is None:
        _set_arguments(scope, [ShellWord((Ref(f"${index}", str(index)),)) for index in range(1, 10)])
        del scope.arrays["@"]
    elif count <= len(held):
        _set_arguments(scope, held[count:])


def _command(script: ScriptDraft, command: Command, around: Launch) -> None:
    first = command.words[0]
    if first == "export" and not script.done:
        read_export(script, command)
    elif first in CONDAS and command.words[1:2] == ["activate"] and not script.done:
        read_conda(script, command.words[2:], command)
    elif first == "unset" and not script.done:
        read_unset(script, command)
    elif first == "set":
        _set(script, command)
    elif first == "shift":
        _shift(script, command)
    elif first in ("cd", "pushd", "popd"):
        _directory(script, command)
    elif first == "eval" and _evaluated(script, command, around):
        return
    elif first in SETUP and not script.done:
        read_setup(script, command)
    elif not _is_silent(command.words):
        _program(script, command, around)


def _set(script: ScriptDraft, command: Command) -> None:
    """Follow ``set -a``, under which every assignment is an export."""
    words = command.words[1:]
    on = any(re.match(r"-\w*a", word) for word in words) or words[:2] == ["-o", "allexport"]
    off = any(re.match(r"\+\w*a", word) for word in words) or words[:2] == ["+o", "allexport"]
    if (on or off) and not script.done:
        script.exports_all = on
        script.add("environment.setup", " ".join(command.words))
        setup = script.values["environment.setup"]
        if off and setup[-2:-1] == ["set -a"] and setup[-1] == "set +a":
            del setup[-2:]  # nothing between them
            if not setup:
                del script.values["environment.setup"]


def _directory(script: ScriptDraft, command: Command) -> None:
    words = script.scope.words(command.words[1:])
    if script.done or (words and words[0].text in (".", "./")):
        return
    shown = script.short(" ".join(command.words))
    target = words[0].pieces if words else script.scope.expand("~")
    if command.nested:
        script.leave(f"{command.place}: {shown}: set code.dir where it is needed.")
    elif command.words[0] == "popd" or target == ("-",) or not script.change_folder(target):
        if command.words[0] == "popd" or target == ("-",):
            script.folder = None
        script.leave(f"{shown}: set code.dir.")


def _evaluated(script: ScriptDraft, command: Command, around: Launch) -> bool:
    """Read what ``eval`` runs, where it is a launch."""
    text = " ".join(word.text for word in script.scope.words(command.words[1:]))
    inner = commands(text)
    if around.depth > 3 or not any(find_launch(script.scope.words(one.words), around) for one in inner if not one.kind):
        return False
    for one in inner:
        one.line, one.nested = command.line, command.nested or one.nested
    read_commands(script, inner, replace(around, depth=around.depth + 1))
    return True


def _program(script: ScriptDraft, command: Command, around: Launch) -> None:
    """Take a program that is started: the training, one beside it, or one to be noted."""
    words = script.scope.words(command.words)
    launch = find_launch(words, around)
    if launch is not None:
        launch.line, launch.nested, launch.folder = command.line, command.nested, script.folder
        if launch.shell is None:
            _take(script, launch)
        else:
            _in_shell(script, command, launch)
    else:
        _note(script, command, words)


def _take(script: ScriptDraft, launch: Launch) -> None:
    if "chdir" in launch.srun:
        place, unknown = script.job_text(written_pieces(launch.srun["chdir"]))
        launch.folder = None if unknown else script.path_from_here(place)
    script.launches.append(launch)
    script.done = script.done or len(script.launches) - 1 == script.chosen


def _in_shell(script: ScriptDraft, command: Command, launch: Launch) -> None:
    """Read the commands of ``bash -c``. If no launch is among them, it is as if they had not been read."""
    count, unclear = len(script.launches), script.unclear
    script.unclear = False
    script.enter_subshell()
    inner = commands(launch.shell or "")
    for one in inner:
        one.line, one.nested = command.line, command.nested or one.nested
    read_commands(script, inner, launch)
    found = len(script.launches) > count
    script.leave_subshell(forget=not found)
    if not found:
        _leave_unclear(script, f"{command.place}: {script.short(command.raw)}", unclear=script.unclear)
    script.unclear = script.unclear or unclear


def _leave_unclear(script: ScriptDraft, shown: str, *, unclear: bool) -> None:
    script.leave(
        f"{shown}: launcher init does not know what this starts; see script and args." if unclear else f"{shown}."
    )


def _note(script: ScriptDraft, command: Command, words: list[ShellWord]) -> None:
    """Note a command that is not converted."""
    if words and words[0].text == "srun":
        words = words[len(words) - len(options([word.text for word in words[1:]], srun=True)[1]) :]
        if words and words[0].text.rsplit("/", 1)[-1] in SILENT:
            return
        told = True
    else:
        told = False
    if not words or (words[0].text == "cat" and ">" not in command.raw) or read_login(script, command):
        return
    shown = f"{command.place}: {script.short(command.raw)}"
    if _only_shows(words):
        return
    if looks_like_a_launch(words) and not _is_inline(words):
        script.unclear = True
        _leave_unclear(script, shown, unclear=True)
    elif script.done:
        script.leave(f"{shown}: it comes after the training; run it when the run has ended.")
    elif command.nested or script.calls or told:
        script.leave(f"{shown}.")
    else:
        script.leave(f"{shown}; if every node needs it before Python starts, add it to environment.setup.")


def _is_inline(words: Sequence[ShellWord]) -> bool:
    """Tell whether it is ``python -c`` or python with a here document."""
    return len(words) > 1 and words[1].text in ("-c", "-") and "python" in words[0].text


def _only_shows(words: Sequence[ShellWord]) -> bool:
    """Tell whether a command only shows a version."""
    return len(words) > 1 and all(word.text in ("-V", "-v", "--version", "-VV", "--help") for word in words[1:])
