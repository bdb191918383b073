"""Why an attempt ended though no rank failed: somebody took the nodes, or stopped the run; pure."""

from __future__ import annotations

from launcher.report import formats
from launcher.report.diagnosis.evidence import Root
from launcher.report.diagnosis.explanation import Explain, Explanation, at_step
from launcher.report.model.history import History, as_dict, as_number
from launcher.report.model.summary import RunSummary
from launcher.run import events as ev


def _time_limit(root: Root, h: History, s: RunSummary) -> Explanation:
    minutes = as_number(h.spec.get("timeout_min"))
    limit = f" of {formats.duration(minutes * 60)}" if minutes else ""
    longer = f" (add resources.timeout_min={2 * minutes:g} for twice the time)" if minutes else ""
    fix = f"launcher resubmit {{run}} continues it{longer}"
    return Explanation(f"The run reached its time limit{limit}{at_step(root)}.", fix)


def _preempted(root: Root, h: History, s: RunSummary) -> Explanation:
    resubmit = "launcher resubmit {run} continues it"
    stop = root.of(ev.StopRequested)
    at_once = (stop.cause or root.of(ev.SignalReceived).meaning) == "preempted_now" or stop.deadline_s == 0
    back = h.last(ev.Requeued)
    if at_once and back is not None and back.how == "slurm":  # SLURM does not tell one from the other
        held = s.state == "pending" and "held" in s.reason.lower()
        how = "and holds it (scontrol requeuehold)" if held else "to its queue: a preemption, or scontrol requeue"
        return Explanation(f"SLURM took the job back{at_step(root)} {how}.", resubmit)
    how = " without grace" if at_once else ""
    return Explanation(f"SLURM preempted the run{how}{at_step(root)}.", resubmit)


def _signal_name(root: Root, h: History) -> str | None:
    """Return the name of the signal that the stop was decided upon."""
    names = [e.name for e in h.of(ev.SignalReceived) if e.attempt == root.attempt]
    return names[-1] if names else None


def _script_gone(root: Root, h: History, s: RunSummary) -> Explanation:
    return Explanation(
        "The job's batch script was killed, and SLURM then ends the whole job.", "launcher resubmit {run}"
    )


def _cancelled(root: Root, h: History, s: RunSummary) -> Explanation:
    job = f" {s.job_id}" if s.job_id else ""
    sentence = f"The job{job} was cancelled (scancel, by its owner or an administrator)."
    if s.backend == "local":
        sentence = "The run was cancelled on this machine (`launcher cancel`, Ctrl-C or a signal to its processes)."
    return Explanation(sentence, "launcher resubmit {run} continues it")


def _chain(root: Root, h: History, s: RunSummary) -> Explanation:
    return Explanation(root.reason, "launcher resubmit {run} starts it all the same")


def _user(root: Root, h: History, s: RunSummary) -> Explanation:
    also = " or Ctrl-C" if s.backend == "local" else ""
    return Explanation(f"The run was cancelled with `launcher cancel`{also}.", "launcher resubmit {run} continues it")


def _terminated(root: Root, h: History, s: RunSummary) -> Explanation:
    name = _signal_name(root, h) or "TERM"
    by = f"scancel --signal={name}, by a user or an administrator"
    sentence = f"The job received SIG{name}, which SLURM did not send ({by}): it saved and ended."
    return Explanation(sentence, "launcher resubmit {run} continues it")


def _unknown_signal(root: Root, h: History, s: RunSummary) -> Explanation:
    name = _signal_name(root, h)
    sentence = f"{f'SIG{name}' if name else 'A signal'} came, and SLURM did not answer why; the run saved and stopped."
    return Explanation(sentence, "if nobody cancelled it: launcher resubmit {run}")


def _idle(root: Root, h: History, s: RunSummary) -> Explanation:
    minutes = as_number(as_dict(h.spec.get("restart")).get("idle_timeout_min"))
    limit = f" for {minutes:g} minutes (restart.idle_timeout_min)" if minutes else ""
    return Explanation(f"The run made no progress{limit}; its allocation was given back.", "launcher logs {run}")


def _total_hours(root: Root, h: History, s: RunSummary) -> Explanation:
    hours = as_number(as_dict(h.spec.get("restart")).get("max_total_hours"))
    cap = f"{hours:g} hours" if hours else "all the hours"
    sentence = f"The run's attempts have used {cap} of allocation (restart.max_total_hours)."
    return Explanation(sentence, "launcher resubmit {run} restart.max_total_hours=... continues it")


def _lost_requeue(root: Root, h: History, s: RunSummary) -> Explanation:
    return Explanation(root.reason.partition(" launcher resubmit")[0], "launcher resubmit {run} continues it")


TAKEN: dict[str, Explain] = {
    "time_limit": _time_limit,
    "preempted": _preempted,
    "script_gone": _script_gone,
    "cancelled": _cancelled,
    "chain": _chain,
    "user": _user,
    "terminated": _terminated,
    "unknown_signal": _unknown_signal,
    "idle": _idle,
    "total_hours": _total_hours,
    "lost_requeue": _lost_requeue,
}
