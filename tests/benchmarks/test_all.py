"""`make bench`: what its table says of what the benchmarks print."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "all.py"

PRINTED = {
    "verbs.py": "| --help | 66 | 70 | 60 | 100 | PASS |\n| plan job.yaml | 285 | 337 | 300 | 400 | PASS |\n"
    "| status RUN | 117 | 1 | 1 | 300 | PASS |\n"
    "| why RUN | 108 | 1 | 1 | 300 | PASS |\n| ls | 84 | 1 | 1 | 300 | PASS |\n| ls, 10,000 runs | 434 | 1 | 1 | 1000 | PASS |",
    "sweep.py": "load 0.1 on 2 CPUs\nsubmit --sweep of 1000               790 ms wall      700 ms CPU, 300 of it the kernel's   (5 tries)",
    "rounds.py": "kill -9 to the first step beyond: median 0.860 s, max 1.050 s\nwithout the steps done again:     median 0.590 s, max 0.680 s",
    "step_overhead.py": "361 pairs: ours 4.2 ms per step, plain DDP 4.1 ms\nmore a step: 33.1 µs (95 %: 30.0 to 36.0)",
    "checkpoint.py": "DCP async_save: blocked 0.121 s, durable after 0.280 s, with nothing beside it\n"
    "median of 2 pairs: torch.save+fsync 0.141 s; ours blocked 0.073 s (0.519 of it, at most 0.777), durable after 1.0 s",
    "resume_read.py": "0.50 GB: read 0.42 s (1.21 GB/s), resumed 0.55 s (0.92 GB/s)\na resume takes 1.31 times a plain read (median of 3)",
    "shares.py": "rank 0 alone: written after 1.20 s, training blocked for 0.029 s (medians of 3 saves)\nratio of written: 0.86",
    "scale.py": '{"nodes": 2000, "ordered_s": 7.68, "leader_cpu": 0.2104, "lag_max_s": 0.066, '
    '"restart_s": 1.05, "agreed_s": 0.49, "saved_s": 2.67, "rss_mb": 148}',
    "startup.py": "| launcher | 5.25 | 5.0 | 5.5 | [1] |\n| srun | 18.90 | 18 | 19 | [4] |\n| torchrun | 22.30 | 22 | 23 | [5] |",
    "reruns.py": "queue                  median  5.48 s, max  5.61 s, 3 times\nstep                   median  0.61 s, max  0.63 s, 10 times",
    "revivals.py": "agent killed               median  2.39 s, max  2.43 s, 3 times\n"
    "leader killed              median  2.53 s, max  2.55 s, 3 times",
    "requeue.py": "old workers' end to the new workers' first step: 33 times, median 10.8 s, max 15.6 s; over 100 s: 0",
}


@pytest.fixture
def bench() -> ModuleType:
    """The script, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("bench_all", FILE)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def test_every_figure_is_found_in_what_its_benchmark_prints(bench: ModuleType) -> None:
    """A benchmark that prints otherwise than it did would leave holes in the table. Peers stand beside."""
    for command, figures in bench.BENCHMARKS.items():
        name = command.split()[0]
        assert (FILE.parent / name).exists()
        lines = [figure.line(PRINTED[name], command, "today") for figure in figures]
        assert not [line for line in lines if "not found" in line]
        assert all(peer in line for figure, line in zip(figures, lines, strict=True) for peer, _ in figure.peers)


def test_a_figure_beyond_its_goal_is_marked(bench: ModuleType) -> None:
    """7.68 s of 5 stand in bold; what has no figure says so."""
    figures = bench.BENCHMARKS["scale.py --nodes 2000 --seconds 10 --json"]

    assert "| **7.68 s** | 5 s |" in figures[0].line(PRINTED["scale.py"], "c", "today")
    assert "| 0.21 cores | 0.3 cores |" in figures[1].line(PRINTED["scale.py"], "c", "today")
    assert "| not found |" in figures[0].line("", "c", "today")


