"""The nodes as somebody lent them: SLURM's job, its signals, its requeue and its end. Knows no rounds."""
