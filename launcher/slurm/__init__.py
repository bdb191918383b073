"""SLURM: ask it (jobs, the site, what a signal means) and order it (requeue, cancel, submit again)."""
