"""Which runs there are, and SLURM's view of those that need it: at most one batched query."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.frozen import frozen
from launcher.opening import read_whole
from launcher.redact import redact, redact_values
from launcher.report.model.hearing import silence
from launcher.report.model.history import History
from launcher.report.model.summary import RunSummary, summarise_history
from launcher.run.index import is_sweep, job_name, list_runs, points_in
from launcher.run.own_folder import mark_of_owner
from launcher.run.paths import SWEEP_FILE, RunPaths

if TYPE_CHECKING:
    from launcher.slurm.jobs import JobView


@frozen
class Known:
    """A run that exists, and the sweep it is a point of."""

    root: str
    """Its directory; a `Path` each would cost a tenth of a second for ten thousand."""
    sweep: str | None = None
    overrides: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The run's id."""
        return os.path.basename(self.root)

    @property
    def paths(self) -> RunPaths:
        """The names of its files."""
        return RunPaths(Path(self.root))

    @property
    def mark(self) -> str:
        """``of ANN`` or ``others can write``: what of it must not be run; "" for a run of one's own."""
        return mark_of_owner(self.root) or (mark_of_owner(os.path.dirname(self.root)) if self.sweep else "")


def all_runs(*, foreign: bool = False) -> list[Known]:
    """Every run of this user, newest first; a sweep's points follow each other in their order.

    ``foreign`` adds what others have in the same folders.
    """
    found: list[Known] = []
    for ref in reversed(list_runs(check=False, foreign=foreign)):
        of_sweep = os.path.isfile(f"{ref.path}/{SWEEP_FILE}")
        found += known_points(ref.path, ref.id) if of_sweep else [Known(str(ref.path))]
    # A point that was resubmitted has a link of its own.
    in_sweeps = {k.id for k in found if k.sweep}
    return [k for k in found if k.sweep or k.id not in in_sweeps]


def known_points(folder: Path, sweep: str = "") -> list[Known]:
    """The points of the sweep in ``folder``, by name. ``sweep``: its id, else the folder's name."""
    found = sorted(points_in(folder).items())
    return [Known(f"{folder}/{name}", sweep or folder.name, overrides) for name, overrides in found]


def shown_job(paths: RunPaths) -> str:
    """Return the YAML of a run's job without what its keys, its options or its form tell to be a secret. Raises OSError."""
    # Here alone: YAML takes 20 ms, which status and ls do not need.
    from launcher.config.document.source import dump_yaml, read_yaml

    text = read_whole(paths.job).decode(errors="replace")
    document = read_yaml(text, paths.job.name)
    shown = redact_values(document.data)
    return redact(text) if document.problems or shown == document.data else dump_yaml(shown)


def previous_of(paths: RunPaths) -> tuple[str, str] | None:
    """Id and job YAML of the run of the same name that was submitted before this one; None when there is none."""
    name = job_name(paths.id)
    ids = [ref for ref in list_runs() if job_name(ref.id) == name and not is_sweep(ref.path)]
    at = next((i for i, ref in enumerate(ids) if ref.id == paths.id), None)
    for ref in reversed(ids[:at] if at is not None else []):
        try:
            return ref.id, shown_job(RunPaths(ref.path))
        except OSError:
            continue
    return None


def ask_slurm(job_ids: Iterable[str]) -> Mapping[str, JobView] | None:
    """SLURM's view of the jobs, by id; None when there is no SLURM here or it does not answer."""
    from launcher.slurm.jobs import job_views

    return job_views(job_ids)


LATE_S = 5.0
"""A leader writes its picture once a second."""


def needs_slurm(summary: RunSummary, history: History, now: float) -> bool:
    """Whether the files alone leave open what SLURM knows: it waits in a queue, or a picture is late."""
    if summary.backend != "slurm" or not summary.active or summary.job_id is None:
        return False
    return summary.state == "pending" or silence(history, now) > LATE_S


Ask = Callable[[list[str]], "Mapping[str, JobView] | None"]
"""Asks SLURM for jobs, as `ask_slurm` does."""


def summarise_all(histories: list[History], now: float, ask: Ask | None = None) -> list[RunSummary]:
    """Summaries of all; SLURM is asked once (or ``ask`` in its place), for those that need it."""
    first = [summarise_history(h, None, now) for h in histories]
    open_ = [i for i, s in enumerate(first) if needs_slurm(s, histories[i], now)]
    ids = [job_id for i in open_ if (job_id := first[i].job_id) is not None]
    jobs = (ask or ask_slurm)(ids) if ids else None
    if jobs is not None:
        for i in open_:
            first[i] = summarise_history(histories[i], jobs, now)
    return first


def summary_of(history: History, now: float) -> RunSummary:
    """One run's summary, SLURM asked where that is needed."""
    return summarise_all([history], now)[0]
