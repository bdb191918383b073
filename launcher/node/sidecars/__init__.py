"""Processes beside an attempt: experiment trackers and notifications. They may fail; the run never waits for them."""
