"""Sweeps: which points there are, what they are called, and that each is a checked job."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.config.load.load import LoadedJob, load_job, point_jobs
from launcher.config.load.sweep import MOST_POINTS, Point, axes, expand, flatten
from launcher.errors import ConfigError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with code, current for the test."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "tasks.py").write_text(
        "import launcher\nclass Net(launcher.Training):\n    model = train_data = loss = optimizer = None\n"
        "    def __init__(self, lr, seed=0): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *overrides: str, sweep: tuple[str, ...] = ()) -> LoadedJob:
    """Write job.yaml here and load it."""
    Path("job.yaml").write_text(text)
    return load_job("job.yaml", overrides, sweep=sweep, sites=[])


def wrong(text: str, *overrides: str, sweep: tuple[str, ...] = ()) -> list[str]:
    """What is wrong with a job and its points."""
    with pytest.raises(ConfigError) as caught:
        point_jobs(load(text, *overrides, sweep=sweep))
    return caught.value.problems


def test_points_are_every_combination() -> None:
    """The last key varies fastest; labels are short, unique and fit for names."""
    sweep = expand({"params.lr": [0.1, 3e-4], "params.seed": "range(2)", "array_parallelism": 3})

    assert sweep.array_parallelism == 3
    assert sweep.points == (
        Point(0, "lr0.1-seed0", {"params.lr": 0.1, "params.seed": 0}),
        Point(1, "lr0.1-seed1", {"params.lr": 0.1, "params.seed": 1}),
        Point(2, "lr0.0003-seed0", {"params.lr": 0.0003, "params.seed": 0}),
        Point(3, "lr0.0003-seed1", {"params.lr": 0.0003, "params.seed": 1}),
    )


def test_labels_stay_apart() -> None:
    """Keys with the same last word are told apart, and so are values that look alike once shortened."""
    points = expand({"params.a.lr": [1], "params.b.lr": ["x y", "x/y", True, None, -1, "z" * 90]}).points
    labels = [p.label for p in points]

    assert labels == [
        "a.lr1-b.lrx_y",
        "a.lr1-b.lrx_y-p1",
        "a.lr1-b.lrtrue",
        "a.lr1-b.lrnull",
        "a.lr1-b.lrm1",
        f"a.lr1-b.lr{'z' * 16}",
    ]
    assert len(set(labels)) == len(points)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("params.api_key", ["sw1secretvalue9", "sw2secretvalue9"]),
        ("params.secrets.db", ["sw1secretvalue9", "sw2secretvalue9"]),
        ("params.source", ["ghp_sw1secretvalue9aaaa", "ghp_sw2secretvalue9aaaa"]),
        ("args", [["--password", "sw1secretvalue9"], ["--password", "sw2secretvalue9"]]),
        ("params.login", [{"password": "sw1secretvalue9"}, {"password": "sw2secretvalue9"}]),
    ],
)
def test_a_secret_is_no_label(key: str, values: list[object]) -> None:
    """A label is in the names of folders and jobs, which SLURM shows to everybody: a secret's place in the list stands for it."""
    points = expand({key: values, "params.lr": [1], "params.pad_token": ["x"]}).points
    word = key.rpartition(".")[2]

    assert [p.label for p in points] == [f"{word}.p{index}-lr1-pad_tokenx" for index in (0, 1)]
    assert [p.overrides[key] for p in points] == values


def test_flat_and_nested_keys_mean_the_same() -> None:
    """``params.lr`` and ``lr`` below ``params`` are one key."""
    assert dict(flatten({"params": {"lr": [1], "opt": {"beta": [2]}}, "seed": [3]})) == {
        "params.lr": [1],
        "params.opt.beta": [2],
        "seed": [3],
    }


@pytest.mark.parametrize(
    ("sweep", "wrong_key"),
    [
        ({"params.opt": [{"lr": 1}, {"lr": 2}], "params.opt.lr": [0.1, 0.2]}, "sweep.params.opt.lr"),
        ({"trackers.wandb.mode": ["a"], "trackers.wandb": [None]}, "sweep.trackers.wandb.mode"),
        ({"params.opt": [1], "params.optimizer": [2], "params.opt2.lr": [3]}, None),
    ],
)
def test_no_axis_lies_below_another(sweep: dict[str, object], wrong_key: str | None) -> None:
    """One would replace the other's values, and every point would be trained twice."""
    _, problems = axes(sweep)

    assert [(p.path, "which is varied, too" in p.message) for p in problems] == (
        [(wrong_key, True)] if wrong_key else []
    )


