"""What all floors share of a run: file names, spec, events, messages, state, causes. Standard library only: nodes import this floor."""
