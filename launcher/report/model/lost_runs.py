"""What can be said of a run whose folder is gone."""

from __future__ import annotations

from launcher.errors import RunGoneError


def lost_run_in_words(error: RunGoneError) -> str:
    """Its sentence, and what SLURM knows of its job: a job's name is its run's id."""
    from launcher.slurm.jobs import job_facts, newest_of_name

    job = newest_of_name(error.run_id) if error.run_id else None
    if job is None:
        return str(error)
    sentence = str(error).rstrip(".")
    facts = job_facts(job.job_id) if job.exit_code is None and job.ended else None
    code, signal = (job.exit_code, job.signal) if facts is None else (facts.exit_code, facts.signal)
    ended = f", exit code {code}:{signal or 0}" if code is not None and job.ended else ""
    return f"{sentence}. SLURM job {job.job_id}: {job.state}{ended}."
