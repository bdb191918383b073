"""A converted script keeps its meaning: what is not certain is left with a note, and every job file loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.convert import convert
from launcher.config.document.source import read_yaml
from launcher.config.load.load import load_job


def made_of(script: str, directives: str = "--nodes=1") -> tuple[dict[str, Any], str]:
    """The job file's values, and its notes as one line."""
    made = convert(f"#SBATCH {directives}\n{script}\n", "x.sbatch")
    notes = " ".join(line.lstrip("# ") for line in made.splitlines() if line.startswith("#"))
    return read_yaml(made, "x").data, notes


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, and the variables that job files name."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "USER", "PWD", "SCRATCH", "MY_DATA", "A", "B", "CUDA_HOME"):
        monkeypatch.setenv(name, f"/{name.lower()}")
    return tmp_path


def loads(script: str, directives: str = "--nodes=1") -> list[str | int | float | bool]:
    """The arguments that the program gets once the job file is loaded."""
    Path("job.yaml").write_text(convert(f"#SBATCH {directives}\n{script}\n", "x.sbatch"))
    return load_job("job.yaml", sites=[], check_code=False).job.args


ARGS: dict[str, tuple[str, list[str | int]]] = {
    "a default of a variable from outside": ("python t.py ${USER:-x} ${LR:-1e-3}", ["/user", "1e-3"]),
    "a default of an argument": ("python t.py ${1:-q} ${2-r}", ["q", "r"]),
    "a default of an empty variable": ('A=""; python t.py ${A:-b} "${A-b}" ${A:+c} ${A+d}', ["b", "", "d"]),
    "a default that is set": (": ${Q:=b}; python t.py $Q", ["b"]),
    "the value where the program is started": ("A=1; srun python t.py $A; A=2; python e.py $A", [1]),
    "an empty variable": ('A=; python t.py $A "$A" b', ["", "b"]),
    "a variable of several words": ("A='b c'; python t.py $A --x=$A \"$A\"", ["b", "c", "--x=b", "c", "b c"]),
    "the home folder": ("python t.py ~/d x=~/d '~/d' --y=~/d", ["/home/d", "x=/home/d", "~/d", "--y=~/d"]),
    "an array": ("A=(b 'c d'); python t.py \"${A[@]}\" $A", ["b", "c d", "b"]),
    "an array as one word": ('A=(b c); python t.py "${A[*]}" ${A[*]}', ["b c", "b", "c"]),
    "an array with comments": ("A=(b # one\n # two\n  'c#d' #three\n)\npython t.py \"${A[@]}\"", ["b", "c#d"]),
    "the arguments of a function": ('f() { python t.py $1 "$@"; }; f a b', ["a", "a", "b"]),
    "the arguments that a function shifts": (
        'f() { local x=$1; shift; python t.py $x "$@" $1; }; f a b c',
        ["a", "b", "c", "b"],
    ),
    "a shift by more": ('f() { shift 2; python t.py "$@" $2; }; f a b c d', ["c", "d", "d"]),
    "a shift of a function that is called": ('g() { shift; }; f() { g x; python t.py "$@"; }; f a b', ["a", "b"]),
    "the folder": ("cd s; python t.py $PWD/x $SLURM_SUBMIT_DIR/y", ["/pwd/s/x", "/pwd/y"]),
    "the folder by a command": ("D=`pwd`; cd s; python t.py $D/x $(pwd)/y", ["/pwd/x", "/pwd/s/y"]),
    "text that looks like a key": ("python t.py '${foo}' 'a\\${b}' '\\\\'$HOME", ["${foo}", "a\\${b}", "\\\\/home"]),
    "text with a backslash before a variable": ("python t.py 'a\\'\"$HOME\"", ["a\\/home"]),
    "arithmetic": ("N=3; python t.py $((N * 2))", [6]),
    "variables from outside": ('python t.py $MY_DATA/x ${A} "$B"', ["/my_data/x", "/a", "/b"]),
    "eval": ("eval \"python t.py --a 'b c'\"", ["--a", "b c"]),
}


