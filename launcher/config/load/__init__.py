"""From files and overrides to a checked job, or to a sweep's jobs."""
