"""The points of a sweep, each as a checked job of its own."""

from __future__ import annotations

from dataclasses import replace

from launcher.config.document.problem_list import Report
from launcher.config.document.source import Problem
from launcher.config.load.load import LoadedJob, check_values
from launcher.config.load.sweep import Point, expand, place

__all__ = ["point_jobs"]


def point_jobs(loaded: LoadedJob) -> list[tuple[Point, LoadedJob]]:
    """Each point as a checked job of its own, named after the base job and the point. Raises ConfigError or CodeError.

    The parameter names were checked with the base job, which is the first point.
    """
    sweep = expand(loaded.job.sweep)
    report = Report(loaded.source)
    report.origin = loaded.origin
    found = []
    base = {key: value for key, value in loaded.container.items() if key != "sweep"}
    for point in sweep.points:
        container = {**place(base, point.overrides), "name": _name(loaded.name, point.label)}
        report.origin = {**loaded.origin, **{k: report.nearest(f"sweep.{k}") for k in point.overrides}}
        before = len(report.problems)
        job = check_values(container, report)
        report.problems[before:] = [_placed(p, report) for p in report.problems[before:]]
        found.append((point, replace(loaded, job=job, container=container)))
    report.stop_if(lambda _: True)
    return found


def _placed(problem: Problem, report: Report) -> Problem:
    """A problem of one point, pointing at the sweep's own place."""
    return replace(problem, origin=problem.origin or report.nearest(problem.path))


def _name(name: str, label: str) -> str:
    return f"{name[: 63 - len(label)].rstrip('-._')}-{label}"