@pytest.mark.parametrize("case", ARGS)
def test_a_program_gets_the_same_arguments(case: str) -> None:
    """What the shell would put in place of a word, the job file puts there."""
    script, expected = ARGS[case]

    assert loads(script) == expected


NOTED: dict[str, tuple[str, str]] = {
    "a number of SLURM": ("python t.py ${SLURM_PROCID:-0}", "${SLURM_PROCID:-0} in args"),
    "a part of a name known later": ("python t.py ${HOME%/*}", "${HOME%/*} in args"),
    "another name": ("python t.py ${SLURM_JOB_NAME#exp-}", "${SLURM_JOB_NAME#exp-} in args"),
    "a replacement": ("python t.py ${SCRATCH/foo/bar}", "${SCRATCH/foo/bar} in args"),
    "a branch": ("if x; then A=1; else A=2; fi; python t.py $A", "$A in args: the script sets it while it runs"),
    "a condition": ("A=1; [ x ] && A=2; python t.py $A", "$A in args"),
    "an alternative": ("grep x y || A=2; python t.py $A", "$A in args"),
    "a default that a branch sets": ("if x; then : ${A:=b}; fi; python t.py $A", "$A in args"),
    "a loop": ("for i in 1 2; do python t.py $i; done", "the training is started there; here it is started once"),
    "its variable": ("for i in 1 2; do python t.py $i; done", "$i in args"),
    "a case": ("case $1 in a) A=1;; *) A=2;; esac; python t.py $A", "$A in args"),
    "what is read": ("read -r A B < f; python t.py $B", "$B in args"),
    "what is read from a list": ("IFS=, read -r A B <<< $L; python t.py $B", "$B in args"),
    "a name of the node's own": ("python t.py $TMPDIR ${HOSTNAME}", "${HOSTNAME} in args: no shell reads args"),
    "a name that a module may set": (
        "module load cuda; python t.py $CUDA_HOME",
        "$CUDA_HOME is taken from the environment of launcher submit",
    ),
    "a pattern": ("python t.py *.txt", "*.txt in args: no shell reads args"),
    "braces": ("python t.py {1..3}", "{1..3} in args"),
    "a number with its base": (
        "python t.py $((10#$SLURM_ARRAY_TASK_ID + 1))",
        "$((10#$SLURM_ARRAY_TASK_ID + 1)) in args",
    ),
    "a shift in a branch": (
        'f() { if x; then shift; fi; python t.py "$@"; }; f a b',
        "$@: a job file takes no arguments",
    ),
    "a shift by what is not known": ("f() { shift $N; python t.py $1; }; f a b", "$1: a job file takes no arguments"),
    "an array job's number without an array": ("python t.py $SLURM_ARRAY_TASK_ID", "$SLURM_ARRAY_TASK_ID in args"),
}


@pytest.mark.parametrize("case", NOTED)
def test_a_word_that_only_a_run_of_the_script_tells_is_noted(case: str) -> None:
    """It stays as it is written, and the job file loads."""
    script, note = NOTED[case]

    assert note in made_of(script)[1]
    loads(script)


PROGRAMS: dict[str, tuple[str, list[str | int]]] = {
    "accelerate launch --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP t.py a": ("t.py", ["a"]),
    "accelerate launch --use_fsdp t.py a": ("t.py", ["a"]),
    "torchrun --signals-to-handle X --log-line-prefix-template X t.py a": ("t.py", ["a"]),
    'deepspeed --launcher_args "--foo" t.py a': ("t.py", ["a"]),
    "torchrun --no-python python t.py a": ("t.py", ["a"]),
    "srun $HOME/venv/bin/python t.py a": ("t.py", ["a"]),
    "conda run -n env --no-capture-output python t.py a": ("t.py", ["a"]),
    "conda run --live-stream -p /e python t.py a": ("t.py", ["a"]),
    "mpirun -np 8 --mca btl self python t.py a": ("t.py", ["a"]),
    "uv run --no-sync torchrun t.py a": ("t.py", ["a"]),
    "uv run -m pkg.t a": ("-m pkg.t", ["a"]),
    "timeout -s TERM 23h python t.py a": ("t.py", ["a"]),
    "env -u FOO BAR=1 python t.py a": ("t.py", ["a"]),
    "singularity exec --mount type=bind,src=/a,dst=/b i.sif python t.py a": ("t.py", ["a"]),
    "$(which python) t.py a": ("t.py", ["a"]),
    "python $(which torchrun) --nproc_per_node 2 t.py a": ("t.py", ["a"]),
    "srun ./t.py a": ("t.py", ["a"]),
    "srun -n1 python p.py; srun -n4 --cpu_bind=none python t.py a; srun -n1 python e.py": ("t.py", ["a"]),
    "srun -W 0 python t.py a : python other.py": ("t.py", ["a"]),
    "if ! srun python t.py a; then echo failed; fi": ("t.py", ["a"]),
    "srun bash -euo pipefail -c 'python t.py a'": ("t.py", ["a"]),
    "srun bash -c 'source e.sh && exec python t.py a'": ("t.py", ["a"]),
}


