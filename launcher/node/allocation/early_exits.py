"""Tasks of the step that ended before their agents had joined: srun reports them in the batch script's log, on this very host.

A node whose Python, setup line or view of the run directory is broken cannot report that itself: without this the leader
would wait for it until ``init_timeout_min``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from launcher.hosts import hosts_or_none
from launcher.node.allocation.start_errors import SLURMSTEPD, start_error
from launcher.node.wire.connection import allocation_life
from launcher.opening import read_tail
from launcher.run.batch import LAST_WORDS, MARK, UNSEEN
from launcher.run.paths import RunPaths
from launcher.slurm.environ import JobEnviron, job_environ

_ENDED = re.compile(r"^srun: error: (?P<hosts>\S+): tasks? [\d,-]+: (?P<how>.+)$")
_UNSTARTED = re.compile(r"^srun: error: tasks? (?P<tasks>[\d,-]+) launch failed: (?P<how>.+)$")
"""slurmstepd could not open the task's log, for instance, since the run directory is not mounted there."""
_REFUSED = re.compile(r"^srun: error: Task launch for \S+ failed on node (?P<hosts>\S+): (?P<how>.+)$")
_LEADERS = re.compile(rf"^{LAST_WORDS}(?:the (?:leader|agent) failed: )?(?P<words>\S.*)$", re.MULTILINE)
"""The last line of a first node's agent that could not go on (`launcher.node.agent.entry`)."""
SRUN_KILLED = "The srun of an agent was killed."
"""What the keeper says of its own sruns."""
_SRUN_KILLED = re.compile(
    rf"^\S*slurm_script: line \d+: +\d+ Killed +.*srun|^[\d:]+ keeper: {re.escape(SRUN_KILLED)}", re.MULTILINE
)
"""How bash reports that srun itself was killed, and none of its tasks: srun's child then ends the step."""
LEADER_SILENT = "The leader did not answer for"
"""What the keeper says of one that stands still, before it kills it."""
LEADER_REPLACED = "died; another one takes its place."
"""What it says when it starts the next one."""
_KEEPERS = re.compile(r"^[\d:]{8} keeper: (.+)$", re.MULTILINE)
_SRUN_FORCED = re.compile(r"^srun: forcing job termination", re.MULTILINE)
"""What srun says when it ends the step upon a signal."""
_STEP_CANCELLED = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ (?:DUE to SIGNAL \S+ )?\*\*\*")
"""What slurmstepd says when SLURM ends a step: somebody cancelled it, or its srun was killed. Of other causes it says DUE TO;
26.05 names the signal. On the step's first node alone, while its task is there: the leader's, until that is in another step."""
_STEP_ENDED = re.compile(r"^srun: Job step aborted: ", re.MULTILINE)
"""What srun says once when its step is ended before its tasks have ended: SLURM did that, or srun for a cause that it names."""
_PART_LOST = re.compile(
    r"^srun: error: (?:Aborting, .+ on node \d|Cannot communicate with node \d|\w+: aborting, io error with slurmstepd)",
    re.MULTILINE,
)
"""What srun says when it ends the step because a host has no part of it any more: it was started again before SLURM called it down, say."""
_ENDED_BY_SRUN = re.compile(
    r"^srun: (?:forcing job termination|error: Application launch failed|error: Node failure on|.* aborted before step completely)"
    rf"|{_PART_LOST.pattern}",
    re.MULTILINE,
)
"""Such causes: a signal to srun, a start that failed, a host that died or came back."""
_UNSEEN = "it does not see the run's directory"
_WANTED = re.compile(r"\*\*\* JOB|^srun: error", re.MULTILINE)
"""SLURM had ended the job, or a task had failed: srun's end follows from that."""
_MOST_BYTES = 1 << 20


