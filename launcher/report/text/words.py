"""Every event in words: what happened, in one line; pure."""

from __future__ import annotations

from collections.abc import Callable

from launcher.report import formats
from launcher.report.model.history import Event, as_dict, as_list, as_number
from launcher.run.units import named_ranks, signal_name, size

__all__ = ["LEVELS", "MEANINGS", "cause_words", "level", "words"]

MEANINGS = {
    "preempted": "preempted",
    "preempted_now": "preempted without grace",
    "script_gone": "batch script killed",
    "cancelled": "cancelled",
    "time_limit": "time limit",
    "user": "asked by the user",
    "terminated": "sent by hand",
    "nothing": "SLURM wants nothing of the job",
    "idle": "idle",
    "total_hours": "hours used up",
    "leader": "leader died",
    "unknown": "SLURM did not say why",
}

LEVELS = {
    "bad": ("worker_failed", "node_lost", "hang", "store_lost", "save_failed", "checkpoint_damaged"),
    "warning": ("warning", "node_missing", "signal", "stop_requested", "excluded", "readmitted", "victims"),
    "good": ("saved", "first_step", "evaluated", "epoch"),
}
"""How an event looks; the words say it too."""


def level(e: Event) -> str:
    """bad, warning, good or plain."""
    if e["type"] == "ended":
        return {"completed": "good", "failed": "bad"}.get(str(e.get("state")), "warning")
    if e["type"] == "preflight":
        return "plain" if e.get("ok", True) else "bad"
    return next((name for name, types in LEVELS.items() if e["type"] in types), "plain")


def words(e: Event) -> str:
    """One line for one event; an unknown type is named as it is."""
    teller = _TELLERS.get(e["type"])
    if teller is None:
        return formats.clean(e["type"].replace("_", " "))
    try:
        return formats.clean(teller(e), 300)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):  # another version's event
        return formats.clean(e["type"].replace("_", " "))


def _step(e: Event) -> str:
    step = as_number(e.get("step"))
    return "" if step is None else f"step {formats.count(step)}"


def _at_step(e: Event) -> str:
    return f" at {_step(e)}" if _step(e) else ""


def _reached(e: Event) -> str:
    """`_at_step` of an end. A script that reports no steps ends with 0, which says nothing."""
    return _at_step(e) if e.get("step") else ""


def _hosts(value: object, limit: int = 4) -> str:
    return formats.short_list([str(h) for h in as_list(value)], limit)


def _submitted(e: Event) -> str:
    how = {"resubmit": "resubmitted", "continuation": "continuation submitted"}.get(str(e.get("by")), "submitted")
    job = e.get("job_id")  # unknown when the event is written: SLURM has yet to give it
    where = " on this machine" if e.get("backend") == "local" else f" as job {job}" if job else ""
    changes = [str(c) for c in as_list(e.get("changes"))]
    return f"{how}{where}" + (f" with {' '.join(changes)}" if changes else "")


def _attempt_started(e: Event) -> str:
    waited = as_number(e.get("submitted_t"))
    after = f" after {formats.duration(e['t'] - waited)}" if waited is not None and e["t"] > waited else ""
    return f"attempt {e.get('attempt')} started on {e.get('host', '?')}{after}"


def _node_joined(e: Event) -> str:
    facts = as_dict(e.get("facts"))
    gpus, cpus = facts.get("gpus"), facts.get("cpus")
    what = f": {formats.plural(gpus, 'GPU')}" if isinstance(gpus, int) and gpus else f": {cpus} CPUs" if cpus else ""
    return f"{e.get('host', '?')} joined{what}"


def _node_missing(e: Event) -> str:
    ranks = [r for r in as_list(e.get("ranks")) if isinstance(r, int)]
    who = f" ({named_ranks(ranks)})" if ranks else ""
    return f"waiting for {_hosts(e.get('nodes'))}{who}, {formats.duration(as_number(e.get('waited_s')))} so far"


def _preflight(e: Event) -> str:
    bad = [c for c in map(as_dict, as_list(e.get("checks"))) if not c.get("ok", True)]
    speed = as_number(e.get("bandwidth_gb_s"))
    if e.get("ok", True) and not bad:
        return f"nodes checked in {formats.duration(as_number(e.get('seconds')))}" + (
            f", all-reduce {speed:.3g} GB/s" if speed else ""
        )
    found = [f"{c.get('host', '?')}: {c.get('name', '?')} ({c.get('detail', '')})" for c in bad]
    return f"node check failed: {formats.short_list(found, 2)}"


def _round_started(e: Event) -> str:
    hosts = list(dict.fromkeys(str(as_dict(r).get("host", "?")) for r in as_list(e.get("ranks"))))
    step = as_number(e.get("resume_step"))
    origin = f"from step {formats.count(step)}" if step else "from scratch"
    where = f" on {formats.short_list(hosts)}" if hosts else ""
    return f"round {e.get('round')} started {origin}: {formats.plural(int(e.get('world_size') or 0), 'rank')}{where}"


def _evaluated(e: Event) -> str:
    values = formats.metric_list(as_dict(e.get("metrics")))
    return f"evaluated{_at_step(e)}: {values}" if values else f"evaluated{_at_step(e)}"


def _saved(e: Event) -> str:
    saved_bytes, seconds = as_number(e.get("bytes")), as_number(e.get("seconds"))
    held = as_number(e.get("blocked_s"))
    details = [size(saved_bytes)] if saved_bytes else []
    details += [f"in {formats.duration(seconds)}"] if seconds is not None else []
    details += [f"training paused for {formats.duration(held)} of it"] if held and seconds and held < seconds else []
    return f"saved {_step(e)}" + (
        f": {' '.join(details[:2])}{', ' + details[2] if len(details) > 2 else ''}" if details else ""
    )


