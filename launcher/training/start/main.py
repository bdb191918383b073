"""The worker's entry point: called in a process forked from one that has torch, or in a new one (``start_method: spawn``)."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.process
import os
import signal
import sys
from typing import Any, NoReturn

from launcher.run.children import exit_now

_MOST_CONTEXTS = 20


def main() -> NoReturn:
    """Run this worker's work and end the process: 0 when it finished or stopped as told, else the script's own code or 1."""
    code, is_script = 1, False
    try:
        code, is_script = _run()
    except BaseException as error:  # the launcher's own, or a signal handler's while another was told
        _report(error)
    if is_script:  # it ends as Python does: what it left open is written and closed
        sys.exit(code)
    exit_now(code)


def _run() -> tuple[int, bool]:
    """Return the exit code, and whether it is a script's."""
    # SIGURG is ignored by default and free in torch and SLURM: the agent asks for every thread's stack with it.
    faulthandler.register(signal.SIGURG, all_threads=True, chain=False)
    from launcher.run.messages import WorkerHello
    from launcher.training.process.place import here

    where = here()
    where.channel.send(WorkerHello(pid=os.getpid()))
    forget_parent()
    if where.spec.code_dir:
        os.chdir(where.spec.code_dir)
        if where.spec.code_dir not in sys.path:
            sys.path.insert(0, where.spec.code_dir)
    if where.spec.work.kind in ("script", "module"):
        from launcher.training.start.scripts import run_script

        return run_script(where), True
    from launcher.training.loop import run_work

    return run_work(where), False


def _report(error: BaseException) -> None:
    try:
        from launcher.training.process import failure
        from launcher.training.process.place import here

        failure.report(here().channel, error, None)
    except BaseException:  # it cannot be described: an attribute of it is not what it should be
        with contextlib.suppress(BaseException):
            import traceback

            traceback.print_exc()
        with contextlib.suppress(BaseException):
            from launcher.run.messages import WorkerFailure

            for _ in range(_MOST_CONTEXTS):  # the first is the user's
                error = error.__context__ or error
            here().channel.send(WorkerFailure(kind="exception", exception=type(error).__name__))


def forget_parent() -> None:
    """Reset multiprocessing in this process: not a child, the default start method, no fork server of the agent's.

    A worker forked from a fork server inherits it as start method: every data-loader process would then import torch anew.
    """
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type]
    me: Any = multiprocessing.process.current_process()
    me._name = "MainProcess"
    me._config = {key: value for key, value in me._config.items() if key in ("authkey", "semprefix")}
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    module: Any = multiprocessing.forkserver
    module._forkserver = server = module.ForkServer()
    for name in ("ensure_running", "get_inherited_fds", "connect_to_new_process", "set_forkserver_preload"):
        setattr(module, name, getattr(server, name))
