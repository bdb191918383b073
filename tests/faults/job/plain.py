"""A script that knows nothing of the launcher: it saves a file of its own, and goes on from the newest one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

folder = Path(os.environ["LAUNCHER_RUN_DIR"]) / "out"
folder.mkdir(exist_ok=True)
first = max((int(path.stem) for path in folder.glob("*.pt")), default=0)
print("from", first, flush=True)
for step in range(first + 1, int(sys.argv[1]) + 1):
    time.sleep(float(sys.argv[2]))
    (folder / ".new").write_text(str(step))
    (folder / ".new").rename(folder / f"{step:05d}.pt")
