"""Each root cause in words: the sentence, the error as it was said, and what the user can do; pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from launcher.report import formats
from launcher.report.diagnosis.evidence import Root, signal_of
from launcher.report.diagnosis.taken import TAKEN
from launcher.report.diagnosis.told import Teller, Told, at_step, who
from launcher.report.model.history import History, as_dict, as_list, as_number, as_text
from launcher.report.model.summary import RunSummary
from launcher.report.text.words import MEANINGS
from launcher.run.units import named_ranks
from launcher.run.worker_texts import UNSAFE_LOAD, UNSAFE_LOAD_CODE

__all__ = ["TELLERS"]

_SIGNALS = {
    "SIGSEGV": "a segmentation fault",
    "SIGBUS": "a bus error",
    "SIGABRT": "an abort",
    "SIGFPE": "a floating-point error",
    "SIGILL": "an illegal instruction",
    "SIGKILL": "killed from outside",
    "SIGTERM": "terminated from outside",
}


_LEADERS = re.compile(r"error: (?:the leader failed: )?(\S.*)")
"""How the agent of the leader's node ends that could not go on (`launcher.node.agent.entry`)."""

TELLERS: dict[str, Teller] = dict(TAKEN)


def _tells(*kinds: str) -> Callable[[Teller], Teller]:
    def note(teller: Teller) -> Teller:
        TELLERS.update(dict.fromkeys(kinds, teller))
        return teller

    return note


def _error(root: Root) -> list[str]:
    """The exception with its message, whole on one line."""
    if root.trace is None or not root.trace.exception:
        return []
    message = formats.clean(root.trace.message, 300)
    return [f"{root.trace.exception}: {message}" if message else root.trace.exception]


def _last_words(root: Root, count: int = 3) -> list[str]:
    """The last lines of the log that say something."""
    return [formats.clean(line, 160) for line in root.log if line.strip()][-count:]


def _first_line(root: Root) -> str:
    lines = root.trace.message.strip().splitlines() if root.trace else []
    return formats.clean(lines[0], 160).rstrip(".") if lines else ""


_CORRECT = "correct the code, then: launcher resubmit {run} --code"
"""Without ``--code`` the run keeps the copy that failed."""


@_tells("exception")
def _exception(root: Root, h: History, s: RunSummary) -> Told:
    name = root.trace.exception.rsplit(".", 1)[-1] if root.trace else "an exception"
    message = _first_line(root)
    sentence = f"{who(root, h)} raised {name}{at_step(root)}{': ' + message if message else ''}."
    fix = root.remedy or (
        _CORRECT if root.trace and root.trace.frames else "see the log, then: launcher resubmit {run}"
    )
    if UNSAFE_LOAD in _said(root):
        fix = f"if you trust the file: launcher resubmit {{run}} {UNSAFE_LOAD}"
    if UNSAFE_LOAD_CODE in _said(root):
        fix = f"correct the code, then: launcher resubmit {{run}} {UNSAFE_LOAD_CODE}"
    whole = formats.clean(root.trace.message, 300).rstrip(".") if root.trace else ""
    return Told(sentence, _error(root) if message != whole else [], [], fix)


@_tells("import")
def _import(root: Root, h: History, s: RunSummary) -> Told:
    message = root.trace.message if root.trace else ""
    module = re.search(r"No module named '([^']+)'", message)
    what = f"import {module[1]}" if module else "import what it needs"
    subject = "The agents" if root.rank is None and root.host is None else who(root, h)
    sentence = f"{subject} could not {what}." if module else f"{subject} could not {what}: {_first_line(root)}."
    image = as_text(h.spec.get("container"))
    python = (as_text(h.spec.get("python")) or "the run's python") + (f" in {image}" if image else "")
    fix = f"install it for {python}" if module else f"mend the installation of {python}"
    return Told(sentence, _error(root), [], f"{fix} (or set environment.python), then: launcher resubmit {{run}}")


