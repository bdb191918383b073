"""Give an allocation back so that the run starts again. Used from inside the job, by its leader.

Standard library only. Nothing here raises for what SLURM refuses or does not answer: each call returns a `Done`.
Job ids are those of `launcher.slurm.environ.JobEnviron.own_id`: an array element is ``ARRAY_TASK``, as the plain id of an array's
last element names the whole array.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence

from launcher.frozen import frozen
from launcher.hosts import hosts_or_none
from launcher.slurm.commands import Answer, ask
from launcher.slurm.environ import without_slurm
from launcher.slurm.jobs import JobFacts, job_facts
from launcher.slurm.restart import NET_LEAD_S
from launcher.slurm.versions import blocks_accounting

ASK_S = 10.0
_COMMENT_CHARS = 1000
RUNNING = ("RUNNING", "SIGNALING", "SUSPENDED", "STOPPED", "CONFIGURING")
"""States of a job that nobody has ended."""
_ALREADY = re.compile(r"pending execution|already (been )?requeued|job is pending", re.IGNORECASE)
_FORBIDDEN = re.compile(
    r"disabled|not permitted|access/permission denied|invalid user id|batch jobs only", re.IGNORECASE
)
_NO_HOSTS = re.compile(
    r"configuration (is )?not available|nodes? (is |are )?(not available|busy)|invalid node name", re.IGNORECASE
)
"""sbatch's words for a job that the hosts cannot run; others are of limits, accounts or slurmctld's mood."""
_OPTIONS = {
    "Partition": "partition", "Account": "account", "QOS": "qos", "ReqNodeList": "nodelist", "ExcNodeList": "exclude",
    "Features": "constraint", "Reservation": "reservation",
}  # fmt: skip


@frozen
class Done:
    """The result of a request to SLURM."""

    ok: bool
    why: str = ""
    """SLURM's words when it is not `ok`; a remark otherwise."""
    forbidden: bool = False
    """SLURM will not do this for this job, ever: another way is needed. False: it may be tried again."""
    job_id: str = ""
    """The new job, where one was submitted."""
    ended: bool = False
    """The job was ended before it could be requeued: somebody may have cancelled it."""


def requeue(job_id: str, *, restart_count: int, ended: bool = False, limit_s: float = 20.0) -> Done:
    """Have SLURM run this job again under its id, and check that it will.

    ``restart_count`` is this life's SLURM_RESTART_COUNT: SLURM's own count goes up in the moment in which it accepts, so
    that a request whose answer was lost, or another's that came first, is known to have taken. A job that runs is requeued by
    ``scontrol requeue Incomplete``, which slurmctld passes over once the job is being ended: so a scancel stands
    (`Done.ended`), whenever it comes. ``ended``: the job has ended, and is known not to have been cancelled. Plain ``scontrol
    requeue`` would resurrect one that was, and nothing would show that. ``limit_s`` bounds everything.
    """
    end = time.monotonic() + limit_s

    def left_s() -> float:
        return min(ASK_S, max(1.0, end - time.monotonic()))

    facts = job_facts(job_id, timeout_s=left_s())
    if _taken(facts, restart_count):
        return Done(True)
    words = ("scontrol", "requeue", *([] if ended else ["Incomplete"]), job_id)
    while ended or facts is None or facts.state in RUNNING:
        answer = ask(*words, timeout_s=left_s())
        facts = job_facts(job_id, timeout_s=left_s())
        if _taken(facts, restart_count):
            return Done(True)
        why = answer.problem or "SLURM accepted the requeue, but the job will not run again"
        if not answer.ok and _FORBIDDEN.search(answer.err) and not _ALREADY.search(answer.err):
            return Done(False, why, forbidden=True)
        if time.monotonic() > end:
            return Done(False, why)
        time.sleep(0.5)
    return Done(False, "the job was ended", ended=True)


def _taken(facts: JobFacts | None, restart_count: int) -> bool:
    return facts is not None and (
        (facts.restarts or 0) > restart_count or facts.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD")
    )


def may_update(job_id: str) -> bool:
    """Return whether what slurmdbd hears of the requeued job may be changed: StartTime and size.

    Some versions of SLURM never get over that where the job has lost a node (`launcher.slurm.versions`): the accounting of the whole site
    stops. slurmctld is asked for its version, which may have been another one when the run was submitted; no answer counts as such a version.
    """
    facts = job_facts(job_id, timeout_s=ASK_S)
    if facts is not None and not facts.resized:
        return True
    version = re.search(r"^SLURM_VERSION *= *(\S+)", _ask_again("scontrol", "show", "config").out, re.MULTILINE)
    return version is not None and not blocks_accounting(version[1])


def wait_to_cancel(job_ids: Sequence[str], limit_s: float = 60.0) -> None:
    """Wait until SLURM bears that these jobs are cancelled.

    The cancel of a job that was requeued after it had lost a node does what an update does (`may_update`) until its processes have ended.
    """
    end = time.monotonic() + limit_s
    words = ("squeue", "--noheader", "--array", "--states=COMPLETING", f"--jobs={','.join(job_ids)}", "--format=%i")
    while time.monotonic() < end:
        ending = set(ask(*words, timeout_s=ASK_S).out.split())
        if all(may_update(job_id) for job_id in job_ids if job_id in ending):
            return
        time.sleep(0.5)


def pull_forward(job_id: str, lead_s: int = NET_LEAD_S) -> Done:
    """Let the requeued job start in ``lead_s`` seconds instead of after the 121 s in which its old credential lives.

    If the job's last process ends after that time, SLURM sets the full delay again: this is the net under the last act of
    that process (`launcher.slurm.restart`), which knows better.
    """
    return _update_heard(job_id, f"StartTime=now+{int(lead_s)}seconds")


