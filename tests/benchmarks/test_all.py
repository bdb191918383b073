"""`make bench`: what its table says of what the benchmarks print."""

from __future__ import annotations

import importlib.util
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
        lines = [figure.line(PRINTED[name], command) for figure in figures]
        assert not [line for line in lines if "not found" in line]
        assert all(peer in line for figure, line in zip(figures, lines, strict=True) for peer, _ in figure.peers)


def test_a_figure_beyond_its_goal_is_marked(bench: ModuleType) -> None:
    """7.68 s of 5 stand in bold; what has no figure says so."""
    figures = bench.BENCHMARKS["scale.py --nodes 2000 --seconds 10 --json"]

    assert "| **7.68 s** | 5 s |" in figures[0].line(PRINTED["scale.py"], "c")
    assert "| 0.21 cores | 0.3 cores |" in figures[1].line(PRINTED["scale.py"], "c")
    assert "| not found |" in figures[0].line("", "c")
