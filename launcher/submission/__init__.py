"""From a job to a running one: plan, snapshot, sbatch text, submitit, local backend."""