def cause_words(cause: dict[str, object]) -> str:
    """A CAUSE in a few words."""
    if cause.get("oom"):
        return "killed for exceeding the memory limit"
    if cause.get("exception"):
        message = formats.clean(cause.get("message") or "", 160)
        return f"{cause['exception']}: {message}" if message else str(cause["exception"])
    if cause.get("signal"):
        return f"killed by {signal_name(cause['signal'])}"
    if cause.get("exit_code") is not None:
        return f"exit code {cause['exit_code']}"
    return str(cause.get("text") or cause.get("kind") or "failed")


def _worker_failed(e: Event) -> str:
    if len(as_list(e.get("ranks"))) > 1 and as_dict(e.get("cause")).get("text"):
        return str(as_dict(e["cause"])["text"])  # it names all that failed in this way
    return (
        f"rank {e.get('rank', '?')} on {e.get('host', '?')} failed{_at_step(e)}: {cause_words(as_dict(e.get('cause')))}"
    )


def _victims(e: Event) -> str:
    ranks = [r["rank"] for r in map(as_dict, as_list(e.get("ranks"))) if isinstance(r.get("rank"), int)]
    return f"{named_ranks(ranks)} failed because of it"


def _node_lost(e: Event) -> str:
    why = {"silent": "it fell silent", "closed": "its connection closed", "slurm": "SLURM says it is down"}
    return f"lost {e.get('host', '?')}: {why.get(str(e.get('why')), str(e.get('why') or 'gone'))}"


def _hang(e: Event) -> str:
    slow = [f"rank {r.get('rank', '?')} on {r.get('host', '?')}" for r in map(as_dict, as_list(e.get("laggards")))]
    who = f"; behind: {formats.short_list(slow)}" if slow else ""
    return f"no progress for {formats.duration(as_number(e.get('limit_s')))}{who}"


def _meaning(value: object) -> str:
    return MEANINGS.get(str(value), str(value))


def _stop_requested(e: Event) -> str:
    left = as_number(e.get("deadline_s"))
    save = "" if e.get("save", True) else ", without saving"
    return f"stopping ({_meaning(e.get('cause'))}){f', {formats.duration(left)} left' if left else ''}{save}"


def _stopped(e: Event) -> str:
    lost = as_number(e.get("lost_steps"))
    return f"stopped{_reached(e)}" + ("" if lost is None else f", {formats.plural(int(lost), 'step')} lost")


def _requeued(e: Event) -> str:
    how = {"continuation": f"continuation submitted as job {e.get('job_id')}", "slurm": "SLURM requeues it"}
    return how.get(str(e.get("how")), f"requeued as job {e.get('job_id')}")


def _first_step(e: Event) -> str:
    took = formats.duration(as_number(e.get("seconds")))
    return f"first step ({formats.count(e['step'])}){f' after {took}' if took else ''}"


def _ended(e: Event) -> str:
    reason = e.get("reason")
    return f"{e.get('state', 'ended')}{_reached(e)}" + (f": {reason}" if reason else "")


_TELLERS: dict[str, Callable[[Event], str]] = {
    "submitted": _submitted,
    "attempt_started": _attempt_started,
    "node_joined": _node_joined,
    "node_missing": _node_missing,
    "waiting": lambda e: f"waits for {formats.short_list([str(r) for r in as_list(e.get('runs'))])}",
    "preflight": _preflight,
    "round_started": _round_started,
    "first_step": _first_step,
    "epoch": lambda e: f"epoch {formats.number(e.get('epoch'))} done, loss {formats.number(e.get('loss'))}",
    "evaluated": _evaluated,
    "save_started": lambda e: f"saving {_step(e)}",
    "saved": _saved,
    "save_failed": lambda e: f"saving {_step(e)} failed: {e.get('errno_name') or ''} {e.get('error') or ''}",
    "checkpoint_damaged": lambda e: (
        f"checkpoint {str(e.get('path', '')).rsplit('/', 1)[-1]} is damaged: {e.get('why')}"
    ),
    "worker_failed": _worker_failed,
    "victims": _victims,
    "node_lost": _node_lost,
    "hang": _hang,
    "store_lost": lambda e: f"the store on {e.get('host', '?')} is gone",
    "signal": lambda e: f"SIG{e.get('name')} on {e.get('host', '?')}: {_meaning(e.get('meaning'))}",
    "stop_requested": _stop_requested,
    "agreed": lambda e: f"all ranks stop after {_step(e)}",
    "stopped": _stopped,
    "decision": lambda e: f"decided: {str(e.get('action', '?')).replace('_', ' ')} ({e.get('reason', '')})",
    "excluded": lambda e: f"will not use {_hosts(e.get('hosts'))} again: {e.get('why', '')}",
    "readmitted": lambda e: f"may use {_hosts(e.get('hosts'))} again: {e.get('why', '')}",
    "requeued": _requeued,
    "round_ended": lambda e: f"round {e.get('round')} ended: {e.get('why', '')}",
    "attempt_ended": lambda e: f"attempt {e.get('attempt')} ended: {e.get('why', '')}",
    "ended": _ended,
    "notified": lambda e: f"notification sent: {e.get('kind')}",
    "warning": lambda e: f"warning: {e.get('text', '')}",
}
