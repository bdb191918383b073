"""What SLURM says: commands and their output, site policy, node lists, the SLURM_* environment."""
