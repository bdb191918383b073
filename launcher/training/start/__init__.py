"""From a new process to the user's code. Never imported by the loop or by user code."""
