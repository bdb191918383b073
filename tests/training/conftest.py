"""Worker tests: the harness and the jobs beside this file can be imported by name, here and in the workers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