@pytest.mark.parametrize("line", PROGRAMS)
def test_the_program_is_found_behind_any_options(line: str) -> None:
    """No option of what starts it is taken for the program, nor the program for an option's value."""
    data, notes = made_of(line)

    assert (data["script"], data.get("args")) == PROGRAMS[line]
    assert "starts no Python program" not in notes
    loads(line)


SETTINGS: dict[str, str] = {
    "accelerate launch --dynamo_backend inductor t.py": "accelerate --dynamo-backend inductor",
    "accelerate launch --use_deepspeed t.py": "accelerate --use-deepspeed",
    "accelerate launch --zero_stage=3 t.py": "accelerate --zero-stage 3",
    "accelerate launch --gradient_accumulation_steps 4 t.py": "accelerate --gradient-accumulation-steps 4",
    "accelerate launch --num_processes $N t.py": "accelerate --num-processes $N: set resources.tasks_per_node",
    "torchrun --rdzv_conf join_timeout=1200,timeout=900 t.py": "set distributed.init_timeout_min: 20",
    "torchrun --signals-to-handle SIGUSR1 t.py": "torchrun --signals-to-handle SIGUSR1",
    "torchrun --no-python ./run.sh a": "does not know what this starts",
    "python -m torch.distributed.launch t.py": "it must read LOCAL_RANK",
    "deepspeed --include a:0 t.py": "deepspeed --include a:0",
    "srun --distribution=cyclic python t.py": "srun --distribution=cyclic",
    "srun --nodes=3 python t.py": "srun --nodes=3: the job has 1",
    "srun python a.py : python b.py": "after a lone ':'",
    "python -O t.py": "python -O around the program",
    "timeout 1h python t.py": "timeout around the program",
}


@pytest.mark.parametrize("line", SETTINGS)
def test_a_setting_that_is_not_converted_is_noted(line: str) -> None:
    """What changes the training and has no key is in the notes."""
    assert SETTINGS[line] in made_of(line)[1]
    loads(line)


