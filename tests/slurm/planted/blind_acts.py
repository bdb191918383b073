"""Blind acts: what SLURM, users and accidents do to a run from outside.

Written from README.md, docs/{scripts,recovery,json,tutorial,reference,containers}.md and slurm/ alone. Expectations are facts: who did it, whether
it comes back by itself, what ends the wait. A tuple offers other words for the same fact. Where SLURM may take one of several roads, `kind`
lists each that is honest; `never` holds the wrong stories.

Overrides of the job file are written nested (`over`), with resources complete, so that merging and replacing a section are alike.
Every act returns a function that undoes what it changed on the cluster (None where it changed nothing); for before=True that is the contract,
for the others it may be called after the asking, and does no harm if it is not. Acts of before=True that need the queued job do their work
from a thread as soon as the job is in the queue: until then the partition is down, so that it cannot start.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import threading
import time

import psutil
from acts import act

# --- the words for a fact -------------------------------------------------------------------------------------------------------

BACK = (  # it comes back by itself
    "requeue", "comes back", "came back", "goes on", "went on", "again", "by itself", "next attempt", "resum", "new round", "restart", "continu",
)  # fmt: skip
RESUBMIT = ("resubmit",)  # it does not: this is how it goes on
RELEASE = ("scontrol release",)
HELD = ("held", "hold")
GONE_FOLDER = (
    "deleted",
    "moved",
    "removed",
    "gone",
    "not there",
    "missing",
    "does not exist",
    "no longer exists",
    "no such",
)
HOST2 = ("node2", "node3", "node4")  # the second host of a run (the first is node1 on an idle cluster)
SIGNALS = {
    "TERM": ("term",),
    "INT": (
        "sigint",
        "signal int",
        " int ",
        " int,",
        " int.",
        " int:",
        "(int)",
        "`int`",
        '"int"',
        "'int'",
        "keyboardinterrupt",
    ),
    "USR1": ("usr1",),
    "USR2": ("usr2",),
    "HUP": ("hup",),
    "KILL": ("kill",),
}
NOT_SIGNALS = {  # of the others one must not be told
    "TERM": ["sigint", "usr1", "usr2", "sighup"],
    "INT": ["sigterm", "signal term", "sent term", " term ", "usr1", "sighup"],
    "USR1": ["sigterm", "signal term", "sent term", " term ", "sigint", "sighup"],
    "USR2": ["sigterm", "signal term", "sent term", " term ", "sigint", "sighup"],
    "HUP": ["sigterm", "signal term", "sent term", " term ", "sigint", "usr1"],
    "KILL": ["sigterm", "signal term", "sent term", " term ", "sigint", "sighup", "usr1"],
}
FINE = "nothing has gone wrong"
MUTE = "died without a message"


def over(**sections):
    """Overrides of the job file, nested; resources are always complete."""
    resources = {"nodes": 2, "tasks_per_node": 1, **sections.pop("resources", {})}
    return {"resources": resources, **sections}


# --- processes of a run ---------------------------------------------------------------------------------------------------------


def hosts(run):
    """The hosts of the run, the first first."""
    return [n if isinstance(n, str) else (n.get("host") or n.get("name")) for n in run.state()["nodes"]]


def chain(pid):
    """A worker's parents below slurmstepd, the nearest first."""
    out = []
    for parent in psutil.Process(pid).parents():
        if "slurmstepd" in parent.name():
            return out
        out.append(parent)
    return out


def agent_of(run, rank):
    """The agent of a rank's host: the topmost Python process of SLURM's task there."""
    for process in reversed(chain(run.rank(rank)["pid"])):
        if "python" in " ".join(process.cmdline()[:1] + [process.name()]).lower():
            return process
    raise RuntimeError("no agent found above the worker")


def fork_server_of(run, rank):
    """The process from which a rank was forked."""
    process = psutil.Process(run.rank(rank)["pid"]).parent()
    if process is None or process.pid == agent_of(run, rank).pid:
        raise RuntimeError("the worker is no child of a fork server")
    return process


