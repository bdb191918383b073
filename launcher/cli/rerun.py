"""Run your current code in the allocation of a hold."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from launcher.cli._options import JobCommand, complete_run, job_or_own
from launcher.errors import RunFailedError, StateError

if TYPE_CHECKING:
    from launcher.node.wire.hold_messages import StopRerun
    from launcher.run.paths import RunPaths
    from launcher.submission.hold_link import HoldLink
    from launcher.submission.submit import Submitted

_LOOK_S = 0.1
_WORD_S = 3.0
"""A hold that is ready has answered long before; a command that waits longer says for what."""


@click.command(cls=JobCommand, job="[JOB]")
@click.argument("run", shell_complete=complete_run)
@click.option("--detach", "-d", is_flag=True, help="Return when the rerun has started; it continues.")
def command(run: str, words: tuple[str, ...], detach: bool) -> None:
    """Run your current code in the allocation of RUN (a hold or an earlier rerun), as a separate run.

    JOB defaults to the job of RUN. It may use fewer nodes than the hold has. While the hold is in the queue, the command
    waits.

    The first Ctrl-C saves and stops the rerun, the second gives it some seconds (SLURM's KillWait); the hold stays. What
    fails is not started again, unless restart.max_restarts=N is given here.
    """
    from launcher.cli._output import handling
    from launcher.submission.hold_link import hold_link
    from launcher.submission.reruns.submit_rerun import hold_of, make_rerun
    from launcher.submission.submit import Submitted, forget_run
    from launcher.submission.sweeps.points import single

    named = single(run)
    hold = hold_of(named)
    loaded = job_or_own(named, words)
    _await_hold(hold)
    made, following = list[Submitted](), None
    try:
        with hold_link(hold) as link:
            following = _Following(make_rerun(loaded, hold, sys.argv, made.append), hold, link)
            with handling({signal.SIGINT: following.interrupt, signal.SIGTERM: following.interrupt}):
                if not following.start() or not detach:
                    following.follow()
    finally:
        if made and not (following and following.asked):
            forget_run(made[0].paths)


def _await_hold(hold: RunPaths) -> None:
    """Wait until the leader of a hold has begun. Raises StateError when it has ended."""
    from launcher.node.checkpoints.claims import newest_claimant
    from launcher.run.state import read_outcome
    from launcher.submission.liveness import locate

    where, told = locate(hold), ""
    while True:
        if (outcome := read_outcome(hold.outcome)) is not None or not where.alive():
            why = f": {outcome.get('reason')}" if outcome else ""
            raise StateError(f"{hold.id} has ended{why}\n  again    launcher hold JOB")
        with contextlib.suppress(OSError):
            if newest_claimant(hold):
                return
        state = f"SLURM job {where.job_id} is {where.latest_state.lower()}" if where.backend == "slurm" else "it starts"
        if state != told:
            click.echo(f"waiting for {hold.id}: {state}")
            told = state
        time.sleep(_LOOK_S)


class _Following:
    """Starts one rerun, and follows it: what its leader writes, and what the hold's leader says."""

    def __init__(self, one: Submitted, hold: RunPaths, link: HoldLink) -> None:
        self._paths = one.paths
        self._spec = one.plan.spec
        self._hold = hold
        self._link: HoldLink | None = link
        self._interrupts = self._handled = 0
        self.asked = False
        """The hold's leader has been asked to run it."""
        self._finished: dict[str, Any] | None = None
        """How it ended, as the hold's leader says."""

    def interrupt(self, *_: object) -> None:
        """Note a Ctrl-C: `_heed` acts on it."""
        self._interrupts += 1

    def start(self) -> bool:
        """Start it and wait until it has begun; return False when it is over already.

        Raises StateError where the hold refuses; then nothing is left of it.
        """
        from launcher.cli._submitting import below_here
        from launcher.node.wire.hold_messages import RerunAccepted, RerunRefused, StartRerun
        from launcher.run.held_signals import signals_held
        from launcher.submission.submit import forget_run

        run, spec, began, told = self._paths.id, self._spec, time.monotonic(), False
        assert self._link is not None  # noqa: S101  (it is lost in `_heed` alone)
        with signals_held():
            self._link.send(StartRerun(run=run, nodes=spec.needed_nodes, most_nodes=spec.all_nodes))
            self.asked = True
        while not isinstance(said := self._heed(), RerunAccepted):
            if isinstance(said, RerunRefused):
                forget_run(self._paths)
                raise StateError(said.why)
            if self._link is None:
                raise StateError(
                    f"the connection to {self._hold.id} was lost; launcher status {run} says what became of {run}"
                )
            if self._finished is not None:
                return False
            if not told and time.monotonic() - began > _WORD_S:
                click.echo(f"waiting for the nodes of {self._hold.id}")
                told = True
        click.echo(f"{run} runs in {self._hold.id}; logs: {below_here(str(self._paths.root))}/logs")
        for key in said.restarted:
            click.echo(f"  note     torch is imported again, since {key} has changed")
        return True

    def follow(self) -> None:
        """Print its events until it ends. Raises RunFailedError or RunCancelledError, which have the exit codes."""
        from launcher.cli._follow_run import follow_run, report_end
        from launcher.cli.why import print_why
        from launcher.submission.liveness import locate

        alive = locate(self._paths).alive
        outcome = follow_run(self._paths, alive, before_look=self._heed, told=lambda: self._finished)
        if outcome.get("state") == "failed":
            print_why(str(self._paths.root))
            raise RunFailedError(f"{self._paths.id} failed\n  run      {self._paths.root}")
        report_end(self._paths, outcome)

    def _heed(self) -> Any:
        """Hand on a Ctrl-C, and return what the hold's leader says, if it says anything now.

        Without the connection the run's files tell how it goes on; only stopping it needs another command.
        """
        from launcher.node.wire.hold_messages import RerunFinished, StopRerun

        while self._handled < self._interrupts:
            self._handled += 1
            self._ask_to_stop(StopRerun(run=self._paths.id, save=self._handled == 1))
        if self._link is None:
            return None
        try:
            said = self._link.receive(_LOOK_S)
        except StateError:
            click.echo(
                f"the connection to {self._hold.id} was lost; launcher status {self._paths.id} tells how it goes on",
                err=True,
            )
            self._link = None
            return None
        if isinstance(said, RerunFinished):
            self._finished = {"state": said.state, "reason": said.reason, "exit_code": said.exit_code}
        return said

    def _ask_to_stop(self, order: StopRerun) -> None:
        if self._link is None:
            click.echo(f"\nit is not stopped from here: launcher cancel {self._paths.id} stops it", err=True)
            raise KeyboardInterrupt
        text = "saving and stopping; Ctrl-C again gives it some seconds only" if order.save else "stopping"
        click.echo(f"\n{text}", err=True)
        self._link.send(order)
