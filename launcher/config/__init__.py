"""The job file: its schema, loading, checks and conversion. Never imports torch or the user's code."""
