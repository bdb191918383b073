"""Each root cause in words: the sentence, the error as it was said, and what the user can do; pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from launcher.report import formats
from launcher.report.diagnosis.evidence import Root, signal_of, users_log
from launcher.report.diagnosis.explanation import (
    Explain,
    Explanation,
    at_step,
    errors_of,
    last_words,
    of_them,
    what_happened,
    who,
)
from launcher.report.diagnosis.of_gpus import OF_GPUS
from launcher.report.diagnosis.taken import TAKEN
from launcher.report.model.history import History, as_number, as_text
from launcher.report.model.summary import RunSummary
from launcher.run import events as ev
from launcher.run.batch import LAST_WORDS
from launcher.run.causes import CRASHES, MEANINGS, rank_clause
from launcher.run.tracebacks import before_traceback
from launcher.run.units import all_ranks, named_ranks, short_list
from launcher.run.worker_texts import UNSAFE_LOAD, UNSAFE_LOAD_CODE

_LEADERS = re.compile(rf"(?:{LAST_WORDS}|error: )(?:the (?:leader|agent) failed: )?(\S.*)")
"""How the agent of the leader's node ends that could not go on; in runs of older versions without the launcher's name."""

EXPLANATIONS: dict[str, Explain] = {**TAKEN, **OF_GPUS}


def _explains(*kinds: str) -> Callable[[Explain], Explain]:
    def note(explain: Explain) -> Explain:
        EXPLANATIONS.update(dict.fromkeys(kinds, explain))
        return explain

    return note


_AGAIN = "launcher resubmit {run}"
_CORRECT = "correct the code, then: launcher resubmit {run} --code"
"""Without ``--code`` the run keeps the copy that failed."""


@_explains("exception", "unloadable")
def _exception(root: Root, h: History, s: RunSummary) -> Explanation:
    fix = root.remedy or (
        _CORRECT if root.trace and root.trace.frames else "see the log, then: launcher resubmit {run}"
    )
    if UNSAFE_LOAD in _said(root):
        fix = f"if you trust the file: launcher resubmit {{run}} {UNSAFE_LOAD}"
    if UNSAFE_LOAD_CODE in _said(root):
        fix = f"correct the code, then: launcher resubmit {{run}} {UNSAFE_LOAD_CODE}"
    whole = formats.clean(root.trace.message, 300).rstrip(".") if root.trace else ""
    sentence = what_happened(root, h)
    errors = errors_of(root)
    return Explanation(
        f"{sentence}.",
        fix,
        errors=errors[1:] if not whole or sentence.endswith(f": {whole}") else errors,
        log=_said_before(root, h) if _LOADER_LEFT.search(whole) else [],
    )


_LOADER_LEFT = re.compile(r"DataLoader worker .*(exited unexpectedly|killed by signal)")
"""torch knows no more of a loader's process that left; what that printed is in the log."""


def _said_before(root: Root, h: History) -> list[str]:
    """The last lines of the log above the first traceback."""
    return [formats.clean(line, 160) for line in before_traceback(users_log(h, root) or root.log) if line.strip()][-3:]


@_explains("import")
def _import(root: Root, h: History, s: RunSummary) -> Explanation:
    message = root.trace.message if root.trace else ""
    module = re.search(r"No module named '([^']+)'", message)
    sentence = what_happened(root, h)
    if root.rank is None and root.host is None:
        sentence = f"The agents {sentence.removeprefix(who(root, h)).strip()}"
    image = as_text(h.spec.get("container"))
    python = (as_text(h.spec.get("python")) or "the run's python") + (f" in {image}" if image else "")
    fix = f"install it for {python}" if module else f"repair the installation of {python}"
    return Explanation(
        f"{sentence}.", f"{fix} (or set environment.python), then: launcher resubmit {{run}}", errors=errors_of(root)
    )


