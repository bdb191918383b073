"""The nodes that SLURM gave the run: the job, its signals, its requeue and its end. Never handles rounds or workers."""
