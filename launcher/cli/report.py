"""Make a page with pictures about a run, or compare runs."""

from __future__ import annotations

import click

from launcher.cli._options import complete_run


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write. Default: RUN.html.")
def command(runs: tuple[str, ...], output: str | None) -> None:
    """Write one HTML page about RUN (default: the newest), or comparing several RUNs.

    The page holds everything it needs: it opens without a network, in dark and light, on a phone and on paper.
    """
    import time
    from pathlib import Path

    from launcher.errors import RunDirError
    from launcher.report.history import read_history
    from launcher.report.page import compare_page, read_told, run_page
    from launcher.report.runs import find, previous_of, summarise_all

    now = time.time()
    paths = [find(name) for name in runs or ("@last",)]
    histories = [read_history(p) for p in paths]
    told = [read_told(h, s, now) for h, s in zip(histories, summarise_all(histories, now), strict=True)]
    page = run_page(told[0], previous_of(paths[0]), now) if len(told) == 1 else compare_page(told, now)
    default = f"{paths[0].id}.html" if len(told) == 1 else f"compare-{'-'.join(t.short for t in told)}.html"
    target = Path(output or default)
    try:
        target.write_text(page, encoding="utf-8", errors="replace")  # half characters have no bytes
        target.chmod(0o600)
    except OSError as error:
        raise RunDirError(f"{target}: {error.strerror or error}") from None
    click.echo(f"{target}  ({target.stat().st_size // 1000} kB)")