@_tells("cuda_oom")
def _cuda_oom(root: Root, h: History, s: RunSummary) -> Told:
    said = root.trace.message if root.trace else ""
    wanted = re.search(r"[Tt]ried to allocate ([\d.]+ [KMGT]?i?B)", said)
    total = re.search(r"total capacity of ([\d.]+ [KMGT]?i?B)(?: of which ([\d.]+ [KMGT]?i?B) is free)?", said)
    parts = [f"wanted {wanted[1]}"] if wanted else []
    parts += [f"{total[2]} of {total[1]} free"] if total and total[2] else [f"of {total[1]}"] if total else []
    name = root.trace.exception if root.trace and root.trace.exception else "CUDA out of memory"
    errors = [f"{name}: {', '.join(parts)}"] if parts else _error(root) or _last_words(root, 1)
    sentence = f"{who(root, h)} ran out of GPU memory{at_step(root)}."
    return Told(sentence, errors, [], "use a smaller batch, then: launcher resubmit {run}")


@_tells("oom", "slurm_oom")
def _oom(root: Root, h: History, s: RunSummary) -> Told:
    limit = as_number(h.spec.get("mem_gb"))
    what = f" of {formats.number(limit)} GB per node" if limit else ""
    more = f"launcher resubmit {{run}} resources.mem_gb={f'{2 * limit:g}' if limit else '...'}"
    fix = f"ask for more memory (resources.mem_gb), fewer workers per node or data-loader workers: {more}"
    subject = "The job" if root.kind == "slurm_oom" else who(root, h)
    return Told(
        f"{subject} was killed for exceeding the memory limit{what}{at_step(root)}.", _last_words(root, 1), [], fix
    )


@_tells("host_memory")
def _host_memory(root: Root, h: History, s: RunSummary) -> Told:
    fix = "ask for more memory: launcher resubmit {run} resources.mem_gb=..."
    return Told(f"{who(root, h)} could not get the memory it asked for{at_step(root)}.", _error(root), [], fix)


@_tells("shm")
def _shm(root: Root, h: History, s: RunSummary) -> Told:
    fix = "use fewer data-loader workers, or more /dev/shm (containers have 64 MB), then: launcher resubmit {run}"
    sentence = f"{who(root, h)} ran out of shared memory (/dev/shm){at_step(root)}."
    return Told(sentence, _error(root) or _last_words(root, 2), [], fix)


@_tells("disk_full")
def _disk_full(root: Root, h: History, s: RunSummary) -> Told:
    name = as_text(root.event.get("errno_name"))
    what = "The quota is used up" if name == "EDQUOT" or "quota" in _said(root).lower() else "The disk is full"
    fix = f"make room below {h.paths.root.parent}, then: launcher resubmit {{run}}"
    if root.event.get("type") == "save_failed":
        error = formats.clean(f"{name} {as_text(root.event.get('error'))}".strip(), 400)
        since = at_step(root).replace(" at ", " since ")
        if not name:  # the state, not the disk
            return Told(f"No checkpoint could be written{since}.", [error], [], _CORRECT)
        return Told(f"{what}: no checkpoint could be written{since}.", [error], [], fix)
    return Told(
        f"{what}: {who(root, h)[0].lower()}{who(root, h)[1:]} could not write{at_step(root)}.", _error(root), [], fix
    )


@_tells("save")
def _save(root: Root, h: History, s: RunSummary) -> Told:
    name, error = as_text(root.event.get("errno_name")), formats.clean(as_text(root.event.get("error")))
    if name in ("ENOSPC", "EDQUOT"):
        return _disk_full(root, h, s)
    fix = f"make {h.paths.checkpoints} writable" if name else "correct what is registered"
    fix += ", then: launcher resubmit {run}" + ("" if name else " --code")
    done = root.decision.get("evidence") == "last_save_failed"
    what = "The training is done, but its last checkpoint could not" if done else "No checkpoint could"
    return Told(f"{what} be written: {error or 'a save failed'}.", [], [], fix)


def _said(root: Root) -> str:
    return f"{root.trace.message if root.trace else ''} {as_text(root.event.get('error'))}"


@_tells("signal")
def _signal(root: Root, h: History, s: RunSummary) -> Told:
    name = signal_of(root.cause) or "a signal"
    meaning = _SIGNALS.get(name, "")
    if name in ("SIGKILL", "SIGTERM"):
        sentence = f"{who(root, h)} was {meaning} ({name}){at_step(root)}."
        hint = "nobody here sent it: look at the host's memory and its kernel log, then: launcher resubmit {run}"
        return Told(sentence, _last_words(root, 1), [], hint)
    sentence = f"{who(root, h)} crashed with {meaning or name}{f' ({name})' if meaning else ''}{at_step(root)}."
    errors = _error(root) if root.trace and name == "SIGABRT" else []
    words = _last_words(root) if not errors and root.trace is None else []
    return Told(sentence, errors, words, _CORRECT)


