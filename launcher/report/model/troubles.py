"""What is wrong or slow with a run while it lives, the most pressing first: a sentence each, and what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from launcher.frozen import frozen
from launcher.report import formats
from launcher.report.model.history import History, as_number, as_text
from launcher.report.model.kept_off import job_option, kept_off
from launcher.report.model.pending import PendingReason, pending_reason
from launcher.report.model.summary import RunSummary
from launcher.run import events as ev
from launcher.run.not_finite_since import not_finite_since
from launcher.run.units import all_ranks, named_ranks, short_list

SLOW_RANK = 1.5
"""A rank, or a host, that needs this much longer for a step than the others is slow: they wait a third of their time."""
_WAITS = 0.5
"""Training waits for data when that takes this part of a step."""
_SAVES = 0.2
"""Saves are slow when they stop training for this part of its time."""
_PAUSES = 3
_WARM_UP = 20
"""The first steps of a round compile, fill caches and open files."""
_SIGNAL_S = 600.0
_RECENT = 6
"""Saves that are looked at."""


@frozen
class Trouble:
    """One thing that is wrong, or slow."""

    kind: str
    """held, pending, excluded, suspended, silent, missing, saving, not_finite, ended, slow_host, slow_rank, pauses, data, saves, signal."""
    sentence: str
    """What, where and since when."""
    next: str
    """What to do: a command, or a clause."""


def troubles(h: History, s: RunSummary, now: float) -> list[Trouble]:
    """Everything that is wrong with an active run now; of one that has ended before its time, what another attempt would go on with."""
    if s.state == "pending":
        return list(_pending(h, s))
    if s.state in ("cancelled", "failed"):
        return list(_left_not_finite(h, s))
    return list(_running(h, s, now)) if s.state == "running" else []


def _said_nothing(s: RunSummary, now: float) -> str:
    """``nothing for 3 min``, of a silent leader; without a time where the clocks do not tell it."""
    quiet_s = now - (s.heard or now)
    return f"nothing for {formats.duration(quiet_s)}" if quiet_s >= 1 else "nothing recently"


def _pending(h: History, s: RunSummary) -> Iterator[Trouble]:
    if (off := kept_off(h, s)) is not None:
        yield Trouble("excluded", off.sentence, off.command)
    elif (why := _reason(h, s)) is not None:
        kind = "held" if "held" in s.reason.lower() or "hold" in s.reason.lower() else "pending"
        yield Trouble(
            kind, f"SLURM does not start job {s.job_id}: {why.means} ({formats.clean(s.reason, 80)}).", why.ends
        )


def _reason(h: History, s: RunSummary) -> PendingReason | None:
    reservation = job_option(h, "reservation") if s.reason.startswith("Reservation") else ""
    nodes = job_option(h, "nodelist") if s.reason.startswith("ReqNode") else ""
    names = {"partition": s.partition, "reservation": reservation, "nodes": nodes}
    return pending_reason(s.reason, s.run, s.job_id or "JOB", **names)


def _running(h: History, s: RunSummary, now: float) -> Iterator[Trouble]:
    if s.phase == "suspended":
        yield Trouble(
            "suspended",
            f"SLURM has suspended job {s.job_id}: its processes are stopped.",
            f"scontrol resume {s.job_id}",
        )
        return
    if s.silent and s.heard is not None:
        sentence = f"The leader has written {_said_nothing(s, now)}; it may be dead or the file system slow."
        yield Trouble("silent", sentence, f"launcher logs {s.run}")
    if s.late:
        look = "sinfo -R says why SLURM does not use a node" if s.backend == "slurm" else f"launcher logs {s.run}"
        yield Trouble("missing", f"The run waits for {_missing(s)}.", look)
    if s.save_failures:
        times = "failed" if s.save_failures == 1 else f"failed {s.save_failures} times in a row"
        why = f": {formats.clean(s.save_error, 200)}" if s.save_error else ""
        sentence = f"The run is {s.doing}, but saving has {times}{why}."
        yield Trouble("saving", sentence, f"make room, or check the file system of {s.dir}")
    yield from _not_finite(h, s)
    if any((e.attempt, e.round) == (s.attempt, s.round) for e in h.of(ev.RoundEnded)):
        return  # its ranks have ended; the next round is about to begin
    yield from _ended(s, now)
    begun = h.last(ev.FirstStep)
    if begun is not None and s.step is not None and s.step - (begun.step or 0) >= _WARM_UP:
        slow = list(_slow(s))
        yield from slow or _keeping(s)
        yield from _data(s)
    yield from _saves(h)
    yield from _signal(h, s, now)


def _signal(h: History, s: RunSummary, now: float) -> Iterator[Trouble]:
    """A signal that somebody sent a moment ago and that means nothing to the launcher."""
    e = h.last(ev.SignalReceived)
    if e is None or e.meaning != "nothing" or e.attempt != s.attempt or now - e.t > _SIGNAL_S:
        return
    sentence = f"SIG{e.name} came {formats.ago(now - e.t)}, and SLURM did not send it: training goes on."
    yield Trouble("signal", sentence, f"launcher cancel {s.run} --save saves and ends it")


def _missing(s: RunSummary) -> str:
    """``node2 (ranks 2-5), 95 s so far``."""
    who = []
    for m in s.late:
        ranks = [r for r in m.get("ranks") or [] if isinstance(r, int)]
        who.append(as_text(m.get("host"), "?") + (f" ({named_ranks(ranks)})" if ranks else ""))
    since = f", {formats.duration(s.waited_s)} so far" if s.waited_s is not None else ""
    return short_list(who) + since


def _not_finite(h: History, s: RunSummary) -> Iterator[Trouble]:
    """Metrics that are not finite in the newest round, those that still are first."""
    for e in sorted(_of_newest_round(h, s), key=lambda e: e.until is not None):
        who = _whose(e, s)
        if e.until is not None:
            past = f"was {e.value} at step {formats.count(e.step)}, and finite again at step {formats.count(e.until)}"
            sentence = f"The metric {e.metric} of {who} {past}."
            yield Trouble("not_finite", sentence, "compare the data and the learning rate of that step")
            continue
        sentence = (
            f"The metric {e.metric} of {who} has been {e.value} since step {formats.count(e.step)}; training goes on."
        )
        good = _before(h, e)
        back = f"launcher cancel {s.run} ends it; there is no checkpoint from before step {formats.count(e.step)}"
        if good is not None:
            back = f"launcher cancel {s.run}, then: launcher resubmit {s.run} --code --from {good}"
        yield Trouble("not_finite", sentence, back)


def _left_not_finite(h: History, s: RunSummary) -> Iterator[Trouble]:
    """Metrics that were not finite when the run ended: its newest checkpoints hold that."""
    for e in _of_newest_round(h, s):
        if e.until is None:
            good, step = _before(h, e), formats.count(e.step)
            again = f"launcher resubmit {s.run} --code --from {good}"
            if good is None:
                again = f"submit the job anew: there is no checkpoint from before step {step}"
            sentence = f"The metric {e.metric} of {_whose(e, s)} was {e.value} from step {step} on."
            yield Trouble("not_finite", sentence, again)


def _of_newest_round(h: History, s: RunSummary) -> list[ev.NotFinite]:
    """What was told last of each metric that was not finite there."""
    told = [e for e in h.of(ev.NotFinite) if (e.attempt, e.round) == (s.attempt, s.round)]
    return list({e.metric: e for e in told if e.metric is not None}.values())


def _whose(e: ev.NotFinite, s: RunSummary) -> str:
    """``rank 1 (node2)``; ``all 4 ranks``."""
    ranks = [r for r in e.ranks if r.rank is not None]
    if len(ranks) == s.world_size and len(ranks) > 1:
        return all_ranks(len(ranks))
    hosts = dict.fromkeys(r.host for r in ranks if r.host)
    return f"{named_ranks(r.rank for r in ranks if r.rank is not None)} ({short_list(list(hosts))})"


def _before(h: History, e: ev.NotFinite) -> int | None:
    """The newest checkpoint from before the metric was not finite, in this round or in one that it went on from."""
    bad = not_finite_since(h.events).get(e.metric or "", e.step or 0)
    return max((saved for saved in h.checkpoints if saved < bad), default=None)


def _ended(s: RunSummary, now: float) -> Iterator[Trouble]:
    """Ranks of a script whose processes have ended while others are still in it."""
    ranks = [r for r in s.ranks if isinstance(r.get("rank"), int)]
    ended = {r["rank"]: as_number(r.get("ended_t")) for r in ranks if r.get("phase") == "ended"}
    others = [r["rank"] for r in ranks if r["rank"] not in ended]
    if not ended or not others:
        return
    since = max((t for t in ended.values() if t is not None), default=now)
    have, are = "has" if len(ended) == 1 else "have", "is" if len(others) == 1 else "are"
    ranks_ended, ranks_left = named_ranks(ended), named_ranks(others)
    sentence = (
        f"{ranks_ended} {have} ended; {ranks_left} {are} still in the script, {formats.duration(now - since)} so far."
    )
    yield Trouble("ended", sentence[0].upper() + sentence[1:], f"launcher logs {s.run} --rank {others[0]}")


def _slow(s: RunSummary) -> Iterator[Trouble]:
    """A host whose ranks are all slow, else the ranks that are: what a step takes without waiting for others."""
    times = {r["rank"]: t for r in s.ranks if isinstance(r.get("rank"), int) and (t := as_number(r.get("own_s")))}
    hosts = defaultdict(list)
    for r in s.ranks:
        if r.get("rank") in times:
            hosts[as_text(r.get("host"))].append(r["rank"])
    faster_half = sorted(times.values())[: (len(times) + 1) // 2]  # whoever is slow is not in it
    usual = formats.median(faster_half)
    slow = {rank: t / usual for rank, t in times.items() if t >= SLOW_RANK * usual}
    if not slow:
        return
    whole = [host for host, ranks in hosts.items() if len(ranks) > 1 and all(rank in slow for rank in ranks)]
    worst = max(slow, key=lambda rank: slow[rank])
    factor = f"{slow[worst]:.1f} times as long"
    data = next((as_number(r.get("data_part")) for r in s.ranks if r.get("rank") == worst), None)
    part = f" ({100 * data:.0f} % of it waiting for data)" if data is not None and data >= _WAITS else ""
    look = (
        f"launcher shell --rank {worst} {s.run} top"
        if not part
        else f"look at the data set's file system on {_host(s, worst)}"
    )
    if whole and sum(len(hosts[host]) for host in whole) == len(slow):
        its = named_ranks(sorted(slow))
        sentence = f"Host {short_list(whole)} is slow: its {its} take up to {factor} for a step as the others{part}."
        yield Trouble("slow_host", sentence, look)
        return
    who = named_ranks(sorted(slow))
    verb = "takes" if len(slow) == 1 else "take up to"
    sentence = f"{who[0].upper()}{who[1:]} ({_host(s, worst)}) {verb} {factor} for a step as the others{part}; they wait for it."
    yield Trouble("slow_rank", sentence, look)


def _host(s: RunSummary, rank: int) -> str:
    return next((as_text(r.get("host")) for r in s.ranks if r.get("rank") == rank), "?")


def _keeping(s: RunSummary) -> Iterator[Trouble]:
    """A rank that alone is at work in pauses of training, again and again: between steps, where its step times do not show it."""
    for r in s.ranks:
        count = as_number(r.get("kept_waiting")) or 0
        if count >= _PAUSES:
            sentence = f"Rank {r.get('rank')} ({as_text(r.get('host'))}) kept the others waiting {count:g} times in the last 5 min."
            yield Trouble(
                "pauses", sentence, "look at what this rank alone does between steps: evaluation, logging, uploads"
            )
            return


def _data(s: RunSummary) -> Iterator[Trouble]:
    parts = [part for r in s.ranks if (part := as_number(r.get("data_part"))) is not None]
    middle = formats.median(parts)
    if middle < _WAITS:
        return
    sentence = f"Training waits for data: {100 * middle:.0f} % of a step's time."
    yield Trouble(
        "data",
        sentence,
        "more loader processes (num_workers, with resources.cpus_per_task), or a faster file system for the data",
    )


def _saves(h: History) -> Iterator[Trouble]:
    saves = [e for e in h.of(ev.Saved) if e.attempt == h.attempt and e.blocked_s is not None][-_RECENT:]
    if len(saves) < 3:
        return
    blocked = [e.blocked_s or 0.0 for e in saves[1:]]
    part = sum(blocked) / max(saves[-1].t - saves[0].t, 1e-3)
    if part < _SAVES:
        return
    sentence = (
        f"Saves stop training for {100 * part:.0f} % of its time: {formats.duration(formats.median(blocked))} for each."
    )
    yield Trouble(
        "saves", sentence, "save less often (checkpoint.interval_steps, or leave it out), or use a faster file system"
    )
