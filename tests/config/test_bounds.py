"""Whoever writes a job file, an sbatch script or a folder's name cannot make a command hang or fill the memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli.main import main
from launcher.config.convert import convert
from launcher.config.document.source import FILE_BYTES
from launcher.config.load.load import load_job, point_jobs
from launcher.errors import ConfigError, LauncherError

LIMIT_S = 40.0
"""Of CPU time. What is refused here took minutes, or had no end; it takes 4 s at most on a quiet machine."""
FAST = examples(30)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a script, current for the test."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LAUNCHER_SITE", raising=False)
    return tmp_path


def refused(work: Callable[[], object]) -> list[str]:
    """The sentences of the error that ``work`` ends in, each a printable line, soon enough."""
    began = time.process_time()
    with pytest.raises(LauncherError) as caught:
        work()
    lines = str(caught.value).splitlines()

    assert time.process_time() - began < LIMIT_S
    assert all(line.isprintable() and len(line) < 1000 for line in lines)
    return lines


def loading(text: str) -> Callable[[], object]:
    """Loading a job file of this text, and its points."""
    Path("job.yaml").write_text(text)
    return lambda: point_jobs(load_job("job.yaml", sites=[]))


def laughs(levels: int, width: int, first: str) -> str:
    """Each list holds the one before ``width`` times: a few hundred bytes, ``width ** levels`` values."""
    lines = [f"  a0: &a0 {first}"]
    lines += [f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "script: train.py\nparams:\n" + "\n".join(lines) + "\n"


LARGE: dict[str, tuple[Callable[[], str], str]] = {
    "4 MB": (lambda: "script: train.py\nparams:\n" + "".join(f"  k{n}: [1, 2, 3]\n" for n in range(240_000)), "larger than 256 KiB"),
    "billion laughs": (lambda: laughs(10, 10, "x"), "aliases (*name)"),
    "laughing at length": (lambda: laughs(4, 10, "x" * 100_000), "too large once its aliases"),
    "laughing mappings": (lambda: "script: train.py\nparams: {a: &a {" + "k" * 200 + ": &b [" + "x, " * 5_000 + "]},"
                          + ", ".join(f"b{n}: *a" for n in range(15)) + "}", "too large once its aliases"),
    "a long key": (lambda: "script: train.py\nparams: {" + "k." * 400 + ": 1}", "a key has more than 256 characters"),
    "unknown keys": (lambda: "script: train.py\n" + "".join(f"k{n}: 1\n" for n in range(20_000)), 'unknown key "k0"'),
    "swept keys": (lambda: "script: train.py\nsweep:\n" + "".join(f"  params.k{n}: [1, 2]\n" for n in range(10_000)),
                   "varies 10,000 keys; at most 100 are allowed"),
    "large points": (lambda: "script: train.py\nparams: {a: " + "x" * 50_000 + ", k: 1}\nsweep: {params.k: 'range(10000)'}",
                     "larger than 64 MiB"),
    "long labels": (lambda: "script: train.py\nsweep: {params.a: [" + "x" * 100_000 + ", y], params.k: 'range(5000)'}", "larger than 64 MiB"),
    "a huge number of minutes": (lambda: f"script: train.py\nresources: {{timeout_min: '{'9' * 5000}'}}", "more than 40 characters"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_job_is_refused_in_a_sentence(kind: str, project: Path) -> None:
    """Bytes, aliases, keys, points: beyond what a job holds, nothing is worked on for long."""
    text, said = LARGE[kind]
    lines = refused(loading(text()))

    assert any(said in line for line in lines), lines[:3]
    assert len(lines) <= 101


def test_what_real_jobs_hold_is_taken(project: Path) -> None:
    """A sweep over ten thousand written values, and lists of thousands of names, are no attack."""
    values = ", ".join(f"0.{n:05d}" for n in range(1, 10_001))
    names = "".join(f"  - /data/shards/train-{n:05d}.tar\n" for n in range(3_000))
    Path("job.yaml").write_text(f"script: train.py\nargs:\n{names}sweep: {{params.lr: [{values}]}}\n")

    assert os.path.getsize("job.yaml") < FILE_BYTES
    assert len(load_job("job.yaml", sites=[]).job.args) == 3_000


@pytest.mark.parametrize("kind", ["a pipe", "endless zeros", "a folder", "a link to a pipe"])
def test_only_a_regular_file_is_read(kind: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe that nobody writes, a device without an end and a folder: plan and init say so, at once."""
    os.mkfifo("pipe")
    os.mkdir("folder")
    os.symlink("pipe", "link")
    path = {"a pipe": "pipe", "endless zeros": "/dev/zero", "a folder": "folder", "a link to a pipe": "link"}[kind]
    reason = "is a directory" if kind == "a folder" else "it is not a regular file"

    assert main(["plan", path]) == 3
    assert capsys.readouterr().err == f"launcher: {path}: {reason}\n"
    assert main(["init", path, "-o", "-"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


SCRIPTS = {
    "doubling": ("A=xx\n" + "A=$A$A\n" * 60 + "python train.py $A\n", "more than 1 MiB"),
    "doubling arrays": (
        "A=(x y)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60 + 'python train.py "${A[@]}"\n',
        "more than 1 MiB",
    ),
    "words again and again": (f"A='{'x ' * 30_000}'\npython train.py {'$A ' * 10_000}\n", "more than 1 MiB"),
    "brackets": ("python train.py " + "$(" * 50_000, "nested too deeply"),
    "a long directive": ("#SBATCH --gres=" + "(" * 100_000 + "\npython train.py\n", "more than 4,096 characters"),
    "a large script": ("#SBATCH -N 1\n" + "echo\n" * 100_000, "larger than 128 KiB"),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_an_sbatch_script_is_bounded_too(kind: str) -> None:
    """What its variables stand for, its brackets, its lines."""
    text, said = SCRIPTS[kind]

    assert any(said in line for line in refused(lambda: convert(text, "x.sbatch")))


@pytest.mark.parametrize(
    "text",
    ["#SBATCH -t " + "9" * 3000 + ":00", "#SBATCH --array=" + "9" * 3000, "#SBATCH --array=" + "0-9999," * 500 + "1",
     "#SBATCH --signal=USR1@" + "9" * 3000, "#SBATCH -t " + "9" * 3000, "x='" + "a" * 120_000 + "'", "a-" * 60_000,
     "".join(f"export A{n}\n" for n in range(10_000))],
    ids=range(8),
)  # fmt: skip
def test_odd_sbatch_scripts_are_converted_soon(text: str) -> None:
    """Numbers of thousands of digits, thousands of ranges, words of a hundred thousand letters."""
    began = time.process_time()
    convert(f"#SBATCH --nodes=1\n{text}\npython train.py\n", "x.sbatch")

    assert time.process_time() - began < LIMIT_S


HOSTILE = st.lists(
    st.sampled_from(["a: ", "- ", "&a ", "*a", "<<: ", "[", "]", "{", "}", "\n", "  ", "${", "}", "${params.a}", "${oc.env:'X'}", ".",
                     "params", "sweep", "script: train.py\n", ": ", ", ", "!!python/object:os.system ", "\\", "'", '"', "|\n", "9" * 50,
                     "\x85", "\ufeff", "range(9999999)", "---\n", "? ", "@", "`", "%", "#"]),
    max_size=40,
).map("".join)  # fmt: skip


@FAST
@given(data=st.binary(max_size=80) | HOSTILE.map(str.encode) | HOSTILE.map(lambda text: text.encode("utf-16")))
def test_any_bytes_end_in_a_job_or_sentences(data: bytes, project: Path) -> None:
    """Whatever a job file holds, loading it ends soon, in a job or in an error of ours."""
    Path("job.yaml").write_bytes(data)
    began, said = time.process_time(), ["a job"]
    try:
        point_jobs(load_job("job.yaml", sites=[]))
    except ConfigError as error:
        said = error.problems

    assert all(line and line.isprintable() for line in said)
    assert time.process_time() - began < LIMIT_S


SHELL = st.lists(
    st.sampled_from(["A=", "$A", "${A", "}", "$(", ")", "((", "))", '"', "'", "`", "\n", " ", "export ", "python t.py ", "bash -c ",
                     "<<E", "E", "#SBATCH -", "--gres=gpu:", "9" * 30, "for ", "do ", "done", "\\", "[@]", "srun ", "|", "&", ";", "A=(", "x"]),
    max_size=60,
).map("".join)  # fmt: skip


@FAST
@given(text=SHELL | st.text(max_size=100), name=st.sampled_from(["x.sbatch", "x.yaml"]))
def test_any_script_is_converted_or_refused(text: str, name: str) -> None:
    """Whatever an sbatch script or a submitit config holds: a job file, or an error of ours."""
    began, made = time.process_time(), ""
    try:
        made = convert(text, name)
    except ConfigError as error:
        made = str(error)

    assert made
    assert time.process_time() - began < LIMIT_S


def test_paths_show_no_secret(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variable in runs_dir becomes a part of a path that everybody sees: the name of a secret is refused."""
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    for text in ("$HF_TOKEN/runs", r"a/\${HF_TOKEN}"):
        Path("job.yaml").write_text(json.dumps({"script": "train.py", "runs_dir": text}))

        assert main(["plan", "job.yaml", "--backend", "local"]) == 3
        shown = capsys.readouterr()
        assert "the value of HF_TOKEN is a secret" in shown.err
        assert "hunter2" not in shown.out + shown.err
