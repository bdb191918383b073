"""The parts of the proof, each a module with ``run(machine)``, which yields figures as they come. Its first line is its heading."""

NAMES = ("training", "exact", "restarts", "saves", "steps", "failures", "sharded", "samples")
"""In the order in which they are run."""
LIMIT_S = {"training": 100, "exact": 150, "restarts": 120, "saves": 150, "failures": 150}
"""A part that takes longer is ended; what it has found by then counts. Of the others `USUAL_S`."""
USUAL_S = 90