@_explains("oom", "slurm_oom")
def _oom(root: Root, h: History, s: RunSummary) -> Explanation:
    limit = as_number(h.spec.get("mem_gb"))
    of = f"{formats.number(limit)} GB per node" if limit else ""
    more = f"launcher resubmit {{run}} resources.mem_gb={f'{2 * limit:g}' if limit else '...'}"
    fix = f"ask for more memory (resources.mem_gb), fewer workers per node or data-loader workers: {more}"
    if root.kind == "slurm_oom":
        return Explanation(f"The job {rank_clause('oom', root.step, limit=of)}.", fix, errors=last_words(root, 1))
    return Explanation(f"{what_happened(root, h, limit=of)}.", fix, errors=last_words(root, 1))


@_explains("host_memory")
def _host_memory(root: Root, h: History, s: RunSummary) -> Explanation:
    fix = "ask for more memory: launcher resubmit {run} resources.mem_gb=..."
    return Explanation(f"{what_happened(root, h)}.", fix, errors=errors_of(root))


@_explains("shm")
def _shm(root: Root, h: History, s: RunSummary) -> Explanation:
    fix = "use fewer data-loader workers, or more /dev/shm (containers have 64 MB), then: launcher resubmit {run}"
    return Explanation(f"{what_happened(root, h)}.", fix, errors=errors_of(root) or last_words(root, 2))


@_explains("disk_full")
def _disk_full(root: Root, h: History, s: RunSummary) -> Explanation:
    name = root.of(ev.SaveFailed).errno_name or ""
    what = "The quota is used up" if name == "EDQUOT" or "quota" in _said(root).lower() else "The disk is full"
    fix = f"make room below {h.paths.root.parent}, then: launcher resubmit {{run}}"
    if isinstance(root.event, ev.SaveFailed):
        error = formats.clean(f"{name} {root.of(ev.SaveFailed).error or ''}".strip(), 400)
        since = at_step(root).replace(" at ", " since ")
        if not name:  # the state, not the disk
            return Explanation(f"No checkpoint could be written{since}.", _CORRECT, errors=[error])
        return Explanation(f"{what}: no checkpoint could be written{since}.", fix, errors=[error])
    return Explanation(f"{what_happened(root, h)}.", fix, errors=errors_of(root))


@_explains("save")
def _save(root: Root, h: History, s: RunSummary) -> Explanation:
    name, error = root.of(ev.SaveFailed).errno_name or "", formats.clean(root.of(ev.SaveFailed).error or "")
    if name in ("ENOSPC", "EDQUOT"):
        return _disk_full(root, h, s)
    fix = f"make {h.paths.checkpoints} writable" if name else "correct what is registered"
    fix += ", then: launcher resubmit {run}" + ("" if name else " --code")
    done = root.is_decided_upon("last_save_failed")
    what = "The training is done, but its last checkpoint could not" if done else "No checkpoint could"
    return Explanation(f"{what} be written: {error or 'a save failed'}.", fix)


def _said(root: Root) -> str:
    return f"{root.trace.message if root.trace else ''} {root.of(ev.SaveFailed).error or ''}"


_FROM_OUTSIDE = {
    "SIGKILL": "look at the host's memory and its kernel log",
    "SIGXCPU": "raise the limit of CPU time (ulimit -t)",
    "SIGXFSZ": "raise the limit of file sizes (ulimit -f)",
}


@_explains("signal")
def _signal(root: Root, h: History, s: RunSummary) -> Explanation:
    name, sentence = signal_of(root.cause), f"{what_happened(root, h)}."
    if name not in CRASHES:
        look = _FROM_OUTSIDE.get(name or "", "find out who sent it")
        hint = f"the launcher did not send this signal: {look}, then: launcher resubmit {{run}}"
        return Explanation(sentence, hint, log=last_words(root, 1))
    errors = [formats.clean(line, 300) for line in root.log if _ABORTS.search(line)][-2:] if name == "SIGABRT" else []
    words = last_words(root) if not errors and root.trace is None else []
    return Explanation(sentence, _CORRECT, errors=errors, log=words)


