"""The batch script's own shell: what it does before srun, beside it and after it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from launcher.config.document.schema import Job
from launcher.run.asking import PATIENCE_S
from launcher.run.batch import COMPLETED, GONE, JUDGED, LAST_WORDS, LOG, MARK, SHELL, UNSEEN
from launcher.slurm.ask_courier import VARIABLE
from launcher.submission.facts.facts import Facts
from launcher.submission.plan.job_place import JobPlace

# The batch shell gets TERM at the end of a grace period; with a handler of its own it lives on and runs the teardown, which
# must know of a TERM: `scancel --full --signal=TERM` has srun kill the step before its leader can say anything.
KEEP_SHELL = "told=; trap told=TERM TERM; trap : USR2 USR1 HUP INT"
# The log outlives requeues: what srun says of tasks that end early counts for this life of the allocation alone.
MARK_START = f'echo "{MARK}$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"'
# A signal before the agent has its handlers would end the job FAILED, never requeued; one in the courier's first moments would
# leave the leader without SLURM's commands. Ignored signals stay ignored across exec. `env --ignore-signal` does
# the same, but only from coreutils 8.31 on (RHEL 8 has 8.30).
IGNORE = 'trap "" TERM USR2 USR1 HUP INT'
_TEARDOWN_AGAIN_S = 5
_AGAIN = ("--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--output=/dev/null")
"""srun's options for one process, an agent that is started again say, beside the step that holds the job's CPUs, memory and GPUs."""
_KEEPERS = 5
"""Keepers of one life of the allocation, where each one dies: by a signal, or a fault of its own."""
_TO_LOG = ("/bin/sh", "-c", f'exec "$@" >>"${LOG}" 2>&1', "agent")
"""The agent's output goes to its log by itself: through srun it would end with srun."""
# The job as SLURM's commands know it alone: the plain id of an array's last element is the whole array.
_OWN_ID = "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}"


_OLD = f"{LAST_WORDS}$HOSTNAME has no Python 3.10 or newer outside the container, which the launcher needs there"


def joins(srun: Sequence[str], command: str) -> str:
    """Run one agent of a run that runs already, where the script has arguments: the job replaces a node (`resources.replace`)."""
    return f'[ $# = 0 ] || exec {shlex.join(["srun", *srun])} {command} -u -m launcher.node.agent "$@"'


def leave_line(root: str) -> str:
    """Return the shell function that ends the job with $status where this host does not see the run's folder ``root``.

    Since 23.02 SLURM makes the folder of a log that is not there: the log goes, and what the folder holds besides, if anything, stays.
    """
    room, run = shlex.quote(f"{root}/submitit"), shlex.quote(root)
    log = f'{room}/"${{own:-$SLURM_JOB_ID}}"_*_log.out'
    return f"leave() {{ own={_OWN_ID}; rm -f {log} && rmdir {room} {run} 2>/dev/null; exit $status; }}"


def first_node_sees(place: JobPlace) -> list[str]:
    """End the job where its first node does not see the run: no leader could start there, and the other nodes would wait for it.

    SLURM before 23.02 ends such a job itself, with ExitCode 0:53.
    """
    seen = f"[ -e {place.run_dir}/spec.json ]"  # looked at again after some seconds: NFS may show a new folder late
    return [leave_line(place.root), f"status={UNSEEN}", f"{seen} || sleep 5", f"{seen} || leave"]


def courier(job: Job, facts: Facts, lib: str, place: JobPlace, srun: Sequence[str]) -> list[str]:
    """Start a process of the batch shell that runs SLURM's commands for the leader: containers seldom have scontrol.

    ``srun``: options without the container. It starts others of its kind with them.
    """
    if not job.environment.container:
        return []
    return [
        f"outside={shlex.quote(facts.launcher_python)}",
        'if [ ! -x "$outside" ]; then',
        "outside=python3",
        # An older one cannot read the teardown: the job would end FAILED after a run that has completed.
        f'"$outside" -c "import sys; sys.exit(sys.version_info < (3, 10))" || {{ echo "{_OLD}" >&2; exit 1; }}',
        "fi",
        f"export {VARIABLE}={place.run_dir}/courier.$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}",
        f'({IGNORE}; cd {shlex.quote(lib)} && exec "$outside" -m launcher.slurm.courier "${VARIABLE}"'
        f" {shlex.join(['srun', *_AGAIN, *srun])}) &",
        "courier=$!",
    ]


