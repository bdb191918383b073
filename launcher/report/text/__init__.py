"""Events, states and lists of runs in plain text. Pure but for `listing`, which reads."""
