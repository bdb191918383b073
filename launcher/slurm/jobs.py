"""Ask SLURM about jobs: one batched query for many, one exact query for a signal handler. Times are epoch seconds."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from launcher.frozen import frozen
from launcher.hosts import hosts_or_none
from launcher.run.units import is_job_id, whole_number
from launcher.slurm.commands import ask

ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "REVOKED", "TIMEOUT",
    }
)  # fmt: skip
"""SLURM's terminal states."""

SQUEUE_FORMAT = "%i|%A|%T|%S|%e|%V|%N|%P|%r|%o|%j"
SACCT_FIELDS = "JobID,JobIDRaw,State,ExitCode,Submit,Start,End,NodeList,Reason,JobName"
"""The name comes last: its user may have put a ``|`` in it."""
_MANY = 200
_NONE = ("None", "None assigned", "(null)", "")
"""SLURM's words for nothing."""


@frozen(kw_only=True)
class JobView:
    """One job as squeue or sacct shows it. None and "" are unknown."""

    job_id: str
    """As it was asked for: ``J`` or ``J_T``."""
    state: str
    """SLURM's word, e.g. PENDING; the "by UID" of CANCELLED is in ``reason``."""
    reason: str = ""
    """Why it is pending, e.g. Priority; "" when there is none."""
    nodes: str = ""
    """Hosts, SLURM's short form."""
    exit_code: int | None = None
    signal: int | None = None
    submit_t: float | None = None
    start_t: float | None = None
    """When it started; of a pending job, when SLURM expects to start it."""
    end_t: float | None = None
    name: str = ""
    """Its job name."""
    command: str = ""
    """Path of its batch script, of squeue; "(null)" when it has none."""
    partition: str = ""
    """Where it waits or runs, of squeue."""

    @property
    def ended(self) -> bool:
        """Whether its state is terminal."""
        return self.state in ENDED

    @property
    def start_estimate_t(self) -> float | None:
        """When SLURM expects to start a pending job."""
        return self.start_t if self.state == "PENDING" else None


def job_views(job_ids: Iterable[str]) -> dict[str, JobView] | None:
    """Return what SLURM knows of each of ``job_ids`` (``J`` or ``J_T``), by id; unknown ones are missing.

    One squeue, and one sacct for those that squeue has forgotten (MinJobAge), where there is accounting. None: SLURM does
    not answer.
    """
    wanted = list(dict.fromkeys(j for j in job_ids if is_job_id(j) and "+" not in j))
    if not wanted:
        return {}
    words = ("squeue", "--noheader", "--states=all", "--array", *_which(wanted), f"--format={SQUEUE_FORMAT}")
    answer = ask(*words)
    if not answer.ok and "invalid job id" not in answer.err.lower():  # squeue's way to say that it has forgotten it
        return None
    found = parse_squeue(answer.out)
    if missing := [j for j in wanted if j not in found]:
        # squeue knows every job that has not ended: a runaway record of accounting says RUNNING for ever.
        ended = {job: view for job, view in parse_sacct(_ask_sacct(*_which(missing))).items() if view.ended}
        found = ended | found
    return {j: found[j] for j in wanted if j in found}


def newest_of_name(name: str) -> JobView | None:
    """Return this user's newest job of that name, a run's id; None when SLURM knows none or does not answer."""
    mine = (f"--user={os.getuid()}", f"--name={name}")
    shown = ask("squeue", "--noheader", "--states=all", *mine, f"--format={SQUEUE_FORMAT}")
    found = parse_squeue(shown.out) or parse_sacct(_ask_sacct(*mine))
    return max(found.values(), key=lambda view: (view.submit_t or 0.0, view.job_id), default=None)


def _ask_sacct(*which: str) -> str:
    """Ask for jobs, however old those are that are named: of a whole user's, sacct would tell today's alone."""
    since = [] if which[0].startswith("--jobs=") else ["--starttime=now-30days"]
    return ask("sacct", "-n", "-P", "-X", *which, *since, f"--format={SACCT_FIELDS}").out


