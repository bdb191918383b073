"""Every event in words: what happened, in one line; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launcher.report import formats
from launcher.run import events as ev
from launcher.run.causes import MEANINGS
from launcher.run.event_parts import Cause
from launcher.run.events import Event
from launcher.run.units import named_ranks, plural, short_list, signal_name, size
from launcher.run.xids import xid_in_words

LEVELS: dict[str, tuple[type[Event], ...]] = {
    "bad": (
        ev.WorkerFailed,
        ev.NodeLost,
        ev.LeaderRevived,
        ev.RevivalFailed,
        ev.Hang,
        ev.StoreLost,
        ev.SaveFailed,
        ev.CheckpointDamaged,
    ),
    "warning": (
        ev.Warned,
        ev.NodeMissing,
        ev.SignalReceived,
        ev.StopRequested,
        ev.Excluded,
        ev.Readmitted,
        ev.Victims,
        ev.NotFinite,
        ev.XidReported,
    ),
    "good": (ev.Saved, ev.FirstStep, ev.Evaluated, ev.EpochDone),
}
"""How an event looks; the words say it too."""

QUIET = (ev.SaveStarted, ev.ProgressAssumed, ev.Notified)
"""Events that say nothing to a reader of a run's story: neither the page nor the screen lists them."""


def level(e: Event) -> str:
    """bad, warning, good or plain."""
    if isinstance(e, ev.Ended):
        return {"completed": "good", "failed": "bad"}.get(e.state or "", "warning")
    if isinstance(e, ev.PreflightDone):
        return "bad" if e.ok is False else "plain"
    return next((name for name, types in LEVELS.items() if isinstance(e, types)), "plain")


def words(e: Event) -> str:
    """One line for one event; an unknown type is named as it is."""
    say = _WORDS.get(type(e))
    return formats.clean(e.type.replace("_", " ") if say is None else say(e), 300)


def _step(step: float | None) -> str:
    return "" if step is None else f"step {formats.count(step)}"


def _at_step(step: float | None) -> str:
    return "" if step is None else f" at {_step(step)}"


def lost_steps(count: int | None) -> str:
    """``, 14 steps lost``: the end of a sentence; empty where that is not known."""
    return "" if count is None else f", {plural(count, 'step')} lost"


def _reached(step: float | None) -> str:
    """`_at_step` of an end. A script that reports no steps ends with 0, which says nothing."""
    return _at_step(step or None)


def _submitted(e: ev.RunSubmitted) -> str:
    how = {"resubmit": "resubmitted", "continuation": "continuation submitted"}.get(e.by or "", "submitted")
    job = e.job_id  # unknown when the event is written: SLURM has yet to give it
    where = " on this machine" if e.backend == "local" else f" as job {job}" if job else ""
    return f"{how}{where}" + (f" with {' '.join(e.changes)}" if e.changes else "")


def _attempt_started(e: ev.AttemptStarted) -> str:
    waited = e.submitted_t
    after = f" after {formats.duration(e.t - waited)}" if waited is not None and e.t > waited else ""
    return f"attempt {e.attempt} started on {e.host or '?'}{after}"


def _node_joined(e: ev.NodeJoined) -> str:
    gpus, cpus = e.facts.get("gpus"), e.facts.get("cpus")
    what = f": {plural(gpus, 'GPU')}" if isinstance(gpus, int) and gpus else f": {cpus} CPUs" if cpus else ""
    return f"{e.host or '?'} joined{what}"


def _node_missing(e: ev.NodeMissing) -> str:
    who = f" ({named_ranks(e.ranks)})" if e.ranks else ""
    return f"waiting for {short_list(e.nodes, 4)}{who}, {formats.duration(e.waited_s)} so far"


def _preflight(e: ev.PreflightDone) -> str:
    bad = [c for c in e.checks if c.ok is False]
    if e.ok is not False and not bad:
        speed = f", all-reduce {e.bandwidth_gb_s:.3g} GB/s" if e.bandwidth_gb_s else ""
        return f"nodes checked in {formats.duration(e.seconds)}{speed}"
    found = [f"{c.host or '?'}: {c.name or '?'} ({c.detail or ''})" for c in bad]
    return f"node check failed: {short_list(found, 2)}"


