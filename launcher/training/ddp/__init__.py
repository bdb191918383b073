"""Data order, randomness, gradient buckets and optimizers: what must be equal for a resume to be exact."""