def _which(job_ids: Sequence[str]) -> tuple[str, ...]:
    """Ask for all of one's own jobs where the list of ids may not fit a command line."""
    return (f"--user={os.getuid()}",) if len(job_ids) > _MANY else (f"--jobs={','.join(job_ids)}",)


def parse_squeue(text: str) -> dict[str, JobView]:
    """Read the rows of ``squeue -o SQUEUE_FORMAT``, by each id a row answers to."""
    out: dict[str, JobView] = {}
    for shown, raw, state, start, end, submit, nodes, partition, reason, command, name in table_rows(text, 11):
        view = JobView(
            job_id=shown, state=state, reason="" if reason in _NONE else reason, nodes=nodes,
            submit_t=moment(submit), start_t=moment(start), end_t=moment(end), name=name, command=command,
            partition=partition,
        )  # fmt: skip
        out[shown] = view
        out.setdefault(raw, replace(view, job_id=raw))
    return out


def table_rows(text: str, columns: int) -> Iterator[list[str]]:
    """Yield the lines of ``text`` that have that many columns, split at ``|``; the last column may hold one."""
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", columns - 1)]
        if len(parts) == columns:
            yield parts


def parse_sacct(text: str) -> dict[str, JobView]:
    """Read the rows of ``sacct -nPX -o SACCT_FIELDS``, by each id a row answers to; of several lives the last one counts."""
    out: dict[str, JobView] = {}
    for shown, raw, state, code, submit, start, end, nodes, reason, name in table_rows(text, 10):
        word, _, by = state.partition(" ")
        exit_code, signal = _exit(code)
        for job_id in dict.fromkeys((*_elements(shown), raw)):
            out[job_id] = JobView(
                job_id=job_id, state=word.rstrip("+"), reason=by or ("" if reason in _NONE else reason),
                nodes="" if nodes in _NONE else nodes, exit_code=exit_code, signal=signal,
                submit_t=moment(submit), start_t=moment(start), end_t=moment(end), name=name,
            )  # fmt: skip
    return out


def _elements(shown: str) -> list[str]:
    """Expand ``24_[2-3%1]``, an array's elements that never ran, to ``24_2`` and ``24_3``."""
    return hosts_or_none(re.sub(r"%\d+\]", "]", shown)) or []


@frozen(kw_only=True)
class JobFacts:
    """One job as ``scontrol show job`` shows it at this moment. None and "" are unknown."""

    job_id: str
    state: str
    """JobState: RUNNING, SIGNALING (RUNNING, while slurmctld is sending a signal), COMPLETING, PENDING, ..."""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    """ExitCode is ``exit_code:signal``."""
    restarts: int | None = None
    """Restarts: goes up in the same moment in which SLURM decides to requeue, while the old processes still run."""
    run_time_s: float | None = None
    start_t: float | None = None
    end_t: float | None = None
    """When the time limit, or the grace time once it has begun, is over."""
    preempt_t: float | None = None
    """PreemptTime: when SLURM began to preempt it."""
    nodes: str = ""
    resized: bool = False
    """Nodes were taken from it, by SLURM or by an update, since it was queued (ResizeTime; SubmitTime changes with a requeue's end)."""

    @property
    def ahead(self) -> bool:
        """Whether SLURM means to start it: its times lie ahead, whatever the state.

        JobState is COMPLETING, too, while the processes of the life before a requeue end (PENDING and COMPLETING at once).
        StartTime is then now, RunTime 0 and EndTime a whole time limit later. Of a job that was ended, EndTime - StartTime is
        RunTime.
        """
        if self.run_time_s != 0 or self.start_t is None:
            return False
        return self.end_t is None or self.end_t > self.start_t


def job_facts(job_id: str, *, timeout_s: float = 10.0) -> JobFacts | None:
    """Return what SLURM says of one job now; None when it does not answer or knows no such job. Never raises."""
    answer = ask("scontrol", "show", "job", job_id, timeout_s=timeout_s)
    return parse_facts(answer.out, job_id) if answer.ok else None


