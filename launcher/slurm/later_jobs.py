"""Jobs that come after this one: a run's continuation, the replacement of a node, and jobs that wait. Used from inside the job.

Standard library only. Nothing here raises for what SLURM refuses or does not answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from launcher.slurm.commands import Answer, ask
from launcher.slurm.environ import without_slurm
from launcher.slurm.handback import ASK_S, Done, update
from launcher.slurm.jobs import table_rows

_PENDING = ("squeue", "--noheader", "--states=PENDING")


def submit_replacement(
    script: str,
    words: Sequence[str],
    *,
    name: str,
    minutes: int,
    exclude: Sequence[str],
    extra: Sequence[str],
    environ: Mapping[str, str],
) -> Done:
    """Submit ``script`` (a path) with ``words`` as a job of its own on one node, which is none of ``exclude`` and never requeued.

    `Done.job_id` is the new id.
    """
    options = [
        f"--job-name={name}",
        "--nodes=1",
        "--no-requeue",
        f"--time={minutes}",
        f"--exclude={','.join(exclude)}",
        *_begins_now(script),
        *extra,
    ]
    return _submitted(ask("sbatch", "--parsable", *options, script, *words, environ=without_slurm(environ)))


def cancel_named(name: str, *, pending: bool = False) -> Done:
    """Cancel this user's jobs of that name; ``pending``: those that wait."""
    answer = ask(
        "scancel",
        *(["--state=PENDING"] if pending else []),
        f"--user={os.getuid()}",
        f"--name={name}",
        timeout_s=ASK_S,
    )
    return Done(answer.ok, answer.problem)


def submit_continuation(
    script: str,
    job_id: str,
    *,
    name: str,
    environ: Mapping[str, str],
    extra: Sequence[str] = (),
) -> Done:
    """Submit ``script`` (a path) again, to start when ``job_id`` has ended: where requeueing is forbidden.

    ``name`` is the job's name: a job of that name that waits for ``job_id`` already is taken instead (whoever asked for it
    was killed before it could tell). ``environ`` is this process's; the allocation's own variables are kept from the new job.
    ``Done.job_id`` is the new id.
    """
    found = queued_after(job_id, name)
    if found is None:
        return Done(False, "squeue does not answer")
    if found:
        return Done(True, job_id=found)
    words = ["sbatch", "--parsable", f"--dependency=afterany:{job_id}", *_begins_now(script), *extra, script]
    return _submitted(ask(*words, environ=without_slurm(environ)))


def queued_after(job_id: str, name: str) -> str | None:
    """Return the id of this user's pending job of that ``name`` that waits for ``job_id``, "" for none; None: SLURM does not answer."""
    waits = re.compile(rf"\bafterany:{re.escape(job_id)}(?!\w)")
    columns = "%F|%E|%j"  # %F: of an array element its array's id
    answer = ask(*_PENDING, "--array", f"--user={os.getuid()}", f"--format={columns}", timeout_s=ASK_S)
    if not answer.ok:
        return None
    return next((job for job, what, called in table_rows(answer.out, 3) if called == name and waits.search(what)), "")


def _begins_now(script: str) -> list[str]:
    """Return what takes back a ``--begin`` of the script: it was meant for the run's first job, and may be relative (now+6hours)."""
    return ["--begin=now"] if _says(script, "begin") else []


def is_held(script: str) -> bool:
    """Return whether jobs of this script are held until they are released: sbatch has no option that takes that back."""
    return _says(script, "hold")


def _says(script: str, option: str) -> bool:
    try:
        text = Path(script).read_text(errors="replace")
    except OSError:  # sbatch will say it
        return False
    return bool(re.search(rf"^#SBATCH --{option}\b", text, re.MULTILINE))


def _submitted(answer: Answer) -> Done:
    found = re.match(r"\s*(\d+)", answer.out) if answer.ok else None
    if found:
        return Done(True, job_id=found[1])
    return Done(False, answer.problem or f"sbatch printed {answer.out.strip()!r}", forbidden=not answer.busy)


def release(job_id: str) -> Done:
    """Let a held job start."""
    answer = ask("scontrol", "release", job_id, timeout_s=ASK_S)
    return Done(answer.ok, answer.problem, forbidden=not (answer.ok or answer.busy))


def cancel_held(name: str, besides: str = "") -> list[str]:
    """Cancel this user's held jobs of that ``name``, but not the job ``besides``; return their ids.

    What such a job waits for is not looked at: squeue shows no dependency any more once it is fulfilled.
    """
    rows = _pending("%F|%r|%j", "--array")
    found = [job for job, reason, called in rows if called == name and reason.startswith("JobHeld") and job != besides]
    if found:
        ask("scancel", *found, timeout_s=ASK_S)
    return found


def move_dependents(old: str, new: str) -> list[str]:
    """Have pending jobs of this user that wait for ``old`` wait for ``new``, which continues it; returns their ids.

    For SLURM ``old`` is about to have ended well, and they would start.
    """
    return _change_dependencies(
        new, lambda terms: [re.sub(rf"(?<=:){re.escape(old)}(?![\d_])", new, term) for term in terms]
    )


def free_dependents(job_id: str) -> list[str]:
    """Have pending jobs of this user wait no longer for the success of ``job_id``, whose run has completed; returns their ids."""
    return _change_dependencies(job_id, lambda terms: [term for term in terms if term != f"afterok:{job_id}"])


def _change_dependencies(besides: str, change: Callable[[list[str]], list[str]]) -> list[str]:
    """Change what this user's pending jobs wait for, but not the job ``besides``; returns the ids of those that were changed."""
    changed = []
    for job_id, said in _pending("%i|%E"):
        plain = re.sub(r"\([^)]*\)", "", said)  # afterok:12(unfulfilled)
        separator = "?" if "?" in plain else ","  # one of them, or all
        terms = plain.split(separator)
        after = change(terms)
        if separator == "?" and len(after) < len(terms):
            after = []
        if job_id != besides and after != terms and update(job_id, f"Dependency={separator.join(after)}").ok:
            changed.append(job_id)
    return changed


def _pending(columns: str, *options: str) -> Iterator[list[str]]:
    """Yield rows of squeue about this user's pending jobs."""
    words = (*_PENDING, *options, f"--user={os.getuid()}", f"--format={columns}")
    return table_rows(ask(*words, timeout_s=ASK_S).out, columns.count("|") + 1)


def is_awaited(*job_ids: str, besides: str = "") -> bool | None:
    """Return whether a pending job, anybody's, waits for one of these; None: SLURM does not say.

    Jobs of the name ``besides`` do not count: they are the same run's.
    """
    answer = ask(*_PENDING, "--format=%E|%j", timeout_s=ASK_S)
    if not answer.ok:
        return None
    waits = re.compile(rf"(?<![\d])(?:{'|'.join(map(re.escape, job_ids))})(?!\d)")
    return any(waits.search(what) and name != besides for what, name in table_rows(answer.out, 2))