def test_settings_that_change_no_training_are_not_noted() -> None:
    """The rendezvous, logs and names of torchrun and srun are the launcher's own business."""
    line = (
        "srun --mpi=none -l -u --exact --cpus-per-task=2 torchrun --nnodes=1 --nproc-per-node=2 --rdzv-backend=c10d "
        "--rdzv_endpoint=a:1 --rdzv_id 3 --log-dir l --tee 3 -r 3 --role w --monitor-interval 5 --start-method spawn "
        "--master_addr a --master_port 1 --node_rank 0 t.py"
    )

    assert "Not converted" not in made_of(line)[1]


ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a path with a default": (
        "export P=/opt/lib:${P:-}\npython t.py",
        {"setup": ['export P="/opt/lib:\\${P:-}"']},
    ),
    "braces": (
        "export PATH=${HOME}/bin:$PATH F='${foo}'\nsource ${MODDIR}/env.sh\npython t.py",
        {
            "setup": ['export PATH="\\${HOME}/bin:$PATH"', "source \\${MODDIR}/env.sh"],
            "variables": {"F": "\\${foo}"},
        },
    ),
    "the arguments of a container": (
        "srun --container-image=i --container-mounts=${PWD}:/w python t.py",
        {"container": "i", "container_args": ["--container-mounts=${oc.env:PWD}:/w"]},
    ),
    "dollars in single quotes": (
        "export A='$x `y`'\"$B\"\npython t.py",
        {"setup": ['export A="\\$x \\`y\\`$B"']},
    ),
    "variables of the script in a line": (
        "M=cuda; D=/opt\nmodule load $M\nsource $D/env.sh\nexport A=$(ls $D)\npython t.py",
        {"setup": ["module load cuda", "source /opt/env.sh", 'export A="$(ls /opt)"']},
    ),
    "a path that is built twice": (
        "export P=/a:$P\nexport P=/b:$P\npython t.py",
        {"setup": ['export P="/a:$P"', 'export P="/b:$P"']},
    ),
    "the home folder": ("export A=~/x B=/y:~/z\npython t.py", {"setup": ['export A="$HOME/x"', 'export B="/y:$HOME/z"']}),
    "bash -c": (
        "srun bash -c 'export A=1; module load x; source e.sh; python t.py'",
        {"variables": {"A": "1"}, "setup": ["module load x", "source e.sh"]},
    ),
    "--export of srun": ("srun --export=ALL,K=V,N python t.py", {"variables": {"K": "V"}, "pass": ["N"]}),
    "a condition": ("[ -f x ] && source x\npython t.py", {"setup": ["[ -f x ] && source x"]}),
    "an alternative": (
        "module load a || exit 1\nmodule load b || { echo no; exit 1; }\npython t.py",
        {"setup": ["module load a || exit 1", "module load b || { echo no; exit 1; }"]},
    ),
    "set -a": ("set -a; source .env; set +a\npython t.py", {"setup": ["set -a", "source .env", "set +a"]}),
    "an assignment under set -a": ("set -a; A=1; set +a; B=2\npython t.py", {"variables": {"A": "1"}}),
    "lines of a file": (
        "export $(grep -v '^#' .env | xargs)\npython t.py",
        {"setup": ["export $(grep -v '^#' .env | xargs)"]},
    ),
    "a starter's path": ("srun /env/bin/torchrun t.py", {"python": "/env/bin/python"}),
    "an interpreter's path": ("srun ~/env/bin/python t.py", {"python": "${oc.env:HOME}/env/bin/python"}),
    "an environment's path": ("source $HOME/e/bin/activate\npython t.py", {"python": "${oc.env:HOME}/e/bin/python"}),
    "conda's path": ("conda run -p /e python t.py", {"python": "/e/bin/python"}),
    "a variable that is passed and set": ("export A\nexport A=1\nexport A\npython t.py", {"variables": {"A": "1"}}),
    "a variable that is taken away": ("unset LD_PRELOAD\nenv -u X python t.py", {"setup": ["unset LD_PRELOAD", "unset X"]}),
    "a variable that is exported and set again": ("export A=1; A=2; PATH=/x:$PATH; B=3\npython t.py\nA=4", {
        "variables": {"A": "2"}, "setup": ['export PATH="/x:$PATH"']}),
    "what comes after the training": ("export A=1\npython t.py\nexport A=2 B=3; declare -x C=1\nmodule load x", {"variables": {"A": "1"}}),
    "a subshell": ("(export A=1; make)\n(export B=1; python t.py)", {"variables": {"B": "1"}}),
    "an absolute file": ("cd s\nsource /e.sh\n. $B/f.sh\nmodule load x\npython t.py", {
        "setup": ["source /e.sh", ". $B/f.sh", "module load x"]}),
    "a file beside the script": ("cd s\nsource e.sh\nsource venv/bin/activate\npython t.py", {
        "setup": ["source s/e.sh"], "python": "s/venv/bin/python"}),
}  # fmt: skip


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_workers_get_the_same_environment(case: str) -> None:
    """Exports, modules and interpreters come to the job file as the training command sees them."""
    script, environment = ENVIRONMENTS[case]

    assert made_of(script)[0].get("environment") == environment
    loads(script)


