"""What would be submitted, worked out from a job and facts. Pure but for questions to sbatch, and `estimate`, which reads earlier runs."""
