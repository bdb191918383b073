"""Run a job here, in the foreground, to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from launcher.cli._options import JobCommand, job_arguments, load

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths
    from launcher.submission.local_backend import Foreground


@click.command(cls=JobCommand)
@job_arguments
def command(words: tuple[str, ...], module: str | None) -> None:
    """Run a job on this machine, in the foreground, to its end; every node is simulated.

    The first Ctrl-C saves and stops, the second stops, the third kills. The exit code tells how the run ended.
    """
    from launcher.cli._follow import finish, follow
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
        agents.start()
        stop.hear_term()
        outcome = follow(one.paths, agents.alive, on_interrupt=stop.next)
        agents.wait()
    finally:
        agents.kill()
    finish(one.paths, outcome)


class _Stop:
    """What each Ctrl-C does, and what TERM does."""

    def __init__(self, paths: RunPaths, agents: Foreground) -> None:
        self._paths = paths
        self._agents = agents
        self._count = 0

    def hear_term(self) -> None:
        """`launcher cancel` sends this process TERM: hand it on to the agents."""
        import signal

        signal.signal(signal.SIGTERM, lambda *_: self._agents.terminate())

    def next(self) -> None:
        """The next stage of stopping."""
        from launcher.submission.requests import request_stop

        self._count += 1
        if self._count == 1:
            click.echo("\nsaving and stopping; Ctrl-C again stops without waiting", err=True)
            request_stop(self._paths, save=True)
            self._agents.terminate()
        elif self._count == 2:
            click.echo("\nstopping", err=True)
            self._paths.request.unlink(missing_ok=True)
            self._agents.terminate()
        else:
            click.echo("\nkilling", err=True)
            self._agents.kill()