_ABORTS = re.compile(
    r"terminate called|^\s*what\(\)|(double free|corrupt|invalid (pointer|size|next)|smashing)|\w+\(\): |Assertion .*failed"
    r"|\bCHECK\b.*failed|Check failed|enforce fail"
)
"""What C++ and glibc say before they abort."""


@_explains("exit")
def _exit(root: Root, h: History, s: RunSummary) -> Explanation:
    errors, said, last = errors_of(root), root.cause.message or "", ""
    fix = _CORRECT if errors else "see the log: launcher logs {run}" + (f" --rank {root.rank}" if root.rank else "")
    if root.cause.exit_code == 0:
        fix = "look for a return or sys.exit() that only some ranks reach, then: launcher resubmit {run} --code"
        if said:
            fix = "look for a continue, break or if with which ranks skip a collective, then: launcher resubmit {run} --code"
    if root.of(ev.WorkerFailed).refused and not errors:
        last = "".join(last_words(root, 1))
        fix = "correct args or the script, then: launcher resubmit {run} --code"
    return Explanation(
        f"{what_happened(root, h, said, last)}.", fix, errors=errors, log=[] if errors else last_words(root)
    )


@_explains("timeout")
def _timeout(root: Root, h: History, s: RunSummary) -> Explanation:
    after = _waited(root)
    if root.missing:
        absent, at = f"{named_ranks(root.missing)}{_host_of(h, root)}", at_step(root)
        if root.is_known or len(root.missing) == 1:
            sentence = f"{absent[:1].upper()}{absent[1:]} did not take part in a collective; rank {root.rank} gave up waiting{after}{at}."
        else:  # ranks that waited like this one may have been ended before their own time-out
            sentence = f"Rank {root.rank} gave up waiting in a collective{after}{at}, perhaps for {absent}."
    else:
        sentence = f"{what_happened(root, h)}."
    fix = (
        "check that all ranks make the same calls (the others' logs show where they were); to wait longer: "
        "distributed.collective_timeout_min (a script: the timeout of init_process_group)"
    )
    return Explanation(sentence, fix, errors=errors_of(root) or last_words(root, 2))


_WAITED = re.compile(
    r"(?:ran for|waiting|timeout after|timed out after|monitoredBarrier in) (\d+) ?(?:ms|milliseconds)\b", re.IGNORECASE
)
"""NCCL's watchdog, gloo's sockets, the store, and torch's monitored barrier; a line of the user's ("step took 35 ms") is none."""


def _waited(root: Root) -> str:
    """`` after 30 s``: as the error says, else nothing; the script may have set another limit than the job's."""
    said = _WAITED.search(f"{_said(root)} {' '.join(root.log[-20:])}")
    return f" after {formats.duration(int(said[1]) / 1000)}" if said else ""


def _host_of(h: History, root: Root) -> str:
    for e in h.of(ev.RoundStarted):
        if (e.attempt, e.round) == (root.attempt, root.round):
            hosts = {r.host or "" for r in e.ranks if r.rank in root.missing}
            return f" ({short_list(sorted(hosts))})" if hosts else ""
    return ""


