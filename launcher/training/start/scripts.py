"""Runs a script or module as python itself would: a real ``__main__``, default signals, no trace of the launcher."""

from __future__ import annotations

import atexit
import builtins
import importlib.util
import io
import os
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.errors import CodeError
from launcher.redact import redact
from launcher.run.message_lines import Channel
from launcher.run.messages import WorkerFailure, WorkerOver, WorkerPhase
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work
from launcher.training.process import failure, signals
from launcher.training.process.place import WorkerPlace
from launcher.training.process.rehearsal import Rehearsed
from launcher.training.step.stopping import StopTraining


def run_script(place: WorkerPlace) -> int:
    """Run the script or module of ``place`` to its end; returns the exit code that python would give."""
    spec, channel = place.spec, place.channel
    channel.send(WorkerPhase(name="script"))
    rank_pid = os.getpid()
    if place.paths is not None:
        for name, value in tracker_variables(spec, place.paths, place.rank).items():
            os.environ.setdefault(name, value)
    if spec.deterministic or spec.stop_after_steps is not None:
        from launcher.training.ddp.randomness import make_deterministic, seed_all

        if spec.deterministic:
            make_deterministic()
        if spec.stop_after_steps is not None:
            seed_all(spec.seed)  # a rehearsal compares two runs: a script that seeds nothing must not make them differ
    signals.as_in_python()
    try:
        program = _load(spec.work, spec.code_dir)
    except BaseException as error:
        return _failed(channel, error)
    try:
        code = _guarded(channel, program)
    except BaseException as error:
        # A signal handler's, while another was told: torch's raises whenever a loader worker dies.
        code = _failed(channel, error) or 1  # a handler that ends the script has not made it succeed
    if os.getpid() != rank_pid:
        return code  # a child that the script forked has come to its end here
    try:
        _finish(code)
    except BaseException as error:
        code = code or _failed(channel, error)
    # What is left is Python's own shutdown, which the agent gives some seconds.
    channel.send(WorkerOver(code=code & 0xFF))
    return code


def _guarded(channel: Channel, program: Callable[[], None]) -> int:
    """Run the program; returns its exit code after reporting a failure."""
    try:
        program()
        return 0
    except SystemExit as error:
        code = failure.exit_code(error)
        said = "" if isinstance(error.code, (int, type(None))) else str(error.code)
        if said:
            print(said, file=sys.stderr)
        if code:  # told now: exit functions may wait for ranks that are still at work
            message = redact(said, channel.secrets, most=failure.MOST_CHARS)
            channel.send(WorkerFailure(step=_steps_done(), kind="exit", exit_code=code & 0xFF, message=message))
        return code
    except (Rehearsed, StopTraining):
        return 0
    except BaseException as error:
        return _failed(channel, error)


def _failed(channel: Channel, error: BaseException) -> int:
    failure.report(channel, error, _steps_done())
    return failure.exit_code(error)


def _finish(code: int) -> None:
    """Do what python does at its end: wait for threads, run exit functions.

    In between, an attached worker that has done its work saves and reports it.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    worker = _attached()
    if worker is not None and code == 0:
        worker.close()
    if worker is not None:
        signals.let_loaders_end()
    atexit._run_exitfuncs()


def _attached() -> Any:
    """Return the `Worker` that the script asked for; None when it asked for none."""
    attach = sys.modules.get("launcher.training.attach")
    return None if attach is None else attach.attached()


def _steps_done() -> int | None:
    worker = _attached()
    return None if worker is None else int(worker.steps_done)


def _load(work: Work, code_dir: str) -> Callable[[], None]:
    """Compile the program and set ``__main__``, ``sys.argv`` and ``sys.path`` as python does. Raises CodeError."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins  # exec would put in the dict
    code = _script(main, work, code_dir) if work.kind == "script" else _module(main, work)
    # Pickle looks classes up in __main__; processes started by "spawn" know it as __mp_main__.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    return lambda: exec(code, main.__dict__)  # noqa: S102 (the user's script: what is to be run)


def _script(main: types.ModuleType, work: Work, code_dir: str) -> types.CodeType:
    path = Path(work.target)
    try:
        with io.open_code(str(path.absolute())) as file:
            source = file.read()
    except OSError as error:
        raise CodeError(f"script {work.target} cannot be read: {error.strerror}") from None
    sys.argv = [work.target, *work.args]
    root = code_dir or os.getcwd()  # as it is on the path: a link's name is not what the kernel calls the folder
    if root in sys.path and root not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        # python has only the script's own folder there: a folder `datasets` beside it in the code must not hide the package.
        sys.path.remove(root)
        sys.path.append(root)
    _first_on_path(str(path.resolve().parent))
    main.__file__ = str(path.absolute())  # absolute since Python 3.9; argv[0] stays as given
    # Not under this module's `from __future__ import annotations`: dataclasses of the user's would have texts for types.
    return compile(source, main.__file__, "exec", dont_inherit=True)


def _module(main: types.ModuleType, work: Work) -> types.CodeType:
    _first_on_path(os.getcwd())
    spec = importlib.util.find_spec(work.target)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{work.target}.__main__")
    if spec is None or spec.loader is None:
        raise CodeError(f"no module named {work.target} (it or its __main__ cannot be run)")
    code: types.CodeType | None = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]
    if code is None:
        raise CodeError(f"module {work.target} has no Python code to run")
    main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
    main.__file__ = spec.origin
    sys.argv = [spec.origin or work.target, *work.args]
    return code


def _first_on_path(folder: str) -> None:
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)


def tracker_variables(spec: RunSpec, paths: RunPaths, rank: int) -> dict[str, str]:
    """Return the variables by which a script's own trackers continue the same tracker run in every round and attempt. Pure.

    Rank 0 has the run's id; another rank that starts a Weights & Biases run of its own continues one of its own. The id
    of an MLflow run, which the server chooses, comes with the round's environment.
    """
    own_id = spec.id if rank == 0 else f"{spec.id}-rank{rank}"
    wandb, mlflow = spec.trackers.get("wandb") or {}, spec.trackers.get("mlflow") or {}
    values = {
        "WANDB_RUN_ID": own_id,
        "WANDB_RESUME": "allow",
        "WANDB_NAME": own_id,
        "TENSORBOARD_LOGGING_DIR": str(paths.trackers / "tensorboard"),
        "WANDB_PROJECT": wandb.get("project"),
        "WANDB_MODE": wandb.get("mode"),
        "WANDB_DIR": str(paths.trackers) if "wandb" in spec.trackers else None,  # made by the leader for trackers alone
        "MLFLOW_TRACKING_URI": mlflow.get("uri"),
        "MLFLOW_EXPERIMENT_NAME": mlflow.get("experiment"),
    }
    return {name: value for name, value in values.items() if value}
