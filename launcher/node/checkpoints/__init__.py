"""Checkpoints and attempts on disk: who may commit, what is intact. Blocking; never called in the event loop itself."""