@_explains("hang")
def _hang(root: Root, h: History, s: RunSummary) -> Explanation:
    limit, slow = root.of(ev.Hang).limit_s, root.of(ev.Hang).laggards
    if slow and slow[0].exit_code is not None:
        more = f" and {len(slow) - 1} more" if len(slow) > 1 else ""
        left = f"{who(root, h)}{more} had exited with code {slow[0].exit_code}{at_step(root)}"
        return Explanation(
            f"{left}, and the others waited for it: no progress for {formats.duration(limit)}.",
            "see why it ended before the last step: launcher logs {run} --rank " + str(root.rank),
        )
    where = (
        f" in {root.trace.frames[-1].function}"
        if root.trace and root.trace.frames and root.trace.frames[-1].function
        else ""
    )
    phase = slow[0].phase if slow else ""
    during = f" (phase: {phase})" if phase and phase not in ("train", "training") else ""
    if root.rank is None:
        sentence = f"No rank made progress for {formats.duration(limit)}."
        if root.looked_at and root.places:
            stood = [f"{of_them(root, ranks)} stood in {name}" for ranks, _, name in root.places]
            sentence = f"{sentence[:-1]}: of {root.looked_at} ranks looked at, {short_list(stood)}."
        elif len(root.places) == 1:
            ((ranks, _, function),) = root.places
            everybody = all_ranks(len(ranks)).capitalize() if len(ranks) > 1 else f"Rank {ranks[0]}"
            sentence = f"{everybody} hung: no progress for {formats.duration(limit)} in {function}."
        elif root.places:
            stood = [f"{named_ranks(ranks)} in {name}" for ranks, _, name in root.places]
            sentence = f"{sentence[:-1]}: they stood at different places, {short_list(stood)}."
    else:
        more = f" and {len(slow) - 1} more" if len(slow) > 1 else ""
        how, because = f"hung{at_step(root)}{during}: no progress", where
        if slow and slow[0].frozen:
            how, because = f"was frozen{at_step(root)} (process state T)", ""
        sentence = f"{who(root, h)}{more} {how} for {formats.duration(limit)}{because}."
    if slow and slow[0].frozen:
        return Explanation(
            sentence, "find what stopped it (SIGSTOP, a debugger, scontrol suspend), then: launcher resubmit {run}"
        )
    rank = f" --rank {root.rank}" if root.rank else ""
    fix = f"the logs hold the stacks of all ranks: launcher logs {{run}}{rank}; if it is slow on purpose: restart.hang_floor_s"
    return Explanation(sentence, fix)


@_explains("node", "slurm_node")
def _node(root: Root, h: History, s: RunSummary) -> Explanation:
    how = {
        "silent": "stopped responding (its host or its network is down)",
        "cut_off": "stopped responding with all others (the network of the leader's host is down)",
        "closed": "lost its agent's connection",
        "slurm": "was reported down by SLURM",
    }
    why = root.of(ev.NodeLost).why or ""
    if root.kind == "slurm_node":
        return Explanation("A node of the allocation died.", _AGAIN, errors=[root.reason], log=last_words(root, 1))
    if root.of(ev.SignalReceived).meaning == "host_leaves":
        sent = f"SIG{root.of(ev.SignalReceived).name} was sent to the processes on {root.host or 'a node'} alone"
        return Explanation(f"{sent}, as when a host is shut down (a reboot, or a cloud that takes it back).", _AGAIN)
    if root.decision is not None and root.decision.evidence == "node_leaves":
        taken = f"Node {root.host or '?'} was taken away: it had a job of its own (resources.replace), and SLURM has ended that."
        return Explanation(taken, _AGAIN)
    sentence = f"Node {root.host or '?'} {how.get(why, why or 'died')}{at_step(root)}."
    blamed = root.host and why != "cut_off"
    fix = f"exclude it: launcher resubmit {{run}} slurm.exclude={root.host}" if blamed else _AGAIN
    return Explanation(sentence, fix)


@_explains("store")
def _store(root: Root, h: History, s: RunSummary) -> Explanation:
    where = f" on {root.host}" if root.host else ""
    return Explanation(
        f"The rendezvous store{where} was lost.", _AGAIN, errors=errors_of(root), log=last_words(root, 2)
    )