@_tells("exit")
def _exit(root: Root, h: History, s: RunSummary) -> Told:
    code = as_number(root.cause.get("exit_code"))
    what = "script" if as_dict(h.spec.get("work")).get("kind") in ("script", "module") else "process"
    with_code = f"with code {int(code)}" if code is not None else "unexpectedly"
    errors = _error(root)
    sentence = f"{who(root, h)}: {'the' if root.ranks else 'its'} {what} exited {with_code}{at_step(root)}"
    fix = "see the log: launcher logs {run}" + (f" --rank {root.rank}" if root.rank else "")
    if root.event.get("refused") and not errors:
        sentence += "".join(f": {line.rstrip('.')}" for line in _last_words(root, 1))
        fix = "correct args or the script, then: launcher resubmit {run} --code"
    return Told(f"{sentence}.", errors, [] if errors else _last_words(root), fix)


@_tells("timeout")
def _timeout(root: Root, h: History, s: RunSummary) -> Told:
    after = _waited(root, h)
    if root.missing:
        absent = f"{named_ranks(root.missing).capitalize()}{_host_of(h, root)}"
        sentence = (
            f"{absent} did not take part in a collective; rank {root.rank} gave up waiting{after}{at_step(root)}."
        )
    else:
        sentence = f"{who(root, h)} waited in vain for the others in a collective{after}{at_step(root)}."
    fix = "do all ranks make the same calls? See the others' logs; a longer wait: distributed.collective_timeout_min"
    return Told(sentence, _error(root) or _last_words(root, 2), [], fix)


def _waited(root: Root, h: History) -> str:
    """`` after 30 s``: as the error says, else the job's limit."""
    said = re.search(r"(\d+) ?(?:ms|milliseconds)\b", _said(root) + " ".join(root.log[-20:]))
    minutes = as_number(h.spec.get("collective_timeout_min"))
    seconds = int(said[1]) / 1000 if said else 60 * minutes if minutes else None
    return f" after {formats.duration(seconds)}" if seconds else ""


def _host_of(h: History, root: Root) -> str:
    for e in h.of("round_started"):
        if e.get("attempt") == root.attempt and e.get("round") == root.round:
            hosts = {
                as_text(r.get("host"))
                for r in as_list(e.get("ranks"))
                if isinstance(r, dict) and r.get("rank") in root.missing
            }
            return f" ({formats.short_list(sorted(hosts))})" if hosts else ""
    return ""


@_tells("hang")
def _hang(root: Root, h: History, s: RunSummary) -> Told:
    limit = as_number(root.event.get("limit_s"))
    slow = [r for r in as_list(root.event.get("laggards")) if isinstance(r, dict)]
    where = (
        f" in {root.trace.frames[-1].function}"
        if root.trace and root.trace.frames and root.trace.frames[-1].function
        else ""
    )
    phase = as_text(slow[0].get("phase")) if slow else ""
    during = f" (phase: {phase})" if phase and phase not in ("train", "training") else ""
    if root.rank is None:
        sentence = f"Nobody made progress for {formats.duration(limit)}."
    else:
        more = f" and {len(slow) - 1} more" if len(slow) > 1 else ""
        sentence = (
            f"{who(root, h)}{more} hung{at_step(root)}{during}: no progress for {formats.duration(limit)}{where}."
        )
    rank = f" --rank {root.rank}" if root.rank else ""
    fix = f"all stacks are in the logs: launcher logs {{run}}{rank}; slow on purpose? restart.hang_floor_s"
    return Told(sentence, [], [], fix)


@_tells("node", "slurm_node")
def _node(root: Root, h: History, s: RunSummary) -> Told:
    how = {"silent": "fell silent", "closed": "lost its agent's connection", "slurm": "is down, says SLURM"}
    why = as_text(root.event.get("why"))
    if root.kind == "slurm_node":
        return Told("A node of the allocation died.", [as_text(root.event.get("reason"))], _last_words(root, 1), _AGAIN)
    sentence = f"Node {root.host or '?'} {how.get(why, why or 'died')}{at_step(root)}."
    fix = f"keep off it: launcher resubmit {{run}} slurm.exclude={root.host}" if root.host else _AGAIN
    return Told(sentence, [], [], fix)