def test_each_point_is_a_job(project: Path) -> None:
    """A point's values reach params and what is interpolated from them; its job.yaml stands alone."""
    loaded = load(
        """
script: train.py
name: net
args: ["--lr=${params.lr}", "--out=${run.dir}"]
params: {depth: 2}
sweep: {params.lr: [0.1, 0.01], array_parallelism: 2}
""",
        sweep=("params.seed=range(2)",),
    )
    points = point_jobs(loaded)

    assert [job.name for _, job in points] == [
        "net-lr0.1-seed0",
        "net-lr0.1-seed1",
        "net-lr0.01-seed0",
        "net-lr0.01-seed1",
    ]
    last = points[-1][1]
    assert last.job.params == {"depth": 2, "lr": 0.01, "seed": 1}
    assert last.job.args == ["--lr=0.01", "--out=${run.dir}"]
    assert last.job.sweep == {}
    assert load(last.yaml).job == last.job


def test_what_is_only_swept_counts_as_given(project: Path) -> None:
    """A required parameter may come from the sweep alone."""
    loaded = load("task: tasks:Net\nsweep: {params.lr: [1, 2]}\n")

    assert [job.job.params for _, job in point_jobs(loaded)] == [{"lr": 1}, {"lr": 2}]


def test_the_command_line_replaces_an_axis(project: Path) -> None:
    """--sweep replaces the file's values of that key, and lists, commas and quotes are read as YAML."""
    loaded = load(
        "script: train.py\nsweep: {params: {a: [1, 2]}}\n",
        sweep=("params.a=x,'y, z'", "params.b=[1,2]", "params.c=[1],[2]"),
    )

    assert loaded.job.sweep == {"params.a": ["x", "y, z"], "params.b": [1, 2], "params.c": [[1], [2]]}


def test_wrong_sweeps_are_said_with_their_place(project: Path) -> None:
    """Each fault of a sweep is one line that points at the sweep."""
    head = "script: train.py\n"

    assert wrong(head + "sweep: {resources.nodes: [1, 2]}\n") == [
        "job.yaml:2:9: sweep.resources.nodes: resources cannot be swept: all points share one sbatch script"
    ]
    assert wrong(head + "sweep: {prams.lr: [1]}\n") == [
        'job.yaml:2:9: sweep.prams.lr: unknown key "prams.lr"; did you mean "params"?'
    ]
    assert wrong(head + "sweep: {params.lr: 0.1, params.a: [], params.b: 'range(1,2,0)', params.c: [1, 1]}\n") == [
        "job.yaml:2:20: sweep.params.lr: must be a list of values or range(n), not 0.1",
        "job.yaml:2:35: sweep.params.a: has no values",
        "job.yaml:2:49: sweep.params.b: range(1,2,0) has a step of 0",
        "job.yaml:2:75: sweep.params.c: has 1 twice",
    ]
    assert wrong(head + "sweep: {array_parallelism: 0}\n") == [
        "job.yaml:2:1: sweep: varies no key; add lists of values, such as params.lr: [0.1, 0.01]",
        "job.yaml:2:28: sweep.array_parallelism: must be a whole number of at least 1, not 0",
    ]
    assert wrong(head, sweep=("params.a=range(1000)", "params.b=range(11)")) == [
        f"job.yaml:1:1: sweep: has 11,000 points; at most {MOST_POINTS:,} are allowed"
    ]
    assert wrong(head, sweep=("seed",)) == [
        'command line: "seed" is not a sweep; write --sweep key=a,b or --sweep key=range(5)'
    ]


def test_a_key_that_is_swept_twice_on_the_command_line_is_refused(project: Path) -> None:
    """As in a file: the values of the first --sweep would be lost without a word."""
    assert wrong("script: train.py\n", sweep=("params.lr=0.1", "seed=1,2", "params.lr=0.2")) == [
        "command line: sweep.params.lr: params.lr is given twice; write all its values in one --sweep"
    ]


def test_a_wrong_point_is_said_once(project: Path) -> None:
    """A value that no job may have is one fault, at the sweep's place, however many points it is in."""
    assert wrong("script: train.py\nsweep: {seed: [1, -1], params.a: [1, 2]}\n") == [
        "job.yaml:2:15: seed: must be at least 0, not -1"
    ]
    assert wrong("task: tasks:Net\nsweep: {params.lrr: [1, 2]}\n") == [
        'job.yaml:1:1: params: Net needs the parameter "lr", which is not set',
        'job.yaml:2:9: params.lrr: Net has no parameter "lrr"; did you mean "lr"?',
    ]


def test_axes_of_nothing() -> None:
    """A job without a sweep has no axes and no faults."""
    assert axes({}) == ({}, [])


@pytest.mark.quiet
def test_a_thousand_points_are_checked_quickly(project: Path) -> None:
    """1,000 points take less than 3 s of CPU (0.4 s on a quiet machine); CPU time, for neighbours do not count."""
    loaded = load("script: train.py\nargs: ['--lr=${params.lr}']\nsweep: {params.lr: 'range(1000)'}\n")
    started = time.process_time()
    points = point_jobs(loaded)

    assert len(points) == 1000
    assert time.process_time() - started < 3
