"""Why a run ended, or was last interrupted: one sentence with the root cause, then the evidence; pure rules, no guessing."""

from __future__ import annotations

import re
from dataclasses import field, replace
from typing import Any

from launcher.frozen import frozen
from launcher.report import formats
from launcher.report.diagnosis.evidence import Root, find_root
from launcher.report.diagnosis.explanation import Explanation, of_them
from launcher.report.diagnosis.explanations import EXPLANATIONS
from launcher.report.diagnosis.traces import place_words, stack_words
from launcher.report.model.history import History, as_dict, as_number, as_text
from launcher.report.model.ledger import interruptions
from launcher.report.model.summary import RunSummary
from launcher.report.model.troubles import Trouble, troubles
from launcher.report.model.verdict import UNKNOWN
from launcher.report.text.status import unreported
from launcher.report.text.words import words
from launcher.run import events as ev
from launcher.run.tracebacks import Trace
from launcher.run.units import named_ranks, plural, short_list

_MOST_PLACES = 4


@frozen(kw_only=True)
class Why:
    """The root cause and what it rests on."""

    run: str
    """The run's id."""
    state: str
    """pending, running, completed, failed or cancelled."""
    kind: str
    """One of the kinds of causes, or completed, pending, running."""
    sentence: str
    """The root cause."""
    rows: list[tuple[str, str]] = field(default_factory=list)
    """(label, text): when, where, stack, error, log, victims, did, damaged, safe, now, next, progress, files; in JSON ``evidence``, texts by
    label."""
    rank: int | None = None
    """The rank that failed first."""
    host: str | None = None
    """Where that was."""
    step: int | None = None
    """Optimizer steps done then."""

    def lines(self) -> list[str]:
        """As ``launcher why`` prints it."""
        return [self.sentence] + [f"  {label:<8} {value}" for label, value in self.rows]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        values = {"run": self.run, "state": self.state, "kind": self.kind, "sentence": self.sentence}
        evidence: dict[str, list[str]] = {}
        for label, value in self.rows:
            evidence.setdefault(label, []).append(value)
        return {**values, "rank": self.rank, "host": self.host, "step": self.step, "evidence": evidence}


def explain(h: History, s: RunSummary, now: float) -> Why:
    """Why the run of ``h``, summarised in ``s``, is where it is."""
    root, wrong = find_root(h, s), troubles(h, s, now)
    if root is None:
        return _nothing_wrong(h, s, wrong)
    explained = EXPLANATIONS.get(root.kind, EXPLANATIONS["other"])(root, h, s)
    rows = [
        ("when", _when(root, now)),
        ("where", _where(root.trace, h)),
        *[("where", f"{of_them(root, ranks)}: {_where(trace, h)}") for ranks, trace, _ in root.places[:_MOST_PLACES]],
        ("stack", stack_words(root.trace.frames) if root.kind == "hang" and root.trace is not None else ""),
        *[("error", line) for line in [*explained.errors, *root.threads]],
        *[("log", line) for line in explained.log],
        ("victims", _victims(root)),
        ("did", "; ".join(filter(None, [_did(root, h, s), _resubmitted(root, h, now)]))),
        ("damaged", _damaged(h, root.event)),
        ("safe", _safe(h, s)),
        *[("now", trouble.sentence) for trouble in wrong],
        ("next", wrong[0].next if wrong else _next(explained, h, s)),
    ]
    sentence = explained.sentence
    if s.state == "completed":
        nothing = _nothing_wrong(h, s, wrong)
        sentence = f"{nothing.sentence} The last: {sentence}"
        return replace(
            nothing, sentence=formats.clean(sentence, 400), rows=_clean(rows), rank=root.rank, host=root.host
        )
    if s.state == "pending" and wrong:
        sentence += " " + wrong[0].sentence
    elif s.active:
        sentence += " The run goes on." if s.state == "running" else " The run waits to go on."
    taken_and_held = root.kind == "preempted" and [trouble.kind for trouble in wrong] == ["held"]
    return Why(
        run=s.run, state=s.state, kind="pending" if taken_and_held else root.kind, sentence=formats.clean(sentence, 400),
        rows=_clean(rows), rank=root.rank, host=root.host, step=root.step,
    )  # fmt: skip