def test_a_goal_may_be_a_share_of_what_others_need(bench: ModuleType) -> None:
    """A save is held against torch.save, though another tool blocks for less; start-up against the quicker of both."""
    (save,) = bench.BENCHMARKS["checkpoint.py --mb 512 --pairs 3"]
    (start,) = bench.BENCHMARKS["startup.py --turns 2"]

    assert "| **0.073 s** | 0.00141 s |" in save.line(PRINTED["checkpoint.py"], "c", "today")
    assert "| **5.25 s** | 3.15 s |" in start.line(PRINTED["startup.py"], "c", "today")
    assert "| 3.1 s | 3.15 s |" in start.line(PRINTED["startup.py"].replace("5.25", "3.10"), "c", "today")


def test_an_interval_stands_beside_its_figure(bench: ModuleType) -> None:
    """Of 33 µs and a goal of 30 a reader must see whether that is noise."""
    (figure,) = bench.BENCHMARKS["step_overhead.py --ranks 1 --hidden 128 --layers 1 --pairs 400 --cpu"]

    assert "| **33.1 µs (95 %: 30.0 to 36.0)** |" in figure.line(PRINTED["step_overhead.py"], "c", "today")


@pytest.fixture
def page(bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two benchmarks with nothing but a page, on which both were measured long ago."""
    (tmp_path / "benchmarks").mkdir()
    for name in ("one", "two"):
        (tmp_path / "benchmarks" / f"{name}.py").write_text(f"print('{name} takes 7 s')")
    figures = {f"{name}.py": [bench.Figure(name, r"takes (\d+)", "s", 8)] for name in ("one", "two")}
    for name, value in {"BENCHMARKS": figures, "ROOT": tmp_path, "PAGE": tmp_path / "page.md"}.items():
        monkeypatch.setattr(bench, name, value)
    old = "".join(f"| {name} | 5 s | 8 s |  | `{name}.py` | 2020-01-01, abc |\n" for name in ("one", "two"))
    (tmp_path / "page.md").write_text(f"{bench.BEGIN}\n{bench.machine()}\n\n{bench.HEAD}\n{old}{bench.END}\n")
    return tmp_path / "page.md"


def test_a_line_that_is_kept_keeps_its_day(bench: ModuleType, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--only` measures one; the other's figure is not of today, nor of this commit. On another machine it is refused."""
    monkeypatch.setattr(sys, "argv", ["all.py", "--only", "two"])

    assert bench.main() == 0
    assert "| one | 5 s | 8 s |  | `one.py` | 2020-01-01, abc |" in page.read_text()
    assert re.search(r"\| two \| 7 s \| 8 s \|  \| `two.py` \| 20[2-9]\d-(?!01-01).*load ", page.read_text())
    monkeypatch.setattr(bench, "machine", lambda: "64 cores.")
    with pytest.raises(SystemExit):
        bench.main()


@pytest.mark.parametrize(("printed", "code"), [("takes 8", 0), ("takes 9", 1), ("fell over", 1)])
def test_a_goal_that_is_missed_is_an_error(
    bench: ModuleType, page: Path, monkeypatch: pytest.MonkeyPatch, printed: str, code: int
) -> None:
    """So is a figure that could not be had: whoever runs `make bench` in a script learns of it."""
    (page.parent / "benchmarks" / "one.py").write_text(f"print('{printed}')")
    monkeypatch.setattr(sys, "argv", ["all.py"])

    assert bench.main() == code


@pytest.mark.parametrize("name", ["startup.py", "other.py"])
def test_a_benchmark_that_takes_too_long_takes_its_cluster_down(
    bench: ModuleType, page: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Killed, it would leave four hosts' daemons: it is ended as by Ctrl-C, and so is the shell around start-up's."""
    root = page.parent
    (root / "slurm").mkdir()
    (root / "slurm" / "cluster").write_text("#!/bin/sh\necho $1 >>said\n")
    (root / "slurm" / "cluster").chmod(0o755)
    own = "    open('said', 'a').write('down\\n')\n" if name == "other.py" else "    pass\n"
    (root / "benchmarks" / name).write_text(f"import time\ntry:\n    time.sleep(100)\nfinally:\n{own}")
    monkeypatch.setattr(bench, "LIMIT_S", 5)
    monkeypatch.setattr(bench.os, "geteuid", lambda: 0)

    (line,) = bench.measure(name, [bench.Figure("slow", "x", "s")])

    assert "**not over after 5 s**" in line
    assert (root / "said").read_text().split()[-1] == "down"
