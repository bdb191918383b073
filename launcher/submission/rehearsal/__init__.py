"""The job in small, on this machine or on nodes, before it is submitted: ``launcher dry-run``."""