def exclude(job_id: str, hosts: Sequence[str]) -> Done:
    """Keep the requeued job off ``hosts`` and no others. It must be pending or completing."""
    if bad := [h for h in hosts if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", h)]:
        return Done(False, f"invalid host names: {', '.join(map(repr, bad))}")
    return update(job_id, f"ExcNodeList={','.join(hosts)}")


def set_nodes(job_id: str, least: int, most: int) -> Done:
    """Change how many nodes the pending job asks for."""
    return _update_heard(job_id, f"NumNodes={least}-{most}")


def ask_for_one_cpu(job_id: str) -> Done:
    """Have the pending job take one CPU of one node: nothing is left to do in it but to end."""
    return _update_heard(job_id, "NumNodes=1-1", "NumTasks=1", "NumCPUs=1")


def wishes(job_id: str) -> dict[str, str]:
    """Return what decides where the job may run, as options of sbatch: from its script, SBATCH_* or later updates.

    Every job has a partition: nothing at all means that SLURM does not answer.
    """
    out = _ask_again("scontrol", "show", "job", job_id).out
    found: dict[str, str] = {}
    # Lines that begin with these keys: job names and comments, which users choose, cannot imitate them.
    for line in re.findall(r"^ +(?:Priority|Partition|ReqNodeList|Features|Reservation)=.*", out, re.MULTILINE):
        for key, value in re.findall(r"(\w+)=(\S+)", line):
            if key in _OPTIONS and value not in ("(null)", "N/A"):
                found.setdefault(_OPTIONS[key], value)
    return found


def excluded(wished: Mapping[str, str]) -> list[str]:
    """Return the hosts that a job of these `wishes` does not run on."""
    names = wished.get("exclude", "")
    found = hosts_or_none(names)
    return names.split(",") if found is None else found


def could_start(script: str, options: Mapping[str, str], *, environ: Mapping[str, str]) -> bool | None:
    """Return whether SLURM could ever start ``script`` with ``options`` on the hosts that are up; None: not known.

    ``sbatch --test-only`` weighs everything that sbatch knows. Any user may ask it, and it queues nothing. Busy hosts count,
    those of this very job too; hosts that are down or drained do not. What the script waited for has been.
    """
    words = ["sbatch", "--test-only", *(f"--{key}={value}" for key, value in options.items()), "--dependency=", script]
    answer = ask(*words, timeout_s=ASK_S, environ=without_slurm(environ))
    return answer.ok if answer.ok or _NO_HOSTS.search(answer.err) else None


def let_go(job_id: str, hosts: Sequence[str]) -> Done:
    """Release ``hosts``, not this one, from the running job; what is requeued later is the whole job again.

    For hosts that do not answer: the job would end only when SLURM has noticed (SlurmdTimeout, 300 s by default), and then
    wait for its credential besides. A site may forbid it (disable_job_shrink).
    """
    facts = job_facts(job_id)
    before = (facts is not None and hosts_or_none(facts.nodes)) or []
    kept = [h for h in before if h not in hosts]
    if facts is None or facts.state != "RUNNING" or not kept or len(kept) == len(before):
        return Done(False, "none of these hosts can be released")
    with tempfile.TemporaryDirectory() as folder:  # scontrol leaves two scripts there
        return update(job_id, f"NodeList={','.join(kept)}", cwd=folder)


def forbid_requeue(job_id: str) -> Done:
    """Forbid every requeue of this job, also by ``scontrol requeue``."""
    return update(job_id, "Requeue=0")


def allow_requeue(job_id: str) -> Done:
    """Allow the requeue of this job, whatever the site's default and its options say."""
    return update(job_id, "Requeue=1")


def remark(job_id: str, text: str) -> Done:
    """Add ``text`` to the job's comment. Its owner may do so; AdminComment is for operators."""
    shown = _ask_again("scontrol", "show", "job", job_id)
    if not shown.ok:  # what the user has written there is not known, and would be lost
        return Done(False, shown.problem)
    before = re.search(r"^ +Comment=(.*)$", shown.out, re.MULTILINE)
    mine = f"launcher: {text}"[:_COMMENT_CHARS]
    said = before[1].strip() if before else ""
    kept = "" if said in ("", "(null)") or said.startswith("launcher: ") else f"{said}; "
    return update(job_id, f"Comment={kept}{mine}")


def cancel(job_id: str) -> Done:
    """Cancel the requeued job. SLURM keeps the processes that are ending."""
    answer = ask("scancel", job_id, timeout_s=ASK_S)
    return Done(answer.ok, answer.problem)


def _update_heard(job_id: str, *settings: str) -> Done:
    """Change what slurmdbd hears of, where SLURM bears that (`may_update`)."""
    if not may_update(job_id):
        return Done(False, "that would block its accounting", forbidden=True)
    return update(job_id, *settings)


def update(job_id: str, *settings: str, cwd: str | None = None) -> Done:
    """Change a job by ``scontrol update``; asked again while slurmctld is busy."""
    answer = _ask_again("scontrol", "update", f"JobId={job_id}", *settings, cwd=cwd)
    return Done(answer.ok, answer.problem, forbidden=not answer.ok and bool(_FORBIDDEN.search(answer.err)))


def _ask_again(*words: str, cwd: str | None = None) -> Answer:
    answer = ask(*words, timeout_s=ASK_S, cwd=cwd)
    for wait_s in (0.3, 1.0):
        if answer.busy:
            time.sleep(wait_s)
            answer = ask(*words, timeout_s=ASK_S, cwd=cwd)
    return answer
