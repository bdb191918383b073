"""Open a shell or run a command in a run's allocation."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

import click

from launcher.cli._options import run_argument
from launcher.errors import ConfigError, StateError

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths
    from launcher.run.spec import RunSpec


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--rank", type=click.IntRange(min=0), help="Use this rank's host. Default: the first host.")
@run_argument
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND]...")
def command(run: str, rank: int | None, words: tuple[str, ...]) -> None:
    """Open a shell in RUN's allocation, or run COMMAND there.

    It starts in the run's code directory, with the run's variables and setup lines. It takes no resources from the run
    (srun --overlap) and ends with the run's allocation. The exit code is COMMAND's.
    """
    from launcher.run.own_folder import require_own
    from launcher.run.state import read_state
    from launcher.submission.liveness import locate, spec_of
    from launcher.submission.sweeps.points import single

    paths = single(run)
    require_own(paths.root)
    where = locate(paths)
    if not where.alive(fresh=True):
        raise StateError(
            f"{paths.id} is not running, so it has no allocation; launcher status {paths.id} shows its state"
        )
    host, spec = _host(read_state(paths.state), rank, paths.id), spec_of(paths)
    wanted = list(words) or [os.environ.get("SHELL", "/bin/bash")]
    env = _environment(paths, spec)
    # By its path: -m would look into the code directory first, which may hold a folder called launcher.
    wanted = [*_setup_command(paths), spec.python, str(paths.lib / "launcher" / "node" / "agent" / "shell.py"), *wanted]
    if where.backend == "slurm":
        if (state := where.slurm_state()) != "RUNNING":
            raise StateError(f"{paths.id} is not running: its SLURM state is {state or 'unknown'}")
        node = ["--nodes=1", "--ntasks=1", *([f"--nodelist={host}"] if host else [])]
        tty = ["--pty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        how = ["--overlap", "--cpu-bind=none", "--mpi=none", "--job-name=launcher-shell", f"--chdir={paths.code}"]
        wanted = ["srun", f"--jobid={where.job_id}", *how, *node, *tty, *wanted]
        env = {k: v for k, v in env.items() if not k.startswith("SLURM_") or k == "SLURM_CONF"}
    else:
        os.chdir(paths.code)
    os.execvpe(wanted[0], wanted, env)  # noqa: S606 (the words are the user's own command)


def _setup_command(paths: RunPaths) -> list[str]:
    """Return the words before a command that run the job's setup lines first, where its agents run them."""
    from launcher.submission.plan.script import setup_lines
    from launcher.submission.resubmit import Again, prepare

    try:
        again = prepare(paths, Again())
    except ConfigError as error:
        click.echo(f"launcher: the run's setup lines were skipped: {error}", err=True)
        return []
    lines = setup_lines(again.loaded.job, again.submit_dir)
    enter = f"cd {shlex.quote(str(paths.code))}"
    return ["/bin/bash", "-c", "\n".join([*lines, enter, 'exec "$@"']), "shell"] if lines else []


def _host(state: dict[str, Any], rank: int | None, run_id: str) -> str | None:
    from launcher.report.model.history import as_dict, as_list

    ranks = [r for r in map(as_dict, as_list(state.get("ranks"))) if rank in (None, r.get("rank"))]
    if host := next((r["host"] for r in ranks if r.get("host")), None):
        return str(host)
    if rank is None:
        return None
    raise StateError(f"{run_id} has no rank {rank} now; launcher status {run_id} shows its ranks")


def _environment(paths: RunPaths, spec: RunSpec) -> dict[str, str]:
    """Return what srun gets, and SLURM with it: no variable that is passed by name. The host reads those (`launcher.node.agent.shell`)."""
    from launcher.submission.backends.slurm import python_path

    return {
        **{name: value for name, value in os.environ.items() if name not in spec.pass_names},
        **spec.variables,
        "LAUNCHER_RUN_DIR": str(paths.root),
        "PYTHONPATH": python_path(str(paths.lib)),
        "PATH": os.pathsep.join([os.path.dirname(spec.python) or ".", os.environ.get("PATH", os.defpath)]),
    }
