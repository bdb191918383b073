"""Who starts a plan: SLURM or this machine."""
