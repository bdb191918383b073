"""A run's directory: paths, spec, events, state, ledger. Standard library only: nodes import this floor."""