def _round_started(e: ev.RoundStarted) -> str:
    hosts = list(dict.fromkeys(r.host or "?" for r in e.ranks))
    origin = f"from step {formats.count(e.resume_step)}" if e.resume_step else "from scratch"
    where = f" on {short_list(hosts)}" if hosts else ""
    return f"round {e.round} started {origin}: {plural(e.world_size or 0, 'rank')}{where}"


def _saved(e: ev.Saved) -> str:
    seconds, held = e.seconds, e.blocked_s
    took = f"in {formats.duration(seconds)}" if seconds is not None else ""
    details = " ".join(filter(None, [size(e.bytes or None), took]))
    paused = f", training paused for {formats.duration(held)} of it" if held and seconds and held < seconds else ""
    return f"saved {_step(e.step)}" + (f": {details}{paused}" if details else "")


def cause_words(cause: Cause | None) -> str:
    """A CAUSE in a few words."""
    if cause is None:
        return "failed"
    if cause.oom:
        return "killed for exceeding the memory limit"
    if cause.exception:
        message = formats.clean(cause.message or "", 160)
        return f"{cause.exception}: {message}" if message else cause.exception
    if cause.signal:
        return f"killed by {signal_name(cause.signal)}"
    if cause.exit_code is not None:
        return f"exit code {cause.exit_code}"
    return cause.text or cause.kind or "failed"


def _worker_failed(e: ev.WorkerFailed) -> str:
    if len(e.ranks) > 1 and e.cause is not None and e.cause.text:
        return e.cause.text  # it names all that failed in this way
    rank = "?" if e.rank is None else e.rank
    return f"rank {rank} on {e.host or '?'} failed{_at_step(e.step)}: {cause_words(e.cause)}"


def _xid(e: ev.XidReported) -> str:
    return f"GPU {'?' if e.gpu is None else e.gpu} of {e.host or '?'} reported {xid_in_words(e.xid or 0)}"


def _node_lost(e: ev.NodeLost) -> str:
    why = {"silent": "it stopped responding", "closed": "its connection closed", "slurm": "SLURM says it is down",
           "cut_off": "it stopped responding with all others"}  # fmt: skip
    return f"lost {e.host or '?'}: {why.get(e.why or '', e.why or 'reason unknown')}"


def _leader_revived(e: ev.LeaderRevived) -> str:
    after = f" {formats.duration(e.seconds)} later" if e.seconds else ""
    if e.moved_to is not None:
        return f"lost {e.host or '?'}, the leader's host; {e.moved_to} leads now"
    return f"the leader on {e.host or '?'} died; another one took its place{after}"


def _agent_revived(e: ev.AgentRevived) -> str:
    after = f" after {formats.duration(e.seconds)}" if e.seconds is not None else ""
    return f"the agent on {e.host or '?'} was started again{after}"


def _hang(e: ev.Hang) -> str:
    slow = [f"rank {'?' if r.rank is None else r.rank} on {r.host or '?'}" for r in e.laggards]
    who = f"; furthest behind: {short_list(slow)}" if slow else ""
    if e.laggards and (code := e.laggards[0].exit_code) is not None:
        who = f"; {short_list(slow)} had exited with code {code}"
    return f"no rank progressed for {formats.duration(e.limit_s)}{who}"


def _not_finite(e: ev.NotFinite) -> str:
    ranks = named_ranks(r.rank for r in e.ranks if r.rank is not None)
    if e.until is not None:
        return f"{e.metric or '?'} of {ranks} is finite again{_at_step(e.until)}"
    return f"{e.metric or '?'} of {ranks} is {e.value or 'not finite'} since {_step(e.step)}"


def meaning(value: str | None) -> str:
    """What a cause of a stop is called in a sentence."""
    value = value or "unknown"
    return MEANINGS[value].words if value in MEANINGS else value


def _stop_requested(e: ev.StopRequested) -> str:
    left = f", {formats.duration(e.deadline_s)} left" if e.deadline_s else ""
    return f"stopping: {meaning(e.cause)}{left}{', without saving' if e.save is False else ''}"


def _requeued(e: ev.Requeued) -> str:
    how = {"continuation": f"continuation submitted as job {e.job_id}", "slurm": "SLURM requeues it"}
    return how.get(e.how or "", f"requeued as job {e.job_id}")


