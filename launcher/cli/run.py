"""Run a job here, in the foreground, to its end."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import click

from launcher.cli._options import JobCommand, job_arguments, load
from launcher.errors import RunFailedError

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths
    from launcher.submission.local_backend import Foreground


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
    from launcher.submission.local_backend import Foreground

    one = submit_job(load(words, module), "local", foreground=True)
    for line in one.plan.summary:
        click.echo(line)
    click.echo(f"{one.plan.spec.id} runs here; Ctrl-C saves and stops. Logs: {shown(one.plan.run_dir)}/logs")
    agents = Foreground(one.plan)
    stop = _Stop(one.paths, agents)
    try:
        outcome = stop.start_and_follow()
        agents.wait()
    finally:
        agents.kill()
    finish(one.paths, outcome)


class _Stop:
    """What each Ctrl-C does, and what TERM and the terminal's end do."""

    def __init__(self, paths: RunPaths, agents: Foreground) -> None:
        self._paths = paths
        self._agents = agents
        self._count = 0
        self._asked = False

    def hear(self) -> None:
        """`launcher cancel` sends this process TERM: hand it on. A terminal that closes sends HUP: save and stop."""
        signal.signal(signal.SIGTERM, self._cancel)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means that the run is to go on
            signal.signal(signal.SIGHUP, self._hang_up)

    def start_and_follow(self) -> dict[str, Any]:
        """Until the run has an outcome; one that was stopped before its leader could write any gets it from here."""
        from launcher.run.state import read_outcome
        from launcher.submission.requests import bury

        try:
            self._agents.start()
            self.hear()
            return self._follow()
        except KeyboardInterrupt:  # before anything was followed
            self._asked = True
            self._agents.kill()
        except RunFailedError:
            if not self._asked:
                raise
        bury([self._paths], "it was killed" if self._count > 2 else "it was stopped before it had started")
        return read_outcome(self._paths.outcome) or {}

    def _follow(self) -> dict[str, Any]:
        from launcher.cli._follow import follow

        while True:
            try:
                return follow(self._paths, self._agents.alive, on_interrupt=self.next)
            except KeyboardInterrupt:  # between two looks of its own
                self.next()

    def next(self) -> None:
        """The next stage of stopping."""
        self._count += 1
        if self._count == 1:
            click.echo("\nsaving and stopping; Ctrl-C again stops without waiting", err=True)
            self._save()
        elif self._count == 2:
            click.echo("\nstopping", err=True)
            self._paths.request.unlink(missing_ok=True)
            self._agents.terminate()
        else:
            click.echo("\nkilling", err=True)
            self._agents.kill()

    def _save(self) -> None:
        from launcher.submission.requests import request_stop

        self._asked = True
        request_stop(self._paths, save=True)
        self._agents.terminate()

    def _cancel(self, *_: object) -> None:
        self._asked = True
        self._agents.terminate()

    def _hang_up(self, *_: object) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # the terminal is gone: a word to it would end this command with an error
            os.dup2(null, stream)
        self._save()