_AGAIN = "launcher resubmit {run}"


@_tells("store")
def _store(root: Root, h: History, s: RunSummary) -> Told:
    where = f" on {root.host}" if root.host else ""
    return Told(f"The rendezvous store{where} was lost.", _error(root), _last_words(root, 2), _AGAIN)


@_tells("start")
def _start(root: Root, h: History, s: RunSummary) -> Told:
    said = as_text(root.cause.get("text"))
    nodes = [str(n) for n in as_list(root.event.get("nodes"))]
    if said:
        sentence = f"{said[0].upper()}{said[1:].rstrip('.')}."
    else:
        ranks = [r for r in as_list(root.event.get("ranks")) if isinstance(r, int)]
        of = f" ({named_ranks(ranks)})" if ranks else ""
        waited = formats.duration(as_number(root.event.get("waited_s")))
        sentence = f"{formats.short_list(nodes) or 'A node'}{of} did not start within {waited or 'the limit'}."
    if root.decision.get("evidence") == "ports_taken":
        return Told(sentence, [], [], "launcher resubmit {run} distributed.port_range=[33000,45000] tries others")
    skip = f" slurm.exclude={','.join(nodes)}" if nodes else ""
    return Told(sentence, [], [], f"launcher resubmit {{run}}{skip} (or wait longer: distributed.init_timeout_min)")


@_tells("preflight")
def _preflight(root: Root, h: History, s: RunSummary) -> Told:
    bad = [c for c in as_list(root.event.get("checks")) if isinstance(c, dict) and not c.get("ok", True)]
    hosts = list(dict.fromkeys(as_text(c.get("host")) for c in bad))
    said = f"Node{'s' if len(hosts) > 1 else ''} {formats.short_list(hosts)} failed the check before the start."
    sentence = said if hosts else "The node check failed."
    errors = [f"{c.get('host')}: {c.get('name')}: {c.get('detail')}" for c in bad[:4]]
    return Told(sentence, errors, [], f"launcher resubmit {{run}} slurm.exclude={','.join(hosts)}" if hosts else _AGAIN)


@_tells("leader")
def _leader(root: Root, h: History, s: RunSummary) -> Told:
    on = f" on {root.host}" if root.host else ""
    words = _last_words(root, 1)
    if said := as_text(root.cause.get("text")) or _own_words(root):
        return Told(f"{said.rstrip('.')}.", [], [], _AGAIN)
    sentence = f"The leader{on} died without a word{at_step(root)}."
    if root.attempt is None and not words:
        sentence = f"The run never started: {_lower(s.reason)}"
    elif h.last("attempt_started") is None and words:
        sentence = f"No agent could begin: {words[0].rstrip('.')}."
    errors = [e for e in ([] if root.attempt is None else [s.reason]) if e and "died without a word" not in e]
    return Told(sentence, errors + _error(root), _last_words(root) if not _error(root) else [], _AGAIN)


def _own_words(root: Root) -> str:
    """How the leader ended by its agent's log, where nobody has told of it."""
    found = next((m for line in reversed(root.log) if (m := _LEADERS.match(line))), None)
    if found is None:
        return ""
    return f"The leader {'could not begin' if root.attempt is None else 'failed'}: {formats.clean(found[1], 300)}"


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:] if sentence else "nobody says why."


@_tells("gone")
def _gone(root: Root, h: History, s: RunSummary) -> Told:
    place = as_text(root.cause.get("place"))
    return Told(f"{_clause(root)}.", [], [], f"launcher resubmit {place}" if place else "")


@_tells("unreadable")
def _unreadable(root: Root, h: History, s: RunSummary) -> Told:
    return Told(f"{_clause(root)}.", [], [], f"check the file system of {h.paths.root}, then: {_AGAIN}")


def _clause(root: Root) -> str:
    """What happened, of a decision's ``what happened; what is done.``"""
    return as_text(root.decision.get("reason")).partition("; ")[0].rstrip(".")


@_tells("other")
def _other(root: Root, h: History, s: RunSummary) -> Told:
    reason = s.reason or as_text(root.event.get("reason")) or MEANINGS["unknown"]
    return Told(f"{reason[0].upper()}{reason[1:].rstrip('.')}.", _error(root), _last_words(root), "launcher logs {run}")