def batch_shell(run):
    """The batch script's shell."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            # Another cluster of this machine may have a job of that number.
            if f"job{int(run.job_id):05d}/slurm_script" in line and process.environ()["SLURM_JOB_NAME"] == run.paths.id:
                found.append(process)
    if not found:
        raise RuntimeError("no batch script found")
    pids = {p.pid for p in found}
    for process in found:  # the outermost, where it has forked subshells
        if process.ppid() not in pids:
            return process
    return found[0]


def kill(process, sig=signal.SIGKILL):
    os.kill(process if isinstance(process, int) else process.pid, sig)


def go_on(pid):
    """Undoes a SIGSTOP."""

    def undo():
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)

    return undo


def wait_gone(cluster, job_id, limit_s=90):
    """Until a job is neither pending nor running nor ending."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            state = cluster.job(job_id).get("JobState", "")
        except Exception:
            return  # SLURM has forgotten it
        if state and not any(word in state for word in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")):
            return
        if not state:
            return
        time.sleep(1)
    raise RuntimeError(f"job {job_id} did not end")


# --- jobs that are in the queue -------------------------------------------------------------------------------------------------


def pending_jobs(cluster):
    return set(cluster.run(["squeue", "-h", "-t", "PD", "-o", "%A"]).split())


def once_queued(cluster, do, *, open_after=True):
    """Hold the partition down until a new job is queued, do(job_id), open it again. Returns the undoing."""
    known = pending_jobs(cluster)
    stop = threading.Event()
    partition(cluster, "State=DOWN")

    def work():
        while not stop.wait(0.3):
            with contextlib.suppress(Exception):
                new = pending_jobs(cluster) - known
                if new:
                    do(sorted(new, key=int)[0])
                    if open_after:
                        partition(cluster, "State=UP")
                    return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def undo():
        stop.set()
        thread.join(30)
        partition(cluster, "State=UP")

    return undo


def partition(cluster, *words):
    cluster.run(["scontrol", "update", "PartitionName=batch", *words])


def node(cluster, name, *words):
    cluster.run(["scontrol", "update", f"NodeName={name}", *words])


def resume_node(cluster, *names):
    def undo():
        for name in names:
            with contextlib.suppress(Exception):
                node(cluster, name, "State=RESUME")

    return undo


def scancel_later(cluster, *ids):
    def undo():
        with contextlib.suppress(Exception):
            cluster.run(["scancel", *[str(i) for i in ids]])

    return undo


def undo_all(*undos):
    def undo():
        for one in undos:
            one()

    return undo


def check_waits(cluster, reason, *options):
    """A job of those options must wait for that reason here, or the case is not one (root is exempt from some limits)."""
    job = cluster.sbatch(*options, wrap="sleep 1")
    seen = ""
    try:
        for _ in range(20):
            time.sleep(0.5)
            seen = cluster.job(job).get("Reason", "")
            if reason.lower() in seen.lower():
                return
    finally:
        cluster.run(["scancel", str(job)])
    raise RuntimeError(f"precondition: SLURM gives {seen!r} and not {reason!r}; this is no fault of the launcher")


def occupied(cluster, *options):
    """A job that uses up a limit of one."""
    try:
        return cluster.sbatch("--nodes=1", *options, wrap="sleep 300")
    except AssertionError as error:
        raise RuntimeError(f"precondition: SLURM refuses the job that was to use up the limit: {error}") from None


# === SLURM's: cancelling and signals ============================================================================================


@act("scancel by somebody", kind="cancelled", says=["cancel"], must=[("scancel", "administrator", "root", "somebody"), RESUBMIT],
     never=["preempted", "time limit", FINE, MUTE])  # fmt: skip
def _(cluster, run):
    cluster.run(["scancel", run.job_id])


@act("scancel while the job waits", kind="cancelled", before=True, state="ended", says=["cancel"], must=[RESUBMIT],
     never=["preempted", "time limit", FINE, MUTE, "leader died", "is running"], soon_s=60)  # fmt: skip
def _(cluster, run):
    return once_queued(cluster, lambda job: cluster.run(["scancel", job]), open_after=False)


# What each signal must leave readable. To the steps alone (no option): agents and workers hear it. --full: the batch script and srun, too.
# --batch: the batch script alone. After TERM and KILL a run may be over (then: how to go on); after the others it may come back or be over,
# and which is said either way.
STORY = (
    "signal",
    "terminated",
    "cancelled",
    "unknown_signal",
    "leader",
    "script_gone",
    "exception",
    "exit",
    "node",
    "running",
    "pending",
    "other",
)
OVER_OR_BACK = (*BACK, *RESUBMIT)


@act("TERM to the steps", kind=("terminated", "cancelled"), says=[("term", "cancel")],
     must=[SIGNALS["TERM"], RESUBMIT, ("saved", "0 steps", "nothing was lost", "nothing is lost", "safe")],
     never=[*NOT_SIGNALS["TERM"], "preempted", "time limit reached", FINE, MUTE])  # fmt: skip
def _(cluster, run):
    cluster.run(["scancel", "--signal=TERM", run.job_id])


@act("TERM to the whole job", kind=("terminated", "cancelled"), says=[("term", "cancel")], must=[RESUBMIT],
     never=[*NOT_SIGNALS["TERM"], "preempted", "time limit reached", FINE, MUTE])  # fmt: skip
def _(cluster, run):
    cluster.run(["scancel", "--signal=TERM", "--full", run.job_id])


# Changed after the first run: what reaches the shell of the batch script alone (srun answers to INT with a line in its log) changes
# nothing, and nobody in the run hears of it: that the run trains is then the truth.
UNHEARD = ("training", "goes on")


@act("TERM to the batch script", kind=STORY, state="running", says=[("term", "batch script", "script", "cancel", *UNHEARD)],
     must=[("term", "batch script", *UNHEARD)],
     never=["sigint", "usr1", "preempted", "time limit reached", MUTE], soon_s=60)  # fmt: skip
def _(cluster, run):
    cluster.run(["scancel", "--signal=TERM", "--batch", run.job_id])


def plant_signal(name, where, option, must):
    unheard = where == "the batch script" or (name, where) == ("INT", "the whole job")
    more, fine = (UNHEARD, []) if unheard else ((), [FINE])
    must = [(*words, *more) for words in must]

    @act(f"{name} to {where}", kind=STORY, state="running", says=[(*SIGNALS[name], "signal", "batch script", *more)], must=must,
         never=[*NOT_SIGNALS[name], "preempted", "time limit reached", *fine, MUTE], soon_s=60)  # fmt: skip
    def _(cluster, run):
        cluster.run(["scancel", f"--signal={name}", *option, run.job_id])


for _name in ("INT", "USR1", "HUP"):
    plant_signal(_name, "the steps", [], [SIGNALS[_name], OVER_OR_BACK])
    plant_signal(_name, "the whole job", ["--full"], [(*SIGNALS[_name], "batch script"), OVER_OR_BACK])
    plant_signal(_name, "the batch script", ["--batch"], [(*SIGNALS[_name], "batch script"), OVER_OR_BACK])


# KILL may be taken by SLURM as the end of the job (cancelled) or go to the processes alone (then the run comes back).
for _where, _option in (("the steps", []), ("the whole job", ["--full"])):

    def _plant_kill(where=_where, option=_option):
        @act(f"KILL to {where}", kind=(*STORY, "slurm_node"), state="running", says=[("kill", "cancel")], must=[OVER_OR_BACK],
             never=[*NOT_SIGNALS["KILL"], "preempted", "time limit reached", FINE, MUTE], soon_s=60)  # fmt: skip
        def _(cluster, run):
            cluster.run(["scancel", "--signal=KILL", *option, run.job_id])

    _plant_kill()


@act("KILL to the batch script", kind=("script_gone", "cancelled", "running", "pending"), state="running",
     says=[("batch script", "kill", "cancel")], must=[("batch script", "cancel"), OVER_OR_BACK],
     never=["preempted", "time limit reached", FINE, MUTE], soon_s=60)  # fmt: skip
def _(cluster, run):
    cluster.run(["scancel", "--signal=KILL", "--batch", run.job_id])


# SLURM wants nothing of the job, whatever was sent: it trains on, and nobody may make a time limit or an end of it.
@act("USR2 to the steps", kind="running", state="running", says=[], must=[("running", "runs", "train", "usr2")],
     never=["time limit reached", "reached its time limit", "preempted", "cancelled", "has failed", MUTE], soon_s=20)  # fmt: skip
def _(cluster, run):
    cluster.run(["scancel", "--signal=USR2", run.job_id])
    time.sleep(6)


@act("USR2 to the whole job", kind=STORY, state="running", says=[], must=[("usr2", "batch script", "running", "runs", "train")],
     never=["time limit reached", "reached its time limit", "preempted", MUTE], soon_s=30)  # fmt: skip
def _(cluster, run):
    cluster.run(["scancel", "--signal=USR2", "--full", run.job_id])
    time.sleep(6)


@act("USR2 to the batch script", kind=STORY, state="running", says=[], must=[("usr2", "batch script", "running", "runs", "train")],
     never=["time limit reached", "reached its time limit", "preempted", MUTE], soon_s=30)  # fmt: skip
def _(cluster, run):
    cluster.run(["scancel", "--signal=USR2", "--batch", run.job_id])
    time.sleep(6)


# === SLURM's: requeue, hold, suspend ============================================================================================


# Somebody took it back into the queue. That it was for a job of higher priority would be invented.
@act("scontrol requeue", kind=("preempted", "pending", "running", "other"), state="running", says=[("requeue", "queue", "took")],
     must=["requeue", BACK], never=["for a job of higher priority", "higher-priority job", "cancelled", "time limit reached", FINE, MUTE, "has failed"],
     soon_s=60)  # fmt: skip
def _(cluster, run):
    cluster.run(["scontrol", "requeue", run.job_id])


@act("scontrol requeuehold", kind=("pending", "other"), state="pending", says=[HELD], must=[RELEASE, ("held", "hold")],
     never=["preempted", "higher priority", FINE, MUTE, "time limit reached"], soon_s=60)  # fmt: skip
def _(cluster, run):
    cluster.run(["scontrol", "requeuehold", run.job_id])


@act("hold of a waiting job", kind="pending", before=True, state="pending", says=[HELD], must=[RELEASE],
     never=["preempted", "has failed", FINE, "starts by itself"], soon_s=30)  # fmt: skip
def _(cluster, run):
    return once_queued(cluster, lambda job: cluster.run(["scontrol", "hold", job]))


@act("uhold of a waiting job", kind="pending", before=True, state="pending", says=[HELD], must=[RELEASE],
     never=["preempted", "has failed", FINE, "starts by itself"], soon_s=30)  # fmt: skip
def _(cluster, run):
    return once_queued(cluster, lambda job: cluster.run(["scontrol", "uhold", job]))


@act("submitted on hold", kind="pending", before=True, state="pending", says=[HELD], must=[RELEASE],
     never=["preempted", "has failed", FINE], job=over(slurm={"extra": {"hold": True}}), soon_s=30)  # fmt: skip
def _(cluster, run):
    return lambda: None


# Neither pending nor training: it stands still until somebody lets it go on. A run that "is training" or "hangs" is the wrong story.
@act("scontrol suspend", kind=("running", "pending", "suspended", "other"), state="running", says=["suspend"], must=[("scontrol resume",)],
     never=["hung", "no rank made progress", "preempted", "has failed", FINE, MUTE, "is training", "training goes on"], soon_s=30)  # fmt: skip
def _(cluster, run):
    cluster.run(["scontrol", "suspend", run.job_id])

    def undo():
        with contextlib.suppress(Exception):
            cluster.run(["scontrol", "resume", run.job_id])

    return undo


# === SLURM's: time limit and preemption =========================================================================================


@act("time limit, and back", kind=("time_limit", "pending", "running"), state="running", says=["time limit"],
     must=["time limit", BACK, ("0 steps", "no step", "saved", "nothing was lost", "nothing is lost", "safe")],
     never=["preempted", "cancelled", "has failed", "terminated", FINE, MUTE],
     job=over(resources={"timeout_min": 1}, restart={"signal_lead_s": 15}), soon_s=150)  # fmt: skip
def _(cluster, run):
    pass  # a minute passes by itself


@act("time limit of a run that may not come back", kind="time_limit", says=["time limit"],
     must=["time limit", RESUBMIT, ("saved", "0 steps", "nothing was lost", "safe")], never=["preempted", "cancelled", FINE, MUTE],
     job=over(resources={"timeout_min": 1}, restart={"signal_lead_s": 15, "requeue": False}), soon_s=150)  # fmt: skip
def _(cluster, run):
    pass


# The file said ten minutes, and somebody made one of it: that it was the limit, and that it was another than the job's (or which it was).
@act("time limit lowered", kind=("time_limit", "pending", "running"), state="running", says=["time limit"],
     must=["time limit", BACK, ("1 min", "1:00", "60 s", "lowered", "changed", "scontrol update", "shortened", "instead of", "10 min")],
     never=["preempted", "cancelled", "has failed", FINE, MUTE],
     job=over(resources={"timeout_min": 10}, restart={"signal_lead_s": 15}), soon_s=150)  # fmt: skip
def _(cluster, run):
    cluster.run(["scontrol", "update", f"JobId={run.job_id}", "TimeLimit=1"])


@act("preemption by a higher partition", kind=("preempted", "pending", "running"), state="running", says=["preempt"],
     must=["preempt", BACK, ("0 steps", "no step", "saved", "nothing was lost", "nothing is lost", "safe")],
     never=["cancelled by", "time limit reached", "has failed", "held", FINE, MUTE], soon_s=60)  # fmt: skip
def _(cluster, run):
    job = cluster.sbatch("--partition=high", "--nodes=4", "--exclusive", wrap="sleep 40")
    return scancel_later(cluster, job)


# Another site: preemption cancels. It is still SLURM's preemption and nobody's scancel.
@act("preemption that cancels", kind=("preempted", "pending", "running"), state="running", says=["preempt"],
     must=["preempt", (*BACK, *RESUBMIT)], never=["you or an administrator", "cancelled by", "time limit reached", FINE, MUTE], soon_s=90)  # fmt: skip
def _(cluster, run):
    cluster.set(PreemptMode="CANCEL")
    time.sleep(3)
    job = cluster.sbatch("--partition=high", "--nodes=4", "--exclusive", wrap="sleep 40")
    return scancel_later(cluster, job)


# === SLURM's: hosts =============================================================================================================


@act("a host is killed", kind=("node", "slurm_node", "running", "pending"), state="running", says=[HOST2], must=[HOST2, BACK],
     never=["preempted", "cancelled", "time limit reached", FINE, MUTE, "out of memory"], soon_s=90)  # fmt: skip
def _(cluster, run):
    host = hosts(run)[1]
    cluster.kill(host)
    return lambda: cluster.heal(host)


@act("the first host is killed", kind=("node", "slurm_node", "leader", "running", "pending"), state="running", says=[("node1", "leader", "first host")],
     must=["node1", BACK], never=["preempted", "cancelled", "time limit reached", FINE, MUTE, "out of memory"], soon_s=150)  # fmt: skip
def _(cluster, run):
    host = hosts(run)[0]
    cluster.kill(host)
    return lambda: cluster.heal(host)


@act("the network of a host is cut", kind=("node", "slurm_node", "running", "pending"), state="running", says=[HOST2],
     must=[HOST2, BACK, ("silent", "network", "reach", "cut", "lost", "gone", "answer", "heard", "down", "connection")],
     never=["preempted", "cancelled", "time limit reached", FINE, MUTE, "out of memory"], soon_s=90)  # fmt: skip
def _(cluster, run):
    host = hosts(run)[1]
    cluster.cut(host)
    return lambda: cluster.heal(host)


# Draining lets a job that runs go on: it is well, and no host is lost.
@act("a host is drained", kind="running", state="running", says=[], must=[("running", "runs", "train")],
     never=["is gone", "was lost", "node lost", "preempted", "has failed", "requeued", MUTE], soon_s=20)  # fmt: skip
def _(cluster, run):
    host = hosts(run)[1]
    node(cluster, host, "State=DRAIN", "Reason=disk check")
    time.sleep(5)
    return resume_node(cluster, host)


@act("a host is set down", kind=("node", "slurm_node", "running", "pending"), state="running", says=[(*HOST2, "slurm")],
     must=[HOST2, ("down", "gone", "lost", "gave up", "took"), BACK], never=["preempted", "cancelled", "time limit reached", FINE, MUTE],
     soon_s=90)  # fmt: skip
def _(cluster, run):
    host = hosts(run)[1]
    node(cluster, host, "State=DOWN", "Reason=burnt")
    return resume_node(cluster, host)


# === SLURM's: what waits, and for what ==========================================================================================


# The feature that the job asks for is taken from the hosts while it waits: no host can ever serve it.
@act("constraint that no host has any more", kind="pending", before=True, state="pending", says=[("constraint", "feature", "blindfast")],
     must=[("constraint", "feature", "blindfast")], never=["preempted", "has failed", FINE, "waits for resources", "waits its turn", "starts by itself"],
     job=over(slurm={"constraint": "blindfast"}), soon_s=40)  # fmt: skip
def _(cluster, run):
    names = ("node1", "node2", "node3", "node4")

    def features(value):
        for name in names:
            node(cluster, name, f"AvailableFeatures={value}", f"ActiveFeatures={value}")

    features("blindfast")
    undo = once_queued(cluster, lambda job: features(""))
    return undo_all(undo, lambda: features(""))


# Four hosts are asked for, and the partition is left with three.
@act("more hosts than the partition has", kind="pending", before=True, state="pending", says=[("node", "host", "partition", "constraint")],
     must=[("4", "four", "PartitionNodeLimit", "PartitionConfig", "BadConstraints"), ("3", "three", "partition", "limit", "resources.nodes")],
     never=["preempted", "has failed", FINE, "waits its turn"], job=over(resources={"nodes": 4}), soon_s=40)  # fmt: skip
def _(cluster, run):
    undo = once_queued(cluster, lambda job: partition(cluster, "Nodes=node1,node2,node3"))
    return undo_all(undo, lambda: partition(cluster, "Nodes=ALL"))


@act("limit of an association", kind="pending", before=True, state="pending", says=[("limit", "MaxJobs", "AssocMaxJobs", "association", "account")],
     must=[("limit", "MaxJobs"), ("account", "association", "assoc", "user")],
     never=["preempted", "has failed", FINE, "waits for resources"], soon_s=40)  # fmt: skip
def _(cluster, run):
    cluster.set(AccountingStorageEnforce="limits")
    # Changed after the first run: with MaxJobs=0 SLURM refuses the submission at once; with 1, another job of the user's has it.
    cluster.run(["sacctmgr", "-i", "modify", "user", "where", "name=root", "set", "MaxJobs=1"])
    busy = occupied(cluster)

    def undo():
        cluster.run(["sacctmgr", "-i", "modify", "user", "where", "name=root", "set", "MaxJobs=-1"])
        cluster.run(["scancel", busy])

    try:
        time.sleep(2)
        check_waits(cluster, "MaxJobs", "--nodes=1")
    except BaseException:
        undo()
        raise
    return undo


@act("limit of a qos", kind="pending", before=True, state="pending", says=[("qos", "quality of service")],
     must=[("qos", "quality of service"), ("limit", "GrpJobs", "blindq")], never=["preempted", "has failed", FINE, "waits for resources"],
     job=over(slurm={"qos": "blindq"}), soon_s=40)  # fmt: skip
def _(cluster, run):
    cluster.set(AccountingStorageEnforce="limits,qos")
    cluster.run(["sacctmgr", "-i", "add", "qos", "blindq", "GrpJobs=1"])
    cluster.run(["sacctmgr", "-i", "modify", "user", "where", "name=root", "set", "qos+=blindq"])

    time.sleep(3)
    busy = occupied(cluster, "--qos=blindq")  # changed after the first run, as above

    def undo():
        cluster.run(["sacctmgr", "-i", "modify", "user", "where", "name=root", "set", "qos-=blindq"])
        cluster.run(["sacctmgr", "-i", "delete", "qos", "blindq"])

    try:
        time.sleep(2)
        check_waits(cluster, "QOS", "--nodes=1", "--qos=blindq")
    except BaseException:
        undo()
        raise
    return undo


# Everything is reserved for somebody else's maintenance, for an hour.
@act("all hosts reserved for maintenance", kind="pending", before=True, state="pending",
     says=[("reserv", "maintenance", "not available", "unavailable", "ReqNodeNotAvail")],
     must=[("reserv", "maintenance")], never=["preempted", "has failed", FINE, "scontrol release"], soon_s=40)  # fmt: skip
def _(cluster, run):
    cluster.run(["scontrol", "create", "reservation", "ReservationName=blind_maint", "StartTime=now", "Duration=60", "Users=daemon",
                 "Nodes=ALL", "Flags=MAINT,IGNORE_JOBS"])  # fmt: skip
    return lambda: cluster.run(["scontrol", "delete", "ReservationName=blind_maint"])


# The job's own reservation begins in an hour: it waits for that, and then starts.
@act("its own reservation begins later", kind="pending", before=True, state="pending", says=["reservation"], must=["blind_later"],
     never=["preempted", "has failed", FINE, "scontrol release", "never starts"], job=over(slurm={"reservation": "blind_later"}), soon_s=40)  # fmt: skip
def _(cluster, run):
    cluster.run(["scontrol", "create", "reservation", "ReservationName=blind_later", "StartTime=now+60minutes", "Duration=60", "Users=root",
                 "Nodes=node1,node2"])  # fmt: skip
    return lambda: cluster.run(["scontrol", "delete", "ReservationName=blind_later"])


@act("a host that it asks for is drained", kind="pending", before=True, state="pending", says=["node4"],
     must=["node4", ("drain", "unavailable", "not available", "down", "ReqNodeNotAvail", "out of service")],
     never=["preempted", "has failed", FINE, "waits its turn"], job=over(slurm={"nodelist": "node3,node4"}), soon_s=40)  # fmt: skip
def _(cluster, run):
    node(cluster, "node4", "State=DRAIN", "Reason=fan broken")
    return resume_node(cluster, "node4")


# Only one host of four takes jobs, and it needs two: no job that ends will help.
@act("too few hosts take jobs", kind="pending", before=True, state="pending",
     says=[("node", "host", "resources", "down", "drain", "unavailable", "not available")],
     must=[("down", "drain", "unavailable", "not available", "out of service")], never=["preempted", "has failed", FINE, "scontrol release"],
     soon_s=40)  # fmt: skip
def _(cluster, run):
    names = ("node2", "node3", "node4")
    for name in names:
        node(cluster, name, "State=DRAIN", "Reason=no power")
    return resume_node(cluster, *names)


@act("the partition is down", kind="pending", before=True, state="pending", says=["partition"],
     must=["batch", ("down", "inactive", "closed", "not up", "stopped")], never=["preempted", "has failed", FINE, "waits for resources", "scontrol release"],
     soon_s=30)  # fmt: skip
def _(cluster, run):
    partition(cluster, "State=DOWN")
    return lambda: partition(cluster, "State=UP")


@act("the partition becomes inactive", kind="pending", before=True, state="pending", says=["partition"],
     must=[("inactive", "PartitionInactive", "closed")], never=["preempted", "has failed", FINE, "waits for resources", "scontrol release"],
     soon_s=40)  # fmt: skip
def _(cluster, run):
    return once_queued(cluster, lambda job: partition(cluster, "State=INACTIVE"), open_after=False)


# Its 30 minutes are more than the partition allows since it was queued.
@act("longer than the partition allows", kind="pending", before=True, state="pending", says=[("time limit", "time", "PartitionTimeLimit")],
     must=[("time limit", "PartitionTimeLimit", "MaxTime", "timeout_min"), ("partition", "batch")],
     never=["preempted", "has failed", "reached its time limit", "time limit reached", FINE, "waits for resources"],
     job=over(resources={"timeout_min": 30}), soon_s=40)  # fmt: skip
def _(cluster, run):
    def undo():
        partition(cluster, "MaxTime=2-00:00:00")

    try:
        partition(cluster, "MaxTime=5")
        check_waits(cluster, "PartitionTimeLimit", "--nodes=1", "--time=30")
    finally:
        undo()
    return undo_all(once_queued(cluster, lambda job: partition(cluster, "MaxTime=5")), undo)


# The job that it waits for fails: it can never start.
@act("dependency that cannot be satisfied", kind="pending", before=True, state="pending", says=["depend"],
     must=["depend", ("never", "cannot", "can not", "can't", "no longer", "scancel", "will not", "failed")],
     never=["preempted", FINE, "waits for resources", "starts by itself"], soon_s=60)  # fmt: skip
def _(cluster, run):
    others = []

    def depend(job):
        others.append(cluster.sbatch("--partition=high", "--nodes=1", wrap="sleep 8; exit 3"))
        cluster.run(["scontrol", "update", f"JobId={job}", f"Dependency=afterok:{others[0]}"])
        time.sleep(12)  # it has failed by now

    return undo_all(once_queued(cluster, depend), lambda: scancel_later(cluster, *others)())


# --- healthy waits: they pass, and nobody may call them wrong


@act("healthy: all hosts are busy", kind="pending", before=True, state="pending",
     says=[("resources", "busy", "free", "wait", "queue", "in use", "occupied")], must=[("resources", "busy", "free", "in use", "occupied", "priority")],
     never=["has failed", "held", "scontrol release", "can never", "cannot start", "will not start", "never start", "preempted", "drain"],
     soon_s=40)  # fmt: skip
def _(cluster, run):
    job = cluster.sbatch("--partition=high", "--nodes=4", "--exclusive", wrap="sleep 300")
    time.sleep(3)
    return scancel_later(cluster, job)


@act("healthy: others come first", kind="pending", before=True, state="pending",
     says=[("priority", "before", "ahead", "first", "resources", "wait", "queue")], must=[("priority", "before", "ahead", "resources", "first")],
     never=["has failed", "held", "scontrol release", "can never", "cannot start", "will not start", "never start", "preempted", "drain"],
     soon_s=40)  # fmt: skip
def _(cluster, run):
    first = cluster.sbatch("--partition=high", "--nodes=4", "--exclusive", "--time=20", wrap="sleep 300")
    time.sleep(3)
    second = cluster.sbatch("--partition=batch", "--nodes=4", "--exclusive", "--time=20", wrap="sleep 300")
    return scancel_later(cluster, second, first)


@act("healthy: it was asked to begin later", kind="pending", before=True, state="pending", says=[("begin", "start", "time", "until", "not before")],
     must=[("begin", "start", "until", "not before")], never=["has failed", "scontrol release", "can never", "cannot start", "never start", "preempted"],
     job=over(slurm={"extra": {"begin": "now+2hours"}}), soon_s=30)  # fmt: skip
def _(cluster, run):
    return lambda: None


# === the user's =================================================================================================================


@act("launcher cancel", kind=("user", "cancelled"), says=["cancel"], must=["launcher cancel", RESUBMIT],
     never=["preempted", "time limit reached", "administrator", FINE, MUTE])  # fmt: skip
def _(cluster, run):
    act.verb(cluster, "cancel", run.paths.id)


@act("launcher cancel --save", kind="user", says=["cancel"],
     must=["launcher cancel", RESUBMIT, ("saved", "0 steps", "nothing was lost", "nothing is lost", "safe")],
     never=["preempted", "time limit reached", "administrator", FINE, MUTE], soon_s=40)  # fmt: skip
def _(cluster, run):
    act.verb(cluster, "cancel", run.paths.id, "--save")


def delete(folder):
    """Delete a folder into which others write."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


@act("the folder is deleted", kind=("gone", "running", "unreadable"), state="running", says=[GONE_FOLDER],
     must=[("folder", "directory"), GONE_FOLDER], never=["preempted", "is training", "all is well", FINE, MUTE], soon_s=60)  # fmt: skip
def _(cluster, run):
    delete(run.paths.root)


@act("the folder is deleted, to the end", kind="gone", state="ended", says=[("deleted", "moved", "removed", "gone", "not there")],
     must=[("folder", "directory")], never=["preempted", "completed", FINE, MUTE], soon_s=480)  # fmt: skip
def _(cluster, run):
    delete(run.paths.root)


@act("the folder is moved", kind=("gone", "running", "unreadable"), state="running", says=[GONE_FOLDER], must=[("folder", "directory"), GONE_FOLDER],
     never=["preempted", FINE, MUTE], soon_s=60)  # fmt: skip
def _(cluster, run):
    place = run.paths.root.with_name(run.paths.root.name + "-elsewhere")
    root = run.paths.root
    os.rename(root, place)

    def undo():
        if place.exists() and not root.exists():
            os.rename(place, root)

    return undo


@act("the folder is moved, to the end", kind="gone", state="ended", says=[("moved", "not there", "gone")], must=[("elsewhere",), RESUBMIT],
     never=["preempted", "completed", FINE, MUTE], soon_s=480)  # fmt: skip
def _(cluster, run):
    os.rename(run.paths.root, run.paths.root.with_name(run.paths.root.name + "-elsewhere"))


def checkpoints(run):
    """Committed checkpoints, the oldest first."""
    return sorted((run.paths.root / "checkpoints").glob("step-*"))


# The newest checkpoint loses its files, and the next start needs it: it must be told, with what is used instead.
@act("files of the newest checkpoint are removed", kind=("signal", "running", "other", "save"), state="running", says=[],
     must=[
         "checkpoint",
         ("missing", "damaged", "gone", "removed", "cannot be read", "not there", "unreadable", "no such file", "incomplete", "not be resumed"),
         ("older", "step-", "step 0", "from scratch", "from the start", "from the beginning", "newest", "next"),
     ],
     never=["preempted", FINE, MUTE], job=over(checkpoint={"interval_steps": 40}), soon_s=60)  # fmt: skip
def _(cluster, run):
    run.wait_saved(1)
    for file in checkpoints(run)[-1].rglob("*"):
        if file.is_file() and "manifest" not in file.name.lower():
            file.unlink(missing_ok=True)
    kill(run.rank(1)["pid"])


@act("the disk fills up", kind=("running", "disk_full", "save"), state="running", says=[("full", "space", "sav", "checkpoint", "enospc", "quota")],
     must=[("full", "space", "enospc", "quota"), ("sav", "checkpoint")], never=["preempted", "cancelled", FINE, MUTE],
     job=over(checkpoint={"interval_steps": 20}), soon_s=60)  # fmt: skip
def _(cluster, run):
    stack = contextlib.ExitStack()
    small = stack.enter_context(cluster.small_disk())
    atexit.register(stack.close)
    folder = run.paths.root / "checkpoints"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(OSError), open(os.path.join(small, "filler"), "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65536)
    place = os.path.join(small, "checkpoints")
    with contextlib.suppress(OSError), open(os.path.join(small, "filler"), "r+b") as file:
        file.truncate(max(0, os.path.getsize(file.name) - 8192))  # room for a name, not for a checkpoint
    os.mkdir(place)
    with contextlib.suppress(OSError), open(os.path.join(small, "more"), "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)
    aside = folder.with_name("checkpoints.kept")
    os.rename(folder, aside)
    os.symlink(place, folder)

    def undo():
        with contextlib.suppress(OSError):
            folder.unlink()
            os.rename(aside, folder)
        stack.close()

    return undo


# A file lies where the folder of checkpoints was: no save can succeed, and training goes on for now or ends and says so.
@act("a file in place of the checkpoints", kind=("running", "save", "other", "pending"), state="running", says=[("sav", "checkpoint")],
     must=[("checkpoint",), ("not a directory", "enotdir", "cannot be written", "could not be written", "cannot be saved", "failed", "file exists", "is a file", "no checkpoint can")],
     never=["preempted", "cancelled", "disk is full", FINE, MUTE], job=over(checkpoint={"interval_steps": 20}), soon_s=60)  # fmt: skip
def _(cluster, run):
    folder = run.paths.root / "checkpoints"
    aside = folder.with_name("checkpoints.kept")
    os.rename(folder, aside)
    folder.write_text("not a folder\n")

    def undo():
        with contextlib.suppress(OSError):
            if folder.is_file():
                folder.unlink()
                os.rename(aside, folder)

    return undo


# --- processes


@act("kill -9 of a worker", kind=("signal", "running"), rank=1, state="running", says=["rank 1", ("kill", "signal 9")], must=["rank 1", ("kill", "signal 9"), BACK],
     never=["preempted", "cancelled", "has failed for good", FINE, MUTE, "rank 0 was killed", "rank 0 died"], soon_s=40)  # fmt: skip
def _(cluster, run):
    kill(run.rank(1)["pid"])


@act("kill -9 of an agent", kind=("node", "slurm_node", "running", "pending", "other"), state="running", says=[(*HOST2, "agent")],
     must=[HOST2, BACK], never=["preempted", "cancelled", "time limit reached", FINE, MUTE, "out of memory"], soon_s=90)  # fmt: skip
def _(cluster, run):
    kill(agent_of(run, 1))


@act("kill -9 of the leader", kind=("leader", "running", "pending"), state="running", says=["leader"], must=["leader", BACK],
     never=["preempted", "cancelled", "time limit reached", FINE, MUTE], soon_s=90)  # fmt: skip
def _(cluster, run):
    kill(run.state()["leader_pid"])


@act("kill -9 of the batch script", kind=("script_gone", "running", "pending"), state="running", says=["batch script"], must=["batch script", BACK],
     never=["preempted", "cancelled by", "time limit reached", FINE, MUTE], soon_s=90)  # fmt: skip
def _(cluster, run):
    kill(batch_shell(run))


# SLURM ends its step; the agents are started again.
@act("kill -9 of srun", kind=("running", "leader"), state="running", says=[], must=[("running", "runs", "train")], never=["preempted", "cancelled by", "time limit reached", FINE, MUTE], soon_s=90)  # fmt: skip
def _(cluster, run):
    children = [p for p in batch_shell(run).children(recursive=True) if p.name() == "srun"]
    if not children:
        raise RuntimeError("no srun below the batch script")
    pids = {p.pid for p in children}
    kill(next(p for p in children if p.ppid() not in pids))


# Workers that live may outlive it. Either nothing has happened to the run, which then runs; or it (or what it took along) is named.
@act("kill -9 of the fork server", kind=("running", "signal", "node", "exit", "start", "other"), state="running", says=[],
     must=[("fork server", "forkserver", "rank 1", *HOST2, "running", "runs", "train")],
     never=["preempted", "cancelled", "has failed", "time limit reached", MUTE, "rank 0 was killed", "rank 0 died"], soon_s=40)  # fmt: skip
def _(cluster, run):
    kill(fork_server_of(run, 1))
    time.sleep(5)


# After it a rank is killed: the new round needs a fork server on that host, and the story of the rank has to stay right.
@act("kill -9 of the fork server and then of its worker", kind=("running", "signal", "node", "start", "other", "pending"), state="running",
     says=[("rank 1", "fork server", "forkserver", *HOST2)], must=[("kill", "signal 9"), BACK],
     never=["preempted", "cancelled", "time limit reached", FINE, MUTE, "rank 0 was killed", "rank 0 died"], soon_s=60)  # fmt: skip
def _(cluster, run):
    worker = run.rank(1)["pid"]
    kill(fork_server_of(run, 1))
    time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        kill(worker)


@act("kill -STOP of a worker", kind=("hang", "running"), rank=1, state="running", says=["rank 1", ("stopped", "frozen", "stands still", "stood still", "sigstop", "suspended", "halted")],
     must=["rank 1", ("stopped", "frozen", "sigstop", "suspended", "stands still", "stood still", "halted"), BACK],
     never=["preempted", "cancelled", "was killed by", FINE, MUTE], soon_s=40)  # fmt: skip
def _(cluster, run):
    pid = run.rank(1)["pid"]
    kill(pid, signal.SIGSTOP)
    return go_on(pid)


@act("kill -STOP of an agent", kind=("node", "slurm_node", "running", "pending"), state="running", says=[(*HOST2, "agent")],
     must=[HOST2, ("silent", "answer", "heard", "gone", "lost", "stands still", "stopped", "frozen"), BACK],
     never=["preempted", "cancelled", "time limit reached", FINE, MUTE, "out of memory"], soon_s=90)  # fmt: skip
def _(cluster, run):
    pid = agent_of(run, 1).pid
    kill(pid, signal.SIGSTOP)
    return go_on(pid)


@act("kill -STOP of the leader", kind=("leader", "running", "pending"), state="running", says=["leader"],
     must=["leader", ("silent", "answer", "heard", "written", "stands still", "stood still", "stopped", "frozen", "gone",
                     "respond"), BACK],  # "respond": after the first run
     never=["preempted", "cancelled", "time limit reached", FINE, MUTE], soon_s=120)  # fmt: skip
def _(cluster, run):
    pid = run.state()["leader_pid"]
    kill(pid, signal.SIGSTOP)
    return go_on(pid)


# === the launcher's own =========================================================================================================


# Nothing that was saved can be used. To begin again from nothing, or to end, may both be right; to be silent about it is not.
@act("every checkpoint is damaged, and resubmit", kind=("running", "pending", "unloadable", "other", "save", "completed", "cancelled", "user"), state="running", says=[],
     must=["checkpoint", ("damaged", "corrupt", "broken", "does not match", "do not match", "cannot be read", "unusable", "hash", "not be resumed"),
           ("from scratch", "step 0", "from the start", "from the beginning", "no usable", "no checkpoint", "none of", "nothing to resume", "all of", "all its", "every")],
     never=["preempted", FINE, MUTE], job=over(checkpoint={"interval_steps": 20}), soon_s=120)  # fmt: skip
def _(cluster, run):
    run.wait_saved(1)
    act.verb(cluster, "cancel", run.paths.id)
    wait_gone(cluster, run.job_id)
    for folder in checkpoints(run):
        for file in folder.rglob("*"):
            if file.is_file() and file.stat().st_size > 64 and "manifest" not in file.name.lower():
                with open(file, "r+b") as out:
                    out.seek(file.stat().st_size // 2)
                    out.write(b"\xff\x00blind\xff\x00" * 3)
    act.verb(cluster, "resubmit", run.paths.id)


def new_worker(run, rank, old, limit_s=40):
    """Until a rank has another process, which has begun to train."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            entry = run.rank(rank)
            if entry["pid"] and entry["pid"] != old and (entry.get("step") or 0) > 0:
                return entry["pid"]
        time.sleep(0.3)
    raise RuntimeError(f"rank {rank} was not started again")


def step_of(run):
    with contextlib.suppress(Exception):
        return int(run.state().get("step") or run.rank(0).get("step") or 0)
    return 0


COUNT_3 = (
    "three",
    "third",
    "3rd",
    " 3 restarts",
    "3 restarts",
    "restarted 3",
    " 3 times",
    "restarts 3",
    "restarts: 3",
    "restart 3",
    "restarts     3",
    "3 rounds",
    "round 3",
    "round 4",
    "4 rounds",
    " 3 failures",
    " 3 of ",
)
COUNT_2 = (
    "two",
    "twice",
    "second",
    "2nd",
    "2 restarts",
    "restarted 2",
    " 2 times",
    "restarts 2",
    "restarts: 2",
    "restart 2",
    "2 rounds",
    "round 2",
    "round 3",
    "3 rounds",
    " 2 failures",
    " 2 of ",
)


# Two times rank 1, then rank 0, with saved progress between: the newest is rank 0's, the third of three.
@act("three restarts in sequence", kind=("signal", "running"), rank=0, state="running", says=["rank 0", ("kill", "signal 9")],
     must=["rank 0", ("kill", "signal 9"), COUNT_3, BACK], never=["preempted", "cancelled", "has failed for good", FINE, MUTE],
     job=over(checkpoint={"interval_steps": 10}), soon_s=60)  # fmt: skip
def _(cluster, run):
    for rank in (1, 1, 0):
        pid = run.rank(rank)["pid"]
        kill(pid)
        new_worker(run, rank, pid)
        run.wait_step(step_of(run) + 25)  # something new is saved


@act("two restarts in sequence, one by STOP", kind=("signal", "running"), rank=1, state="running", says=["rank 1", ("kill", "signal 9")],
     must=["rank 1", ("kill", "signal 9"), COUNT_2, BACK], never=["preempted", "cancelled", "has failed for good", FINE, MUTE],
     job=over(checkpoint={"interval_steps": 10}), soon_s=60)  # fmt: skip
def _(cluster, run):
    pid = run.rank(0)["pid"]
    kill(pid, signal.SIGSTOP)
    new_worker(run, 0, pid)
    run.wait_step(step_of(run) + 25)
    pid = run.rank(1)["pid"]
    kill(pid)
    new_worker(run, 1, pid)


# A worker of the launcher's may hold TERM back (it is SLURM's word) and train on, or die of it. The job was neither preempted nor cancelled.
@act("TERM of a worker by hand", kind=("signal", "running"), state="running", says=[], must=[("rank 1", "running", "runs", "train")],
     never=["preempted", "cancelled", "time limit reached", "sigkill", MUTE, "rank 0 was killed", "rank 0 died"], soon_s=40)  # fmt: skip
def _(cluster, run):
    kill(run.rank(1)["pid"], signal.SIGTERM)
    time.sleep(5)


@act("SEGV of a worker by hand", kind=("signal", "running"), rank=0, state="running", says=["rank 0", ("segv", "segmentation")],
     must=["rank 0", ("segv", "segmentation"), BACK], never=["preempted", "cancelled", "sigkill", FINE, MUTE], soon_s=40)  # fmt: skip
def _(cluster, run):
    kill(run.rank(0)["pid"], signal.SIGSEGV)
