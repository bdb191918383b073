"""The README's two pictures, of a made-up run (tests/report/rich_run.py): ``python docs/pictures/make.py``, with Chromium on the PATH."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "report")]

from rich_run import make  # noqa: E402

from launcher.report.live.feed import LiveFeed  # noqa: E402
from launcher.report.live.screen import detail_screen  # noqa: E402
from launcher.report.page.page import read_page_data, run_page  # noqa: E402
from launcher.run.paths import RunPaths  # noqa: E402

COLUMNS, ROWS = 96, 28
PAGE = "1100,1240"
"""Pixels of the page's beginning."""


def main() -> None:
    """Make both."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on the PATH")
    now = time.time()
    with tempfile.TemporaryDirectory() as folder:
        run = RunPaths(make(Path(folder), now=now)["running"])
        detail = LiveFeed().detail(run, now)
        console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
        console.print(Text("\n").join(detail_screen(detail, 0, COLUMNS, ROWS)), end="")
        console.save_svg(str(HERE / "watch.svg"), title=f"launcher watch {run.id}")
        page = Path(folder, "page.html")
        page.write_text(run_page(read_page_data(detail.history, detail.summary, now), None, now))
        shot = [f"--screenshot={HERE / 'report.png'}", f"--window-size={PAGE}", "--hide-scrollbars"]
        quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
        subprocess.run([chromium, *quiet, *shot, page.as_uri()], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
