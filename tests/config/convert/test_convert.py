"""sbatch scripts and hydra-submitit configs become job files: golden outputs, and that any input is survived."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.config.convert import convert
from launcher.config.convert.shell_script import commands
from launcher.config.convert.shell_variables import Scope, plain
from launcher.config.document.source import read_yaml
from launcher.config.load.load import load_job
from launcher.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden"
INPUTS = sorted(p for p in GOLDEN.iterdir() if not p.name.endswith(".job.yaml"))
RECORD = "LAUNCHER_RECORD=1 python -m pytest tests/config/convert/test_convert.py"


@pytest.mark.parametrize("path", INPUTS, ids=lambda p: p.name)
def test_golden(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real-looking script becomes exactly the recorded job file, and that is a job as it stands."""
    made = convert(path.read_text(), path.name)
    golden = path.with_name(path.name + ".job.yaml")
    if os.environ.get("LAUNCHER_RECORD"):
        golden.write_text(made)
    monkeypatch.setenv("SLURM_PARTITION", "gpu")
    monkeypatch.setenv("USER", "ada")

    assert made == golden.read_text(), f"if this is meant: {RECORD}"
    load_job(golden, sites=[], check_code=False)


def test_secrets_never_arrive() -> None:
    """The values of exported secrets are in no job file, only their names."""
    made = convert((GOLDEN / "accelerate.sbatch").read_text(), "accelerate.sbatch")

    assert "hf_xxx" not in made
    assert "0123456789" not in made
    assert "pass: [HF_TOKEN, WANDB_API_KEY]" in made


@pytest.mark.parametrize(
    ("line", "script", "args"),
    [
        ("python train.py", "train.py", []),
        ("python -u -X dev ./train.py --a=1", "train.py", ["--a=1"]),
        ("srun python3.11 -m pkg.mod x", "-m pkg.mod", ["x"]),
        ("srun -n4 --mpi=pmix /opt/env/bin/python train.py", "train.py", []),
        ("torchrun --standalone --nproc-per-node=2 train.py --x 007", "train.py", ["--x", "007"]),
        ("python -m torch.distributed.run --nproc_per_node 2 -m pkg.mod y", "-m pkg.mod", ["y"]),
        ("uv run train.py z", "train.py", ["z"]),
        ("conda run -n env python train.py", "train.py", []),
        ("env A=b nice -n 10 python train.py", "train.py", []),
        ("numactl --cpunodebind=0 python train.py", "train.py", []),
        ("bash -c 'cd x && torchrun train.py \"a b\"'", "train.py", ["a b"]),
        ("apptainer exec --nv image.sif python train.py", "train.py", []),
        ("CMD='python train.py --a 1'\nsrun $CMD --b 2", "train.py", ["--a", 1, "--b", 2]),
        (
            'ARGS=(--a 1)\nARGS+=(--c)\nARGS=("${ARGS[@]}" --b \'x y\')\npython train.py "${ARGS[@]}"',
            "train.py",
            ["--a", 1, "--c", "--b", "x y"],
        ),
        ("LR=${LR:-0.1}\npython train.py --lr $LR > log.txt 2>&1", "train.py", ["--lr", "${oc.env:LR,'0.1'}"]),
        ("if true; then\n  srun torchrun train.py\nfi", "train.py", []),
        ("python train.py \\\n  --a \\\n  b # c", "train.py", ["--a", "b"]),
        ("N=$((2 * 3 + 1))\npython train.py $N ${HOME}/x '$HOME'", "train.py", [7, "${oc.env:HOME}/x", "$HOME"]),
        ("python prepare.py\nsrun python train.py", "train.py", []),
    ],
)
def test_programs(line: str, script: str, args: list[object]) -> None:
    """However a program is started, it is found, with its arguments as the shell would give them."""
    made = convert(f"#SBATCH --nodes=1\n{line}\n", "x.sbatch")
    data = read_yaml(made, "x").data

    assert (data["script"], data.get("args", [])) == (script, args)


@pytest.mark.parametrize(
    ("lines", "environment"),
    [
        ("A=1 B=$X srun python train.py", {"variables": {"A": "1"}, "setup": ['export B="$X"']}),
        ("A=1 srun bash -c 'B=2 python train.py'", {"variables": {"A": "1", "B": "2"}}),
        ("A=1\nexport A B\npython train.py", {"variables": {"A": "1"}, "pass": ["B"]}),
        ("srun --container-image 'a b' python train.py", {"container": "a b"}),
    ],
)
def test_environment(lines: str, environment: dict[str, object]) -> None:
    """What the training command gets from the shell around it, it gets from the job file."""
    made = convert(f"#SBATCH --nodes=1\n{lines}\n", "x.sbatch")

    assert read_yaml(made, "x").data["environment"] == environment


