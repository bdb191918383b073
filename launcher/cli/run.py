"""Run a job here, in the foreground, to its end."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from launcher.cli._options import JobCommand, job_arguments, load
from launcher.errors import RunFailedError

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths
    from launcher.submission.backends.local import Foreground


@click.command(cls=JobCommand)
@job_arguments
def command(words: tuple[str, ...], module: str | None) -> None:
    """Run a job on this machine, in the foreground, to its end; every node is simulated.

    The first Ctrl-C saves and stops, the second stops, the third kills; closing the terminal saves and stops. The exit
    code tells how the run ended.
    """
    from launcher.cli._follow import finish
    from launcher.cli._submitting import submit_job
    from launcher.cli.submit import shown
    from launcher.submission.backends.local import Foreground

    one = submit_job(load(words, module), "local", foreground=True)
    agents = Foreground(one.plan)
    try:
        with _Stop(one.paths, agents) as stop:
            for line in one.plan.summary:
                click.echo(line)
            click.echo(f"{one.plan.spec.id} runs here; Ctrl-C saves and stops. Logs: {shown(one.plan.run_dir)}/logs")
            agents.start()
            outcome = stop.follow()
        agents.wait()
    finally:
        agents.kill()
    finish(one.paths, outcome)


class _Stop:
    """What each Ctrl-C does, and what TERM and the terminal's end do.

    A handler only notes what was asked for, and `follow` does it between two looks: a KeyboardInterrupt strikes
    anywhere, and inside a class that is being defined by an import it is a RuntimeError before Python 3.12.
    """

    def __init__(self, paths: RunPaths, agents: Foreground) -> None:
        self._paths = paths
        self._agents = agents
        self._count = 0
        self._asked: deque[Callable[[], None]] = deque()
        self._stopped = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Stop:
        """`launcher cancel` sends this process TERM: handed on. A terminal that closes sends HUP: save and stop."""
        handlers = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._end}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means that the run is to go on
            handlers[signal.SIGHUP] = self._hang_up
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def follow(self) -> dict[str, Any]:
        """Until the run has an outcome; one that was stopped before its leader could write any gets it from here."""
        from launcher.cli._follow import follow
        from launcher.run.state import read_outcome
        from launcher.submission.folder.requests import bury

        try:
            return follow(self._paths, self._agents.alive, heed=self._heed)
        except RunFailedError:
            if not self._stopped:
                raise
        bury([self._paths], "it was killed" if self._count > 2 else "it was stopped before it had started")
        return read_outcome(self._paths.outcome) or {}

    def _heed(self) -> None:
        while self._asked:
            self._stopped = True
            self._asked.popleft()()

    def _interrupt(self, *_: object) -> None:
        self._count += 1
        self._asked.append((self._save_aloud, self._cancel, self._kill)[min(self._count, 3) - 1])

    def _end(self, *_: object) -> None:
        self._asked.append(self._agents.terminate)

    def _hang_up(self, *_: object) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # the terminal is gone: a word to it would end this command with an error
            os.dup2(null, stream)
        self._asked.append(self._save)

    def _save_aloud(self) -> None:
        click.echo("\nsaving and stopping; Ctrl-C again stops without waiting", err=True)
        self._save()

    def _save(self) -> None:
        from launcher.submission.folder.requests import request_stop

        request_stop(self._paths, save=True)
        self._agents.terminate()

    def _cancel(self) -> None:
        click.echo("\nstopping", err=True)
        self._paths.request.unlink(missing_ok=True)
        self._agents.terminate()

    def _kill(self) -> None:
        click.echo("\nkilling", err=True)
        self._agents.kill()
