"""Run a job on this machine, in the foreground."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from launcher.cli._options import JobCommand, load_job_words
from launcher.errors import LauncherError, RunDirError, RunFailedError

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths
    from launcher.submission.backends.local import Foreground


@click.command(cls=JobCommand)
def command(words: tuple[str, ...]) -> None:
    """Run a job on this machine, in the foreground, until it ends. Every node is simulated.

    The first Ctrl-C saves and stops the run, the second stops it without saving, the third kills it. If the terminal
    closes or the output can no longer be written, the run saves and stops. Exit code 0: completed, 8: failed, 9: cancelled.
    """
    from launcher.cli._follow_run import report_end
    from launcher.cli._output import handling
    from launcher.cli._submitting import below_here, planning_facts, submit_job
    from launcher.submission.backends.local import Foreground
    from launcher.submission.submit import Submitted, forget_run

    loaded = load_job_words(words)
    facts, made, agents = planning_facts(loaded, "local"), list[Submitted](), None
    try:
        one = submit_job(loaded, facts, job_id=str(os.getpid()), recorded=made.append)
        agents = Foreground(one.plan)
        stop = _Stop(one.paths, agents)
        with handling(stop.handlers()):
            agents.start()
            logs = f"{below_here(one.plan.run_dir)}/logs"
            outcome = stop.follow(
                [*one.plan.summary, f"{one.plan.spec.id} runs here; Ctrl-C saves and stops. Logs: {logs}"]
            )
            agents.wait(stop.kills)  # they may have news of the end to deliver
    finally:
        if agents is not None:
            agents.kill()
        if made and not (agents and agents.agents):
            forget_run(made[0].paths)
    report_end(one.paths, outcome)


class _Stop:
    """Handles Ctrl-C, TERM and the terminal's end.

    A handler only notes what was asked for, and `follow` does it between two looks: a KeyboardInterrupt strikes
    anywhere, and inside a class that is being defined by an import it is a RuntimeError before Python 3.12.
    """

    def __init__(self, paths: RunPaths, agents: Foreground) -> None:
        self._paths = paths
        self._agents = agents
        self._count = 0
        self._asked: deque[Callable[[], None]] = deque()
        self._stopped = False

    def handlers(self) -> dict[int, Callable[..., None]]:
        """Return the handlers of Ctrl-C, of TERM (`launcher cancel` sends it) and of a closed terminal's HUP."""
        handlers: dict[int, Callable[..., None]] = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._end}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: the run continues
            handlers[signal.SIGHUP] = self._hang_up
        return handlers

    def kills(self) -> bool:
        """Whether Ctrl-C was pressed so often that nothing is waited for."""
        return self._count > 2

    def follow(self, lines: list[str]) -> dict[str, Any]:
        """Print ``lines`` and follow the run until it has an outcome; write one where it was stopped before its leader could."""
        from launcher.cli._follow_run import follow_run
        from launcher.run.state import read_outcome
        from launcher.submission.folder.requests import write_cancelled

        streams = [1, 2]
        while True:
            try:
                while lines:
                    click.echo(lines.pop(0))
                return follow_run(self._paths, self._agents.alive, before_look=self._heed)
            except RunFailedError:
                if not self._stopped:
                    raise
                break
            except (BrokenPipeError, LauncherError):  # `| head`, or a full disk under `> log`
                if not streams:
                    raise
                _silence(streams.pop(0))  # standard error may still have a reader
                if not self._stopped:
                    self._asked.append(self._save)
        why = "it was killed" if self.kills() else "it was stopped before it started"
        write_cancelled([self._paths], why)
        return read_outcome(self._paths.outcome) or {"state": "cancelled", "reason": why}  # none on a full disk

    def _heed(self) -> None:
        while self._asked:
            self._stopped = True
            self._asked.popleft()()

    def _interrupt(self, *_: object) -> None:
        self._count += 1
        self._asked.append((self._save, self._cancel, self._kill)[min(self._count, 3) - 1])

    def _end(self, *_: object) -> None:
        self._asked.append(self._agents.terminate)

    def _hang_up(self, *_: object) -> None:
        _silence(0, 1, 2)  # the terminal is closed: writing to it would end this command with an error
        self._asked.append(self._save)

    def _save(self) -> None:
        from launcher.submission.folder.requests import request_stop

        said = "saving and stopping; Ctrl-C again stops without saving"
        try:
            request_stop(self._paths, save=True)
        except RunDirError as error:  # such as a full disk, on which nothing is saved either
            said = f"stopping without saving: {error}"
        self._agents.terminate()
        click.echo(f"\n{said}", err=True)  # into /dev/null after a HUP

    def _cancel(self) -> None:
        self._paths.request.unlink(missing_ok=True)
        self._agents.terminate()
        click.echo("\nstopping", err=True)

    def _kill(self) -> None:
        self._agents.kill()
        click.echo("\nkilling", err=True)


def _silence(*streams: int) -> None:
    """Have what is written to these standard streams go nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
    os.close(null)