def _clean(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(label, value if label == "where" else formats.clean(value, 400)) for label, value in rows if value]


def _nothing_wrong(h: History, s: RunSummary, wrong: list[Trouble]) -> Why:
    step = f" after step {formats.count(s.step)}" if s.step else ""
    sentence = {
        "completed": f"Nothing went wrong: the run completed{step}.",
        "running": f"Nothing has gone wrong so far: the run is {s.doing}.",
        "pending": f"Nothing has gone wrong: the run waits{f' ({s.reason})' if s.reason else ''}.",
    }.get(s.state, s.reason or f"The run {s.state}.")
    if s.reason.startswith(UNKNOWN):
        sentence = s.reason
    broken = [f"{formats.clean(k, 30)} is {formats.number(v)}" for k, v in s.metrics.items() if not _finite(v)]
    if broken and s.state in ("completed", "running"):
        what = f"The run completed{step}" if s.state == "completed" else f"The run is {s.doing}"
        sentence = f"{what}, but {short_list(broken)}."
    if s.state == "completed" and (stops := len(interruptions(h))):
        what = sentence.removeprefix("Nothing went wrong: ").rstrip(".")
        sentence = f"{what[0].upper()}{what[1:]}, with {plural(stops, 'interruption')}."
    rows = [("now", trouble.sentence) for trouble in wrong[1:]]
    rows += [("damaged", said)] if (said := _damaged(h, h.last(ev.RunSubmitted))) and s.active else []
    rows += [("progress", said)] if (said := unreported(s)) else []
    if wrong:
        sentence = wrong[0].sentence
        rows.append(("next", wrong[0].next))
    return Why(run=s.run, state=s.state, kind=s.state, sentence=formats.clean(sentence), rows=rows, step=s.step)


def _finite(value: object) -> bool:
    """Not one of the strings that stand for nan and infinities, nor these themselves."""
    return as_number(value) is not None or str(value) not in ("nan", "inf", "-inf")


def _when(root: Root, now: float) -> str:
    t = root.t
    if t is None:
        return ""
    place = f", attempt {root.attempt}" if root.attempt is not None else ""
    place += f", round {root.round}" if root.round is not None else ""
    return f"{formats.time_of_day(t, now)} ({formats.ago(now - t)}){place}"


def _where(trace: Trace | None, h: History) -> str:
    code = as_text(h.spec.get("code_dir")) or str(h.paths.code)
    return place_words(trace.frames, code) if trace is not None else ""


def _victims(root: Root) -> str:
    ranks = sorted(v.rank for v in root.victims if v.rank is not None)
    if not ranks:
        return ""
    delays = sorted(v.after_s for v in root.victims if v.after_s is not None)
    when = (
        f", {delays[0]:.1f} to {delays[-1]:.1f} s later"
        if len(delays) > 1
        else f", {delays[0]:.1f} s later"
        if delays
        else ""
    )
    return f"{named_ranks(ranks)} (failed because of it{when})"


def _did(root: Root, h: History, s: RunSummary) -> str:
    """What the launcher did about it, counted from the decisions."""
    decision = root.decision
    if decision is None:
        return ""
    action, said, what = decision.action, decision.reason or "", root.cause.text or ""
    said = said[len(what) :] if said[1:].startswith(what[1:]) else said  # what failed may have said a semicolon itself
    reason = said.partition("; ")[2].rstrip(".")
    if action == "new_round":
        return _went_on(h, decision)
    if action == "requeue":
        back = h.last(ev.Requeued)
        hows = {"continuation": "submitted a continuation", "slurm": "SLURM requeues it"}
        how = hows.get((back and back.how) or "", "requeued")
        return f"saved what it could, {how}" + _came_back(h, decision)
    restarts = _restarts(h, decision)
    before = f"{plural(restarts, 'restart')}, then stopped" if restarts else "stopped"
    return f"{before}: {reason}" if reason not in ("", "stopped") else before


