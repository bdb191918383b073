"""Describe a run whose folder was deleted or moved."""

from __future__ import annotations

from launcher.errors import RunGoneError


def lost_run_in_words(error: RunGoneError) -> str:
    """Return the error's sentence and what SLURM knows of the run's job, whose name is the run's id."""
    from launcher.slurm.jobs import job_facts, newest_of_name

    job = newest_of_name(error.run_id) if error.run_id else None
    if job is None:
        return str(error)
    sentence = str(error).rstrip(".")
    facts = job_facts(job.job_id) if job.exit_code is None and job.ended else None
    code, signal = (job.exit_code, job.signal) if facts is None else (facts.exit_code, facts.signal)
    ended = f", exit code {code}:{signal or 0}" if code is not None and job.ended else ""
    return f"{sentence}. SLURM job {job.job_id}: {job.state}{ended}."
