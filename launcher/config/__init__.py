"""The job file: schema, loading, overrides, sweeps, static check of the named code. Never imports torch."""
