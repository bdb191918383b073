"""Shared by all tests: the four-host SLURM cluster (`tests/cluster.py`)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
pytest_plugins = ["cluster"]