@pytest.mark.parametrize(
    ("directives", "resources"),
    [
        ("-N 2 -n 8 --gres=gpu:4", {"nodes": 2, "gpus_per_node": 4}),
        ("--nodes=2-4 --gpus=8 --ntasks-per-node=4", {"nodes": "2-4", "gpus_per_node": 4}),
        ("-n 8 --ntasks-per-node=4", {"nodes": 2, "tasks_per_node": 4}),
        ("--gpus-per-node=h100:8 --ntasks-per-node=8 -c 12", {"nodes": 1, "gpus_per_node": 8, "cpus_per_task": 12}),
        ("-t 30:30", {"nodes": 1, "timeout_min": 31}),
        ("-t 90", {"nodes": 1, "timeout_min": 90}),
        ("-t 2-0", {"nodes": 1, "timeout_min": "2-0"}),
        ("--mem=1T", {"nodes": 1, "mem_gb": 1024}),
        ("--mem-per-cpu=2G -c 8", {"nodes": 1, "cpus_per_task": 8, "mem_gb": 16}),
    ],
)
def test_amounts(directives: str, resources: dict[str, object]) -> None:
    """The many ways to ask for nodes, GPUs, CPUs, memory and time mean the same here."""
    made = convert(f"#SBATCH {directives}\nsrun python train.py\n", "x.sbatch")

    assert read_yaml(made, "x").data["resources"] == resources


@pytest.mark.parametrize(
    "launcher",
    ["setup: module load cuda", "additional_parameters: x", "gpus_per_node: x, tasks_per_node: 2", "partition: [a]"],
)
def test_any_submitit_config(launcher: str) -> None:
    """A value of a wrong type in a submitit config is no crash; one line of setup is one line."""
    made = read_yaml(convert(f"{{nodes: 2, cpus_per_task: 3, {launcher}}}", "x.yaml"), "x").data

    assert made["resources"]["nodes"] == 2
    assert made.get("environment", {}).get("setup", ["module load cuda"]) == ["module load cuda"]


def test_what_is_neither() -> None:
    """A text that is no sbatch script or submitit config is refused with a sentence."""
    for text, name in [("hello\n", "x.sh"), ("a: 1\n", "x.yaml"), ("[", "x.yaml"), ("", "x.sbatch")]:
        with pytest.raises(ConfigError):
            convert(text, name)


SHELLISH = st.text(alphabet="ab $(){}[]'\"`\\\n;|&<>#=-+*?!/.:,012\t\u2028", max_size=60)


@examples(200)
@given(text=SHELLISH, value=st.text(max_size=20))
@example(text='x="$x y"\npython $x $x\n', value="")
@example(text='X=("${X[@]}" a)\npython t.py "${X[@]}"\n', value="")
@example(text="cat <<E\n" * 50, value="")
@example(text="$(" * 300, value="")
def test_any_script(text: str, value: str) -> None:
    """Any script becomes a YAML mapping or a sentence; nothing in it can leave a comment or a quoted text."""
    script = f"#SBATCH --comment={value!r} --job-name={value!r}\nexport A={text}\npython train.py {text}\n{text}"
    document = read_yaml(convert(script, "x.sbatch"), "x")

    assert document.problems == []
    assert set(document.data) <= {
        "name", "script", "args", "resources", "slurm", "environment", "code", "distributed", "restart", "sweep",
    }  # fmt: skip


def test_quotes_and_variables() -> None:
    """Words come out as a shell would make them."""
    scope = Scope()
    scope.assign("A", "'x y'")
    scope.assign("N", "3")

    assert [c.words for c in commands("a 'b c' \"d $A\" # e\nf>g; h | i 2>&1 && j\n")] == [
        ["a", "'b c'", '"d $A"'], ["f"], ["h"], ["i"], ["j"],
    ]  # fmt: skip
    assert plain(scope.expand('"$A"-${N}-$((N*2))-\\$A-"\\n"')) == "x y-3-6-$A-\\n"
    assert plain(scope.expand("$B")) is None


def test_a_range_of_torchrun_is_slurms() -> None:
    """``--nnodes=2:4`` goes on with fewer nodes under torchrun, and as ``nodes: 2-4`` here."""
    made = convert("#SBATCH --time=60\nsrun torchrun --nnodes=2:4 --nproc-per-node=2 train.py\n", "x.sbatch")

    assert read_yaml(made, "x").data["resources"] == {"nodes": "2-4", "tasks_per_node": 2, "timeout_min": 60}
