"""Jobs are trained by real gloo workers; the harness that plays their agent lies beside the training tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