def keeper(job: Job, facts: Facts, lib: str, place: JobPlace, srun: Sequence[str], command: str) -> list[str]:
    """Start the process of the batch shell that starts agents again; its standard input stays open while srun runs.

    One that dies is started again; with 0 to 2 or `GONE` it ends by itself. bash tells of a killed command as it is written here:
    `"$@"` does not read as a killed srun.
    """
    python = '"$outside"' if job.environment.container else shlex.quote(facts.interpreter.path)
    return [
        f"coproc KEEPER {{ {IGNORE}; export {SHELL}=$$; cd {shlex.quote(lib)} && set -- {python} -m launcher.node.allocation.keeper"
        f" {place.run_dir} {shlex.join(['srun', *_AGAIN, *srun, *_TO_LOG])} {command} -u -m launcher.node.agent;"
        f' for life in {{1..{_KEEPERS}}}; do "$@" >&2; kept=$?; case $kept in [012]|{GONE}) break; esac; sleep 1; done; exit $kept; }}',
        "keeper=$KEEPER_PID srun_runs=${KEEPER[1]}",
    ]


def teardown(run_dir: str, lib: str, python: str, *, courier: bool = False, keeper: bool = False) -> list[str]:
    """Return the lines after srun: where the leader left no outcome (it was killed), have SLURM requeue the job.

    The job's exit code, by which SLURM judges it and chains go on, is 0 when the run is known to have completed, and only
    then: srun's status tells of every task, also of one whose place a spare took, and of a leader that gave the run back. A
    file system that is away is waited for, but not a folder that the leader knows to be gone. What stays away leaves its
    sentence in the job's comment: the log is in that folder.

    ``run_dir`` and ``python`` are shell words already.
    """
    return [
        "status=$?",
        *(_await_keeper() if keeper else []),
        *(
            [f'{{ kill -KILL $courier; wait $courier; }} 2>/dev/null; rm -rf -- "${VARIABLE}"; unset {VARIABLE}']
            if courier
            else []
        ),
        # scontrol requeue has SLURM send TERM to the batch script's own processes: the one that asks for it must live on.
        "trap '' TERM USR2",
        f"if [ $status = {GONE} ] || [ $status = {UNSEEN} ] && [ ! -e {run_dir}/spec.json ]; then leave; fi",
        # SECONDS jumps when the clock is set.
        "up() { cut -d. -f1 /proc/uptime; }",
        f"give_up=$(($(up) + {PATIENCE_S:.0f}))",
        "while :; do",
        f"cd {shlex.quote(lib)} &&",
        f"{python} -m launcher.node.allocation.teardown {run_dir} $told",
        "said=$?",
        f"[ $said = {COMPLETED} ] && exit 0",
        f"if [ $said = {JUDGED} ] || [ $(up) -ge $give_up ]; then break; fi",
        f"sleep {_TEARDOWN_AGAIN_S}",
        "done",
        f"if [ $said != {JUDGED} ]; then",
        f"own={_OWN_ID}",
        f'why="launcher: how the run ended is not known, since "{run_dir}" is not there or does not answer"',
        f"[ ! -e {run_dir}/spec.json ] || why='launcher: how the run ended is not known: the log of the job says why'",
        'echo "$why" >&2',
        'scontrol update JobId="${own:-$SLURM_JOB_ID}" Comment="$why"',
        "fi",
        "[ $status = 0 ] && status=1",
        "exit $status",
    ]


def _await_keeper() -> list[str]:
    """Wait for agents that were started again, which work on after srun's end; a leader among them may end for srun's."""
    return [
        "exec {srun_runs}>&-",
        "kill -CONT 0",  # all of this script's: a keeper that stood still would keep the job for ever
        # Over 128: a signal came to this shell, or ended the keeper.
        "while wait $keeper; kept=$?; [ $kept -gt 128 ] && kill -0 $keeper 2>/dev/null; do :; done",
        f"[ $kept = {GONE} ] && status=$kept",
    ]