@_explains("start")
def _start(root: Root, h: History, s: RunSummary) -> Explanation:
    said = root.cause.text
    missing = root.of(ev.NodeMissing)
    nodes = missing.nodes
    if said:
        sentence = f"{said[0].upper()}{said[1:].rstrip('.')}."
    else:
        of = f" ({named_ranks(missing.ranks)})" if missing.ranks else ""
        waited = formats.duration(missing.waited_s)
        sentence = f"{short_list(nodes) or 'A node'}{of} did not start within {waited or 'the limit'}."
    if root.is_decided_upon("ports_taken"):
        return Explanation(sentence, "launcher resubmit {run} distributed.port_range=[33000,45000] tries other ports")
    skip = f" slurm.exclude={','.join(nodes)}" if nodes else ""
    return Explanation(sentence, f"launcher resubmit {{run}}{skip} (to wait longer: distributed.init_timeout_min)")


@_explains("preflight")
def _preflight(root: Root, h: History, s: RunSummary) -> Explanation:
    bad = [c for c in root.of(ev.PreflightDone).checks if c.ok is False]
    hosts = list(dict.fromkeys(c.host or "?" for c in bad))
    said = f"Node{'s' if len(hosts) > 1 else ''} {short_list(hosts)} failed the check before the start."
    sentence = said if hosts else "The node check failed."
    errors = [f"{c.host}: {c.name}: {c.detail}" for c in bad[:4]]
    return Explanation(
        sentence, f"launcher resubmit {{run}} slurm.exclude={','.join(hosts)}" if hosts else _AGAIN, errors=errors
    )


@_explains("leader")
def _leader(root: Root, h: History, s: RunSummary) -> Explanation:
    on = f" on {root.host}" if root.host else ""
    words = last_words(root, 1)
    if said := root.cause.text or _own_words(root):
        return Explanation(f"{said.rstrip('.')}.", _AGAIN)
    sentence = f"The leader{on} died{at_step(root)} and left no message."
    if root.attempt is None and not words:
        sentence = f"The run never started: {_lower(s.reason)}"
    elif h.last(ev.AttemptStarted) is None and words:
        sentence = f"No agent could begin: {words[0].rstrip('.')}."
    told = root.attempt is not None and s.state != "completed" and not s.reason.startswith("The leader died")
    errors = [s.reason] if told and s.reason else []
    return Explanation(
        sentence, _AGAIN, errors=errors + errors_of(root), log=last_words(root) if not errors_of(root) else []
    )


def _own_words(root: Root) -> str:
    """How the leader ended by its agent's log, where nobody has told of it."""
    found = next((m for line in reversed(root.log) if (m := _LEADERS.match(line))), None)
    if found is None:
        return ""
    return f"The leader {'could not begin' if root.attempt is None else 'failed'}: {formats.clean(found[1], 300)}"


def _lower(sentence: str) -> str:
    name = sentence.split(" ", 1)[0].isupper()  # SLURM
    return (sentence[:1] if name else sentence[:1].lower()) + sentence[1:] if sentence else "the reason is not known."


@_explains("gone")
def _gone(root: Root, h: History, s: RunSummary) -> Explanation:
    place = root.cause.place
    return Explanation(f"{_clause(root)}.", f"launcher resubmit {place}" if place else "")


@_explains("unreadable")
def _unreadable(root: Root, h: History, s: RunSummary) -> Explanation:
    return Explanation(f"{_clause(root)}.", f"check the file system of {h.paths.root}, then: {_AGAIN}")


@_explains("no_resume")
def _no_resume(root: Root, h: History, s: RunSummary) -> Explanation:
    return Explanation(f"{_clause(root)}.", f"set that right, then: {_AGAIN}")


def _clause(root: Root) -> str:
    """What happened, of a decision's ``what happened; what is done.``"""
    return ((root.decision and root.decision.reason) or "").partition("; ")[0].rstrip(".")


@_explains("other")
def _other(root: Root, h: History, s: RunSummary) -> Explanation:
    reason = s.reason or root.reason or MEANINGS["unknown"].words
    return Explanation(
        f"{reason[0].upper()}{reason[1:].rstrip('.')}.",
        "launcher resubmit {run} continues it" if s.state == "cancelled" else "launcher logs {run}",
        errors=errors_of(root),
        log=last_words(root),
    )
