"""Loading: files and overrides become a checked job, or the jobs of a sweep. Never asks SLURM."""
