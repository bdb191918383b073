"""From a new process to the user's code."""