LEFT: dict[str, tuple[str, str]] = {
    "an export in a branch": ("if x; then export A=1; fi; python t.py", "(in a branch): export A"),
    "an export after a condition": ("[ x ] && export A=1; python t.py", "(under a condition): export A"),
    "a cd in a branch": ("if x; then cd y; fi; python t.py", "(in a branch): cd y: set code.dir"),
    "a module in a branch": ("if x; then module load y; fi; python t.py", "(in a branch): module load y"),
    "what depends on a branch": ("if x; then A=1; fi; export B=$A; python t.py", "export B=$A"),
    "another start in a branch": (
        "if x; then srun python a.py; else srun python b.py; fi",
        "(in a branch): another start of a program, b.py; only one start is here.",
    ),
    "a command after the training": ("python t.py; cp a b", "cp a b: it comes after the training"),
    "a function that nothing calls": ("f() { cp a b; }; python t.py", "the function f is not called"),
    "a program that a loop names": ("for i in 1 2; do L=a; srun bash -c '$L $i'; done", "launcher init does not know what this starts"),
    "a script in another file": ("srun bash run.sh; python -c 1", "launcher init does not know what this starts"),
    "a name of the launcher's": ("export LAUNCHER_ARGS=a; python t.py", "LAUNCHER_ARGS: SLURM or the launcher sets"),
    "a name of SLURM's": ("export SBATCH_A=a TORCHELASTIC_B=b; python t.py", "TORCHELASTIC_B: SLURM or the launcher sets"),
    "a file below a folder that is not known": ("cd $TMPDIR; source e.sh; python t.py", "source e.sh"),
    "a condition on a file elsewhere": ("cd s; [ -f e.sh ] && source e.sh; python t.py", "source e.sh"),
    "a path that is not exported": ("PYTHONPATH=/x:$PYTHONPATH; python t.py", "it counts where it is exported before"),
    "a function for other shells": ("f() { :; }; export -f f; f; python t.py", "export -f f"),
    "an environment in a branch": ("[ x ] && source e/bin/activate; python t.py", "set environment.python"),
    "the script's own folder": ('export PYTHONPATH="$(dirname $0)/..:$PYTHONPATH"; python t.py', "export PYTHONPATH"),
    "the script's own folder in bash's words": ('source "${BASH_SOURCE%/*}/e.sh"; python t.py', "BASH_SOURCE"),
    "a number of each rank": ("srun bash -c 'export A=$SLURM_PROCID; python t.py'", "export A=$SLURM_PROCID"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_what_is_not_certain_is_left(case: str) -> None:
    """It is in the notes and in no key."""
    script, note = LEFT[case]
    data, notes = made_of(script)

    assert note in notes
    assert "environment" not in data
    loads(script)


def test_what_only_shows_something_is_dropped() -> None:
    """Neither a line of setup nor a note is made of it."""
    script = (
        "conda deactivate; conda info; conda list; env; nvidia-smi; srun hostname; python --version; command -v x; pwd"
    )

    assert made_of(f"{script}\npython t.py")[0] == {"script": "t.py", "resources": {"nodes": 1}}
    assert "Not converted" not in made_of(f"{script}\npython t.py")[1]


@pytest.mark.parametrize("script", ["bash run.sh", "f() { cp a b; python t.py; }; f", "python t.py; cp a b"])
def test_environment_setup_is_advised_for_preparations_alone(script: str) -> None:
    """Neither a start of something unknown, nor a function's command, nor what follows the training belongs there."""
    assert "environment.setup" not in made_of(script)[1]


FOLDERS: dict[str, tuple[str, str | None, str]] = {
    "cd a; cd b; python t.py": ("t.py", "a/b", ""),
    "cd a && python t.py; cd ..": ("t.py", "a", ""),
    "cd $SLURM_SUBMIT_DIR/a; python t.py": ("t.py", "a", ""),
    "cd a; cd $SLURM_SUBMIT_DIR; python t.py": ("t.py", None, ""),
    "cd a; python $PWD/t.py": ("t.py", "a", ""),
    "cd ~/a; python t.py": ("t.py", "${oc.env:HOME}/a", ""),
    "(cd a && make); python t.py": ("t.py", None, ""),
    "(cd a && python t.py)": ("t.py", "a", ""),
    "cd /a; python /a/b/t.py": ("b/t.py", "/a", ""),
    "cd /a; python /b/t.py": ("t.py", "/b", "the program ran in /a"),
    "python ../t.py": ("t.py", "..", "the program ran in the directory of the submission"),
    "cd $(dirname $0); python t.py": ("t.py", None, "cd $(dirname $0): set code.dir"),
    "srun --chdir=a python t.py": ("t.py", "a", ""),
    "srun bash -c 'cd a; python t.py'; cd b": ("t.py", "a", ""),
}


@pytest.mark.parametrize("script", FOLDERS)
def test_the_code_is_where_the_program_ran(script: str) -> None:
    """Every cd before the start counts, none behind it; the script's path is relative to the folder."""
    name, folder, note = FOLDERS[script]
    data, notes = made_of(script)

    assert (data["script"], data.get("code", {}).get("dir")) == (name, folder)
    assert note in notes
    loads(script)


@pytest.mark.parametrize(
    ("array", "same"), [("0-3", True), ("5-8", False), ("0-8:2", False), ("3", False), ("0,2", False)]
)
def test_other_numbers_of_an_array_are_noted(array: str, same: bool) -> None:
    """The elements are numbered from 0 here: other numbers come as a parameter, and never as a line of setup."""
    line = "export N=$SLURM_ARRAY_TASK_ID\npython t.py ${SLURM_ARRAY_TASK_ID:-0}"
    data, notes = made_of(line, f"--array={array}")

    assert data["args"] == ["${params.array_task_id}"]
    assert ("counts the elements from 0" not in notes) == same
    assert ("environment" in data) == same
    loads(line, f"--array={array}")


DIRECTIVES = st.lists(
    st.sampled_from(["-N 2", "-N 0", "--nodes=4-2", "-n 8", "--gres=gpu:a:4", "--gres=x:1", "--gpus=3", "--gpus-per-node=v:0", "--mem=0",
                     "--mem-per-gpu=1", "-t 5", "--time=0", "--signal=USR1@400", "--array=1-5", "--array=a", "-C 'a b'", "-w a[1-3]",
                     "-x b", "-w a,b", "-A 'a b'", "--export=ALL,A=b,T", "--job-name='é é'", "-p ''", "--chdir='${x}'", "--qos=${a}",
                     "--time=01:00:00"]),
    min_size=1, max_size=4,
).map(" ".join)  # fmt: skip
PARTS = st.lists(
    st.sampled_from(["A=", "$A", "${A", "}", "$(", ")", "((", '"', "'", "`", "\n", " ", "export ", "python t.py ", "bash -c ", "<<E", "E",
                     "for i in ", "; do ", "; done", "srun ", "|", ";", "A=(", "x",
                     "if x; then ", "; fi", " && ", " || ", "cd ", "~/", "${HOME}", "${A:-b}",
                     "source ", "module load ", "export A=", "*", "[[ ", " ]]", "{ ", "; }", "f() {", "case $A in a) ", ";; esac", "set -a\n",
                     "--export=ALL,A=b ", "--container-image=", "$SLURM_ARRAY_TASK_ID", "TOKEN=abcdef12345", "$TOKEN", "--token ", "???",
                     "${run.dir}", "torchrun --nproc-per-node ", "unset A\n", "eval ", "$1", "\x01", "é", "/bin/activate", "wandb login "]),
    max_size=40,
).map("".join)  # fmt: skip


@examples(300)
@given(directives=DIRECTIVES, script=PARTS)
def test_any_script_becomes_a_job_file_that_loads(directives: str, script: str) -> None:
    """Whatever it holds, nothing of it is in a place or a form that no job file may have."""
    loads(f"{script}\npython t.py $A", directives)


REQUESTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "--gres=gpu:a100:2,tmpdisk:100": ("srun -n 2 python t.py", {"gpus_per_node": 2}, {"gres": "gpu:a100:2,tmpdisk:100"}),
    "--gres=tmpdisk:100": ("python t.py", {}, {"gres": "tmpdisk:100"}),
    "--gres=tmpdisk:100 --gpus-per-node=1": ("python t.py", {"gpus_per_node": 1}, {"gres": "gpu:1,tmpdisk:100"}),
    "--gres=gpu:3090:2": ("srun -n 2 python t.py", {"gpus_per_node": 2}, {"gres": "gpu:3090:2"}),
    "--gres=gpu:tesla:v100:2": ("srun -n 2 python t.py", {"gpus_per_node": 2}, {"gres": "gpu:tesla:v100:2"}),
    "-n 16 --gres=gpu:1": ("python t.py", {"gpus_per_node": 1, "cpus_per_task": 16}, {}),
    "--ntasks-per-node=32": ("python t.py", {"cpus_per_task": 32}, {}),
    "--tasks-per-node=4 --part=x": ("srun python t.py", {"tasks_per_node": 4}, {"partition": "x"}),
    "--constraint='a100 & nvlink'": ("python t.py", {}, {"constraint": "a100&nvlink"}),
    "--comment='${foo}'": ("python t.py", {}, {"comment": "\\${foo}"}),
    "--nodes=1 --time=5": ("srun --cpus-per-task=4 --mem=8G --gpus=1 python t.py", {
        "gpus_per_node": 1, "cpus_per_task": 4, "mem_gb": 8, "timeout_min": 5}, {}),
    "--mem=100000": ("python t.py", {"mem_gb": 97.65}, {}),
    "--mail-type=begin\n#SBATCH --mail-type=END,FAIL": ("python t.py", {}, {"mail_type": "BEGIN,END,FAIL"}),
    "--nodes=1 --time=0:30:00": ("python t.py", {"timeout_min": "0:30:00"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("directives", REQUESTS)
def test_requests_are_kept(directives: str) -> None:
    """GPUs beside other resources, tasks that are no workers, short names of options, and what srun asks for.

    No more memory than was asked for: it may be all that a node has. Mails of several directives add up, as in sbatch.
    """
    script, resources, slurm = REQUESTS[directives]
    data, _ = made_of(script, directives)

    assert data["resources"] == {"nodes": 1, **resources}
    assert data.get("slurm", {}) == slurm
    loads(script, directives)


@pytest.mark.parametrize(
    "directive",
    [
        "--gpus-per-socket=1",
        "--clusters=a",
        "-m block:cyclic",
        "--time=1 --signal=USR1@90",
        "--mem=half",
        "--export=NONE",
        "--gpu-bind=map_gpu:3,2,1,0",
    ],
)
def test_a_directive_without_a_key_is_noted(directive: str) -> None:
    """The job file loads without it."""
    assert "Not converted" in made_of("python t.py", directive)[1]
    loads("python t.py", directive)


@pytest.mark.parametrize("limit", ["14-00:00:00", "20160", "20160:00"])
def test_a_time_limit_above_the_total_sets_the_total(limit: str) -> None:
    """The limit of all attempts would end the run in the middle of its first one."""
    assert made_of("python t.py", f"--time={limit}")[0]["restart"] == {"max_total_hours": 336}
    loads("python t.py", f"--time={limit}")
    assert "max_total_hours: 336" in convert("{nodes: 2, tasks_per_node: 1, timeout_min: 20160}", "x.yaml")


def test_variables_of_a_directive_reach_the_workers() -> None:
    """``--export=ALL,NAME,NAME=value`` has keys: environment.pass and environment.variables."""
    data, notes = made_of("python t.py", "--export=ALL,A=b,N")

    assert data["environment"] == {"variables": {"A": "b"}, "pass": ["N"]}
    assert "--export" not in notes


def test_a_container_of_a_directive_is_the_jobs() -> None:
    """pyxis would run the launcher's batch script in it, where nobody has SLURM's commands; one that srun names holds."""
    directives = "--container-image=/img/a.sqsh\n#SBATCH --container-mounts=/data:/data --container-writable"
    data, _ = made_of("python t.py", directives)

    args = ["--container-mounts=/data:/data", "--container-writable"]
    assert (data["environment"], "slurm" in data) == ({"container": "/img/a.sqsh", "container_args": args}, False)
    data, notes = made_of("srun --container-image=/img/b.sqsh python t.py", directives)
    assert (data["environment"], "slurm" in data) == ({"container": "/img/b.sqsh"}, False)
    assert "--container-image=/img/a.sqsh: the training has a container of its own." in notes
    loads("python t.py", directives)


def test_the_first_component_of_a_heterogeneous_job_counts() -> None:
    """Another component's directives change nothing, and a note says that they are there."""
    data, notes = made_of("srun python t.py", "-N 1 -p a\n#SBATCH hetjob\n#SBATCH -N 2 -p b")

    assert (data["resources"], data["slurm"]) == ({"nodes": 1}, {"partition": "a"})
    assert "only the first component" in notes


SECRETS: dict[str, str] = {
    "an argument": "TOKEN=hunter2secret\npython t.py --token $TOKEN --x hunter2secret",
    "an argument as it is": "python t.py --api-key=hunter2secret",
    "an export": "export WANDB_API_KEY=hunter2secret\npython t.py --note hunter2secret",
    "a login": "wandb login hunter2secret\npython t.py",
    "a login by option": "huggingface-cli login --token hunter2secret\npython t.py",
    "a command": "curl --password hunter2secret x\npython t.py",
    "a line of setup": "TOKEN=hunter2secret\nsource e.sh $TOKEN\npython t.py",
    "srun": "srun --export=ALL,WANDB_API_KEY=hunter2secret python t.py",
}


@pytest.mark.parametrize("case", SECRETS)
def test_a_secret_of_a_script_is_nowhere_in_the_job_file(case: str) -> None:
    """Neither in a key nor in a comment."""
    assert "hunter2" not in convert(f"#SBATCH --nodes=1\n{SECRETS[case]}\n", "x.sbatch")
    loads(SECRETS[case])


def test_a_short_secret_takes_no_other_word_away() -> None:
    """A password of four letters may be a part of ordinary words."""
    assert made_of("export DB_PASSWORD=test PIN_TOKEN=12345678\npython test.py --a test --b 12345678")[0] == {
        "script": "test.py", "args": ["--a", "--b"], "resources": {"nodes": 1},
        "environment": {"pass": ["DB_PASSWORD", "PIN_TOKEN"]}}  # fmt: skip


def test_a_secret_of_a_directive_is_nowhere_in_the_job_file() -> None:
    """``--export`` with a value gives the name alone."""
    made = convert("#SBATCH --export=ALL,WANDB_API_KEY=hunter2secret\npython t.py\n", "x.sbatch")

    assert "hunter2" not in made
    assert read_yaml(made, "x").data["environment"] == {"pass": ["WANDB_API_KEY"]}


def test_submitit_amounts_and_options_are_kept() -> None:
    """Amounts for each GPU become those of a worker, and options with a key of their own are under it."""
    text = """{nodes: 2, tasks_per_node: 4, gpus_per_task: 1, cpus_per_gpu: 6, array_parallelism: 3, mem_per_gpu: 2G,
      additional_parameters: {mem: 64G, time: 1-0, account: a, clusters: b, output: c, exclusive: true, licenses: 'a:1'}}"""
    made = convert(text, "x.yaml")
    data = read_yaml(made, "x").data
    Path("job.yaml").write_text(made)

    assert data["resources"] == {
        "nodes": 2, "gpus_per_node": 4, "cpus_per_task": 6, "mem_gb": 64, "timeout_min": "1-0"}  # fmt: skip
    assert data["slurm"] == {"account": "a", "exclusive": True, "extra": {"licenses": "a:1"}}
    for name in ("array_parallelism", "clusters", "output", "mem_per_gpu"):
        assert f"# - {name}" in made or f"# - additional_parameters {name}" in made
    load_job("job.yaml", sites=[], check_code=False)
