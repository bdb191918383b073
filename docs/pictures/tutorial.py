"""The tutorial's pictures, of a real walk through it: ``python docs/pictures/tutorial.py``, where SLURM's commands lead to a cluster."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "tests")]

from tutorial import Walk  # noqa: E402

from launcher.report.live.feed import LiveFeed  # noqa: E402
from launcher.report.live.screen import detail_screen  # noqa: E402

COLUMNS, ROWS = 92, 22


def draw(name: str, title: str, text: Text) -> None:
    """One terminal."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(text, end="")
    console.save_svg(str(HERE / f"tutorial-{name}.svg"), title=title)


def shown(walk: Walk, *lines: str) -> Text:
    """Command lines with what they print."""
    out = Text()
    for line in lines:
        out.append(f"$ {line}\n", style="bold").append(walk.do(line).rstrip() + "\n")
    return out


def main() -> None:
    """Walk, and draw on the way."""
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder), dict(os.environ))
        draw("dry-run", "launcher dry-run fit.yaml", shown(walk, "launcher dry-run fit.yaml"))
        walk.do("launcher submit fit.yaml")
        walk.wait_step(160)
        now = time.time()
        screen = detail_screen(LiveFeed().detail(walk.run, now), 0, COLUMNS, ROWS)
        draw("watch", "launcher watch @last", Text("\n").join(screen))
        walk.do('sbatch --partition=high --nodes=4 --exclusive --wrap "sleep 10"')
        walk.wait_end()
        draw("back", "launcher status @last", shown(walk, "launcher status @last", "launcher why @last"))


if __name__ == "__main__":
    main()