def controller_time(*, timeout_s: float = 10.0) -> float | None:
    """Return slurmctld's clock, cut down to the second; None when it does not answer. Never raises.

    A job's times are by that clock. ``scontrol`` and ``squeue`` know no other than that of the host they run on, from which
    they also make RunTime.
    """
    return parse_time(ask("sdiag", timeout_s=timeout_s).out)


def parse_time(sdiag: str) -> float | None:
    """Read slurmctld's clock in the output of ``sdiag``; None when that is something else."""
    found = re.search(r"^sdiag output at .*\((\d{1,18})\)\s*$", sdiag, re.MULTILINE)
    return float(found[1]) if found else None


_RECORD = re.compile(r"JobId=(\d+)(?: ArrayJobId=(\d+))?(?: ArrayTaskId=(\S+))?")
# Keys at the beginning of a line: job names and comments, which users choose, cannot imitate them.
_LINES = re.compile(
    r"^ +(?:JobState=(?P<state>\S+) Reason=(?P<reason>\S*)"
    r"|Requeue=\d+ Restarts=(?P<restarts>\d+) .*?\bExitCode=(?P<code>\d+:\d+)"
    r"|RunTime=(?P<run>\S+)"
    r"|SubmitTime=(?P<submit>\S+)"
    r"|ResizeTime=(?P<resize>\S+)"
    r"|StartTime=(?P<start>\S+) EndTime=(?P<end>\S+)"
    r"|(?:PreemptEligibleTime=\S+ )?PreemptTime=(?P<preempt>\S+)"
    r"|NodeList=(?P<nodes>\S*))",
    re.MULTILINE,
)


def parse_facts(text: str, job_id: str) -> JobFacts | None:
    """Read the record of ``job_id`` in the output of ``scontrol show job`` (which shows a whole array for its own id)."""
    records = re.split(r"^(?=JobId=\d)", text, flags=re.MULTILINE)[1:]
    for record in records:
        head = _RECORD.match(record)
        if head is None or (len(records) > 1 and job_id not in (head[1], f"{head[2]}_{head[3]}")):
            continue
        got: dict[str, str] = defaultdict(str)
        for found in reversed(list(_LINES.finditer(record))):  # the first line of a kind holds
            got.update({key: value for key, value in found.groupdict().items() if value is not None})
        if not got["state"]:
            return None
        exit_code, signal = _exit(got["code"])
        reason, nodes = ("" if got[key] in _NONE else got[key] for key in ("reason", "nodes"))
        return JobFacts(
            job_id=head[1], state=got["state"], reason=reason, exit_code=exit_code, signal=signal, nodes=nodes,
            restarts=whole_number(got["restarts"]), run_time_s=duration_s(got["run"]),
            start_t=moment(got["start"]), end_t=moment(got["end"]), preempt_t=moment(got["preempt"]),
            resized=(moment(got["resize"]) or 0.0) >= (moment(got["submit"]) or 1.0),
        )  # fmt: skip
    return None


def moment(text: str) -> float | None:
    """Read epoch seconds (SLURM_TIME_FORMAT=%s), or ISO time of this machine's zone (a SLURM that ignores it)."""
    if (seconds := whole_number(text)) is not None:
        return float(seconds) or None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # a year that this machine's clock cannot hold
        return None


def duration_s(text: str) -> float | None:
    """Read ``[D-][[HH:]MM:]SS`` as seconds; None for UNLIMITED, INVALID, Partition_Limit and the like."""
    found = re.fullmatch(r"(?:(\d{1,9})-)?(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,9})", text.strip())
    if not found:
        return None
    days, hours, minutes, seconds = (int(g or 0) for g in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _exit(text: str) -> tuple[int | None, int | None]:
    code, _, signal = text.partition(":")
    numbers = whole_number(code), whole_number(signal)
    return (None, None) if None in numbers else numbers