def read_ended(paths: RunPaths, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return how tasks have ended in this life of the allocation, with the last line of their log, by host; never raises."""
    job = job_environ(environ)
    names = hosts_in(job.node_list)
    found = ended_tasks(_tail(paths, job, 0), allocation_life(environ), names)
    for index, name in enumerate(names):
        if name in found and index and (words := _last_words(_tail(paths, job, index))):
            found[name] += f": {words}"
    return found


def leader_words(paths: RunPaths) -> str:
    """Return the sentence with which the leader of this life ended, "" when it left none; never raises."""
    said = _LEADERS.findall(_this_life(paths))
    return str(said[-1]).strip().rstrip(".") if said else ""


def start_words(paths: RunPaths) -> str:
    """Return why the first node's task of this life could not begin, "" where that is not told; never raises."""
    return start_error(_this_life(paths))


def srun_end(paths: RunPaths) -> str:
    """Return how this life's srun itself was ended, "" where it was not; never raises."""
    return _srun_end(_this_life(paths))


def _srun_end(log: str) -> str:
    if _SRUN_KILLED.search(log):
        return "An srun of the job was killed, which ends its step"
    forced = _SRUN_FORCED.search(log)
    if forced and not _WANTED.search(log[: forced.start()]):
        return "An srun of the job received a signal (HUP or TERM), which ends its step"
    lost, aborted = _PART_LOST.search(log), _STEP_ENDED.search(log)
    if lost and aborted and lost.start() < aborted.start():
        return "A host of the job lost its part of the step (it was started again, say), and srun ended the step"
    return ""


def leader_end(paths: RunPaths) -> str:
    """Return how the leader before the newest one of this life ended, "" where that is not known; never raises."""
    before, replaced, _ = _this_life(paths).rpartition(LEADER_REPLACED)
    if not replaced:
        return ""
    *_, last = ["", *_KEEPERS.findall(before.rpartition("\n")[0])]
    if last.startswith(LEADER_SILENT):
        return str(last).rstrip(".")
    return "" if LEADER_REPLACED in before else _srun_end(before)  # the batch script's srun ends with the first leader


def step_cancelled(paths: RunPaths) -> bool:
    """Whether somebody has cancelled a step of this life, while SLURM lets the job run on; never raises."""
    log = _this_life(paths)
    if len(_STEP_ENDED.findall(log)) > len(_ENDED_BY_SRUN.findall(log)):
        return True
    return bool(_STEP_CANCELLED.search(log)) and not _srun_end(log)


def _this_life(paths: RunPaths) -> str:
    return _of_life(_tail(paths, job_environ(), 0), allocation_life(os.environ))


def _of_life(log: str, life: str) -> str:
    """Return what the batch script's log holds of this life of the allocation."""
    _, mark, now = log.rpartition(f"{MARK}{life}\n")
    return now if mark else ""


def _last_words(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    begin = len(lines)
    while begin and SLURMSTEPD.match(lines[begin - 1]):  # what is before may be of an earlier life
        begin -= 1
    if words := start_error("\n".join(lines[begin:])):
        return words[:200]
    return (
        re.sub(rf"^\d\d:\d\d:\d\d agent: |^{SLURMSTEPD.pattern}|^srun: error: |^{LAST_WORDS}", "", lines[-1])[:200]
        if lines
        else ""
    )


def _tail(paths: RunPaths, job: JobEnviron, task: int) -> str:
    """Return the end of a task's log; submitit's files have the job's own id in their names.

    Each start of the job leaves a mark in it. An end that holds none is of the newest start, whose setup lines have printed more than that.
    """
    try:
        data, begin = read_tail(paths.submitit / f"{job.own_id}_{task}_log.out", _MOST_BYTES)
    except OSError:
        return ""
    text = data.decode(errors="replace")
    return f"{MARK}{job.job_id}.{job.restart_count}\n{text}" if begin and MARK not in text else text


def ended_tasks(log: str, life: str, names: Sequence[str]) -> dict[str, str]:
    """Do the same as `read_ended` with the log's text. ``names`` are the step's hosts, in the order of its tasks. Pure."""
    found: dict[str, str] = {}
    for line in _of_life(log, life).splitlines():
        if (said := _ENDED.match(line) or _REFUSED.match(line)) is not None:
            hosts = hosts_in(said["hosts"])
        elif (said := _UNSTARTED.match(line)) is not None:
            hosts = [names[int(n)] for n in hosts_in(f"[{said['tasks']}]") if int(n) < len(names)]
        else:
            continue
        how = said["how"].strip()
        found.update(dict.fromkeys(hosts, _UNSEEN if how == f"Exited with exit code {UNSEEN}" else how))
    return found


def hosts_in(text: str) -> list[str]:
    """Expand a host list; return no hosts when it cannot be read."""
    return hosts_or_none(text) or []
