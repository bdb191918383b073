"""Find the Python that a job will use, and its packages; torch is found, never imported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.errors import InterpreterError
from launcher.redact import secret_name
from launcher.submission.facts.facts import Interpreter

_NAMES = ("torch", "submitit", "psutil", "numpy", "tensorboard", "mlflow", "wandb", "apprise")
# What starting a Python can need, one of a module (EasyBuild) or a wrapper (pyenv) included: it is a stranger to all else here.
_NEEDED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|LANG|LC_\w+|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|CONDA_DEFAULT_ENV|PYTHON\w*|"
    r"PYENV_\w+|EB(PYTHONPREFIXES|ROOT\w+)|MODULEPATH|LOADEDMODULES|_LMFILES_"
)

# Run by the interpreter in question, so it must be plain old Python; also run in this process when that is the one.
_PROBE = r"""
def sources(folder, entry):
    # the folders that an editable install imports from, whether or not it left a direct_url.json
    import ast, os, re
    with open(os.path.join(folder, entry)) as f:
        lines = f.read().splitlines()
    if entry.endswith(".egg-link"):  # setup.py develop
        lines = lines[:1]
    found = []
    for line in lines:
        finder = re.match(r"import (__editable___\w+_finder)\b", line)
        if finder:  # setuptools, where not a whole folder but single packages are mapped
            with open(os.path.join(folder, finder.group(1) + ".py")) as f:
                mapping = re.search(r"^MAPPING\b[^=\n]*= (\{.*\})$", f.read(), re.M)
            found += [os.path.dirname(path) for path in ast.literal_eval(mapping.group(1)).values()] if mapping else []
        elif os.path.isabs(line):
            found.append(line.strip())
    return sorted(set(path for path in found if os.path.isdir(path)))

def look(names):
    import importlib.util, json, os, sys
    found, versions, editable, exact = {}, {}, [], []
    for name in names:
        try:
            there = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            there = False
        if there:
            found[name] = "?"
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            stem, kind = os.path.splitext(entry)
            if kind == ".egg-link" or kind == ".pth" and entry.startswith("__editable__."):
                name = stem if kind == ".egg-link" else stem.split(".", 1)[1].partition("-")[0]
                try:
                    exact += [[name.replace("_", "-"), source] for source in sources(folder, entry)]
                except (OSError, ValueError, SyntaxError):
                    pass
            if not entry.endswith((".dist-info", ".egg-info")):
                continue
            # importlib.metadata says the same, after importing a mail parser
            name, _, version = entry.rpartition(".")[0].partition("-")
            versions.setdefault(name.replace("_", "-"), version.partition("-")[0])
            try:
                with open(os.path.join(folder, entry, "direct_url.json")) as f:
                    said = json.load(f)
            except (OSError, ValueError):
                continue
            if said.get("dir_info", {}).get("editable") and said.get("url", "").startswith("file://"):
                from urllib.parse import unquote
                source = unquote(said["url"][7:])
                src = os.path.join(source, "src")
                source = src if os.path.isdir(src) else source
                editable.append([entry.split("-")[0].replace("_", "-"), source])
    editable = exact + [each for each in editable if each[0].lower() not in [name.lower() for name, _ in exact]]
    others = {name: version for name, version in versions.items() if name not in names}
    found = {name: versions.get(name) or "?" for name in found}
    return {"version": "%d.%d.%d" % sys.version_info[:3], "packages": {**found, **others}, "editable": editable,
            "prefixes": [sys.prefix, sys.base_prefix], "paths": [path for path in sys.path if os.path.isabs(path)]}
"""


def find_interpreter(
    named: str | None, container: str | None, environ: Mapping[str, str], *, base: Path = Path(), run_named: bool = True
) -> Interpreter:
    """Return the interpreter of the job: the one named, the active environment's, or the launcher's own.

    A path that is named is relative to ``base``; a mere name is looked for on the PATH. The one named is run to ask it for its
    packages, unless ``run_named`` is false. Raises InterpreterError when it is not there.
    """
    if container:
        return Interpreter(path=named or "python3", origin="container", checked=False)
    if named:
        wanted = os.path.expanduser(named)
        path = shutil.which(str(base / wanted) if "/" in wanted else wanted, path=environ.get("PATH"))
        if path is None:
            raise InterpreterError(f"environment.python: {named} was not found or cannot be executed")
        if not run_named:
            return Interpreter(path=os.path.abspath(path), origin="environment.python", checked=False)
        return ask_interpreter(os.path.abspath(path), "environment.python", environ)
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(variable)
        path = f"{prefix}/bin/python"
        if prefix and os.access(path, os.X_OK):
            active = ask_interpreter(path, f"${variable}", environ)
            # conda's base is active in many shells whatever they use: one without torch is not what is meant
            if "torch" in active.packages or variable == "VIRTUAL_ENV":
                return active
    return ask_interpreter(sys.executable, "the launcher's own", environ)


def ask_interpreter(path: str, origin: str, environ: Mapping[str, str]) -> Interpreter:
    """Ask the interpreter at ``path`` for its packages; what goes wrong is its ``error``."""
    if is_this_python(path):  # this process has the same packages
        scope: dict[str, Any] = {}
        exec(_PROBE, scope)  # noqa: S102 (the constant above: one text for this process and for others)
        return _made(path, origin, scope["look"](_NAMES))
    text = f"{_PROBE}\nimport json\nprint(json.dumps(look({_NAMES!r})))"
    try:
        done = subprocess.run(
            [path, "-c", text],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
            env={k: v for k, v in environ.items() if _NEEDED.fullmatch(k) and not secret_name(k)},
        )
        last = done.stdout.splitlines()[-1]  # a wrapper may have printed something before
        return _made(path, origin, json.loads(last))
    except subprocess.TimeoutExpired:
        return Interpreter(path=path, origin=origin, error="it did not answer within 60 s")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        said = (done.stderr.strip() or done.stdout).splitlines()[-1:] if "done" in locals() else [str(error)]
        return Interpreter(path=path, origin=origin, error=said[0] if said else "it printed nothing")


def is_this_python(path: str) -> bool:
    """Tell whether ``path`` is the interpreter that runs this process."""
    mine, other = Path(sys.executable), Path(path)
    return mine.parent == other.parent and mine.resolve() == other.resolve()


def _made(path: str, origin: str, said: dict[str, Any]) -> Interpreter:
    return Interpreter(
        path=path,
        origin=origin,
        version=str(said["version"]),
        packages=dict(said["packages"]),
        editable=tuple((name, source) for name, source in said["editable"]),
        prefixes=tuple(dict.fromkeys(said["prefixes"])),
        paths=tuple(dict.fromkeys(said["paths"])),
    )