def _first_step(e: ev.FirstStep) -> str:
    took = formats.duration(e.seconds)
    return f"first step ({formats.count(e.step)}){f' after {took}' if took else ''}"


_ACTIONS = {
    "complete": "the run is complete",
    "new_round": "restarting the workers",
    "requeue": "requeueing the run",
    "fail": "ending the run",
    "cancel": "ending the run",
    "leave": "this attempt ends",
}

_WORDS: dict[type[Event], Callable[[Any], str]] = {
    ev.RunSubmitted: _submitted,
    ev.AttemptStarted: _attempt_started,
    ev.NodeJoined: _node_joined,
    ev.NodeMissing: _node_missing,
    ev.Waiting: lambda e: f"waits for {short_list(e.runs)}",
    ev.PreflightDone: _preflight,
    ev.RoundStarted: _round_started,
    ev.FirstStep: _first_step,
    ev.EpochDone: lambda e: f"epoch {formats.number(e.epoch)} done, loss {formats.number(e.loss)}",
    ev.Evaluated: lambda e: (
        f"evaluated{_at_step(e.step)}" + (f": {formats.metric_list(e.metrics)}" if e.metrics else "")
    ),
    ev.SaveStarted: lambda e: f"saving {_step(e.step)}",
    ev.Saved: _saved,
    ev.SaveFailed: lambda e: f"saving {_step(e.step)} failed: {e.errno_name or ''} {e.error or ''}",
    ev.CheckpointDamaged: lambda e: f"checkpoint {(e.path or '').rsplit('/', 1)[-1]} is damaged: {e.why or ''}",
    ev.WorkerFailed: _worker_failed,
    ev.Victims: lambda e: (
        f"{named_ranks(r.rank for r in e.ranks if r.rank is not None)} failed because of the first failure"
    ),
    ev.XidReported: _xid,
    ev.NodeLost: _node_lost,
    ev.LeaderRevived: _leader_revived,
    ev.AgentRevived: _agent_revived,
    ev.QueuedEarly: lambda e: f"queued job {e.job_id or '?'} for the next attempt, held until the time limit",
    ev.ReplacementAsked: lambda e: f"submitted job {e.job_id or '?'} for a node that is missing",
    ev.ReplacementRefused: lambda e: f"no job for a node that is missing: {e.why or 'reason unknown'}",
    ev.RerunStarted: lambda e: f"{e.run or '?'} began on {short_list(e.hosts or [], 4)}",
    ev.RerunEnded: lambda e: f"{e.run or '?'} {e.state or 'ended'}" + (f": {e.reason}" if e.reason else ""),
    ev.RevivalFailed: lambda e: f"the agent on {e.host or '?'} could not be started again: {e.why or ''}",
    ev.Hang: _hang,
    ev.NotFinite: _not_finite,
    ev.StoreLost: lambda e: f"lost the rendezvous store on {e.host or '?'}",
    ev.SignalReceived: lambda e: f"SIG{e.name or '?'} on {e.host or '?'}: {meaning(e.meaning)}",
    ev.StopRequested: _stop_requested,
    ev.Agreed: lambda e: f"all ranks stop after {_step(e.step)}",
    ev.Stopped: lambda e: f"stopped{_reached(e.step)}{lost_steps(e.lost_steps)}",
    ev.Decided: lambda e: f"{_ACTIONS.get(e.action or '', e.action or '?')}: {e.reason or ''}",
    ev.Excluded: lambda e: f"will not use {short_list(e.hosts, 4)} again: {e.why or ''}",
    ev.Readmitted: lambda e: f"may use {short_list(e.hosts, 4)} again: {e.why or ''}",
    ev.Requeued: _requeued,
    ev.RoundEnded: lambda e: f"round {e.round} ended: {e.why or ''}",
    ev.AttemptEnded: lambda e: f"attempt {e.attempt} ended: {e.why or ''}",
    ev.Ended: lambda e: f"{e.state or 'ended'}{_reached(e.step)}" + (f": {e.reason}" if e.reason else ""),
    ev.Notified: lambda e: f"notification sent: {e.kind or ''}",
    ev.Warned: lambda e: f"warning: {e.text or ''}",
}
