"""A worker's side of a checkpoint: copied, written, read back. Never commits: the leader does."""