def _resubmitted(root: Root, h: History, now: float) -> str:
    """When somebody submitted the run again after it had ended by this cause, if they did."""
    later = [
        e for e in h.of(ev.RunSubmitted) if e.by == "resubmit" and root.event is not None and h.after(e, root.event)
    ]
    return f"resubmitted at {formats.time_of_day(later[0].t, now)}" if later else ""


def _restarts(h: History, decision: ev.Decided) -> int:
    """New rounds decided upon the same kind of evidence since the last committed progress, or submission, before it."""
    count = 0
    for e in h.events:
        if e is decision:
            break
        if isinstance(e, ev.Saved) or _is_submission(e):
            count = 0
        elif isinstance(e, ev.Decided) and e.action == "new_round" and e.evidence == decision.evidence:
            count += 1
    return count


def _is_submission(e: ev.Event) -> bool:
    """Somebody submitted the run: restarts are counted anew. A continuation (of older versions) is none."""
    return isinstance(e, ev.RunSubmitted) and e.by != "continuation"


def _went_on(h: History, decision: ev.Decided) -> str:
    back, number = _came_back(h, decision), 0
    for e in h.of(ev.Decided, ev.RunSubmitted):
        number = 0 if _is_submission(e) else number + (isinstance(e, ev.Decided) and e.action == "new_round")
        if e is decision:
            break
    so_far = f" ({plural(number, 'restart')} so far)" if number > 1 else ""
    return f"started the workers again{so_far}{back}" if back else f"starts the workers again{so_far}"


def _came_back(h: History, decision: ev.Decided) -> str:
    """When the first step after a decision came, if it has."""
    for e in h.of(ev.FirstStep):
        if h.after(e, decision):
            return f"; training went on {formats.duration(e.t - decision.t)} later"
    return ""


def _damaged(h: History, since: ev.Event | None) -> str:
    """Which checkpoints could not be resumed from after an event, and from which one training went on instead."""
    found = [e for e in h.of(ev.CheckpointDamaged) if since is None or h.after(e, since)]
    if not found:
        return ""
    named = short_list([words(e).removeprefix("checkpoint ") for e in found], 2)
    begun = next((e for e in h.of(ev.RoundStarted) if h.after(e, found[-1])), None)
    if begun is None:
        return f"checkpoint {named}"
    if begun.resume_step is None:
        return f"checkpoint {named}; training began from scratch"
    return f"checkpoint {named}; training went on from step {formats.count(begun.resume_step)}"


def _safe(h: History, s: RunSummary) -> str:
    if not as_dict(h.spec.get("checkpoint")).get("enabled", True):
        return ""
    damaged = {(e.path or "").rstrip("/").rsplit("/", 1)[-1] for e in h.of(ev.CheckpointDamaged)}
    steps = [e.step for e in h.standing_saves if e.step is not None and f"step-{e.step:08d}" not in damaged]
    there = next((step for step in reversed(steps) if step in h.checkpoints), None)
    said = [] if there is None else [f"step {formats.count(there)}, complete on disk"]
    if steps and there != steps[-1]:
        said.append(f"step {formats.count(steps[-1])} was saved, but its checkpoint is not there")
    if said:
        return "; ".join(said)
    own = h.last(ev.Saved)
    if own is not None and own.path:
        return f"the script's own {own.path.rsplit('/', 1)[-1]}, {formats.time_of_day(own.t)}"
    return "" if h.last(ev.FirstStep) is None else "nothing was saved"


def _next(explained: Explanation, h: History, s: RunSummary) -> str:
    if s.active or s.state == "completed" or not explained.next:
        return ""
    then = explained.next
    if h.last(ev.Saved) is None:  # nothing to continue from
        then = then.replace("continues it", "runs it again")
    if s.hold not in (None, s.run):
        then = re.sub(r"launcher resubmit \{run\}(?: --code)?$", "launcher rerun {run}", then)
    return then.replace("{run}", s.run)
