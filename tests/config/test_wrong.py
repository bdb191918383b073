"""Wrong jobs: every fault of every one is said in one line with its place, under the exit code of its class."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest

from launcher.cli.main import main
from launcher.config.load.load import load_job
from launcher.errors import CodeError, ConfigError

TASKS = """
from dataclasses import dataclass, field

import launcher


class Base(launcher.Training):
    def model(self): ...

    def train_data(self): ...

    loss = optimizer = None


class Net(Base):
    def __init__(self, lr, depth=2, *, width: int = 8):
        self.lr = lr


class Child(Net):
    pass


class Free(Base):
    def __init__(self, **options):
        pass


@dataclass
class Small(Base):
    lr: float
    depth: int = 2
    hidden: int = field(init=False)


class Half(launcher.Training):
    def model(self): ...

    def data(self): ...

    def loss(self, model, batch): ...


class Other(Half):
    def optimizer(self, model): ...


class Plain:
    pass


class Model(nn.Module):
    pass


def loop(worker, lr, depth=2):
    pass


def nothing():
    pass


async def later(worker):
    pass
"""


@dataclass(frozen=True)
class Row:
    """A job, what is changed on the command line, and what must be said."""

    text: str
    said: list[str]
    overrides: tuple[str, ...] = ()
    error: type[ConfigError] = ConfigError
    extra: dict[str, str] = field(default_factory=dict)


ROWS: dict[str, Row] = {
    # --- what YAML itself cannot read
    "not YAML": Row(
        "script: train.py\nresources: {nodes: 2\n",
        ["job.yaml:3:1: this is not valid YAML: expected ',' or '}', but got '<stream end>'"],
    ),
    "tab": Row(
        "script: train.py\nresources:\n\tnodes: 2\n",
        ["job.yaml:3:1: this is not valid YAML: tabs cannot indent; use spaces"],
    ),
    "colon in a value": Row(
        "script: train.py\nname: a: b\n",
        [
            'job.yaml:2:8: this is not valid YAML: a ":" is not allowed here; check the indentation, or put quotes around the value'
        ],
    ),
    "duplicate key": Row(
        "script: train.py\nresources: {nodes: 2, nodes: 3}\n",
        ["job.yaml:2:23: resources.nodes: this key is set twice, first on line 2; remove one"],
    ),
    "duplicate section": Row(
        "script: train.py\nslurm: {qos: a}\nslurm: {qos: b}\n",
        ["job.yaml:3:1: slurm: this key is set twice, first on line 2; remove one"],
    ),
    "a list": Row("- script: train.py\n", ["job.yaml:1:1: the file must be a mapping of keys to values, not a list"]),
    "a word": Row("train.py\n", ['job.yaml:1:1: the file must be a mapping of keys to values, not "train.py"']),
    "a control character": Row(
        "script: train.py\nname: a\x07b\n", ["job.yaml:2:8: the character U+0007 is not allowed in YAML"]
    ),
    "a Python object": Row(
        "script: train.py\nparams: {x: !!python/object/apply:os.system [ls]}\n",
        ["job.yaml:2:13: params.x: the tag !!python/object/apply:os.system is not allowed"],
    ),
    "an alias to itself": Row(
        "script: train.py\nparams: &a {x: *a}\n",
        ["job.yaml:2:9: params.x: this value contains itself or is nested too deeply"],
    ),
    "a number as a key": Row(
        "script: train.py\nparams: {1: a}\n", ['job.yaml:2:10: params.1: a key must be text; put quotes around it: "1"']
    ),
    "two documents": Row(
        "script: train.py\n---\nscript: train.py\n",
        ["job.yaml:2:1: this is not valid YAML: but found another document"],
    ),
    "an alias of nothing": Row(
        "script: train.py\nparams: {x: *gone}\n",
        ["job.yaml:2:13: this is not valid YAML: found undefined alias 'gone'"],
    ),
    "a list as a key": Row(
        "script: train.py\nparams: {? [a]: b}\n",
        ["job.yaml:2:12: params: a key must be a word, not a list or mapping"],
    ),
    "empty": Row("", ["job.yaml:1:1: the job does not say what to run; set task, function or script"]),
    # --- what YAML reads otherwise than it looks
    "clock time without quotes": Row(
        "script: train.py\nresources: {timeout_min: 12:30:00}\n",
        [
            'job.yaml:2:26: resources.timeout_min: put quotes around "12:30:00"; without quotes some YAML readers'
            " take it for the number 45000"
        ],
    ),
    "leading zero": Row(
        "script: train.py\nslurm: {account: 0123}\n",
        [
            'job.yaml:2:18: slurm.account: put quotes around "0123", or remove the leading zero; without quotes '
            "some YAML readers take it for another number"
        ],
    ),
    "yes": Row(
        "script: train.py\nslurm: {exclusive: yes}\n",
        [
            'job.yaml:2:20: slurm.exclusive: some YAML readers take yes for text, others for true; write true, or "yes" in quotes'
        ],
    ),
    # --- keys
    "unknown key": Row(
        "script: train.py\nresources: {node: 2}\n",
        ['job.yaml:2:13: resources.node: unknown key "node"; did you mean "nodes"?'],
    ),
    "unknown section": Row(
        "script: train.py\nressources: {nodes: 2}\n",
        ['job.yaml:2:1: ressources: unknown key "ressources"; did you mean "resources"?'],
    ),
    "a key of a section at the top": Row(
        "script: train.py\nnodes: 2\n", ['job.yaml:2:1: nodes: unknown key "nodes"; did you mean "resources.nodes"?']
    ),
    "a key in another section": Row(
        "script: train.py\nresources: {partition: gpu}\n",
        ['job.yaml:2:13: resources.partition: unknown key "partition"; did you mean "slurm.partition"?'],
    ),
    "an override without its section": Row(
        "script: train.py\n",
        ['command line: nodes: unknown key "nodes"; did you mean "resources.nodes"?'],
        ("nodes=2",),
    ),
    "unknown key, nothing near": Row(
        "script: train.py\ncode: {zzz: 1}\n",
        ['job.yaml:2:8: code.zzz: unknown key "zzz"; allowed here: dir, link, snapshot, max_mb'],
    ),
    "a key two floors down": Row(
        "script: train.py\ndistributed:\n  ddp: {bucket_cap: 25}\n",
        ['job.yaml:3:9: distributed.ddp.bucket_cap: unknown key "bucket_cap"; did you mean "bucket_cap_mb"?'],
    ),
    "run is no key": Row(
        "script: train.py\nrun: {dir: x}\n",
        [
            'job.yaml:2:1: run: unknown key "run"; allowed here: name, task, function, script, args, params, seed, '
            "deterministic, code, resources, slurm, distributed, environment, checkpoint, restart, sweep, trackers, notify, "
            "after, preflight, runs_dir, share"
        ],
    ),
    # --- types and ranges
    "text for a number": Row(
        "script: train.py\nresources: {nodes: two}\n",
        ['job.yaml:2:20: resources.nodes: must be a whole number or a range such as 2-4, not "two"'],
    ),
    "a fraction": Row(
        "script: train.py\nresources: {cpus_per_task: 1.5}\n",
        ["job.yaml:2:28: resources.cpus_per_task: must be a whole number, not 1.5"],
    ),
    "true for a number": Row(
        "script: train.py\nresources: {nodes: true}\n",
        ["job.yaml:2:20: resources.nodes: must be a whole number or a range such as 2-4, not true"],
    ),
    "a number for text": Row(
        "script: train.py\nslurm: {account: 7}\n",
        ['job.yaml:2:18: slurm.account: must be text, not 7; put quotes around it: "7"'],
    ),
    "a section that is a value": Row(
        "script: train.py\nslurm: gpu\n", ['job.yaml:2:8: slurm: must be a mapping of keys to values, not "gpu"']
    ),
    "a word for a list": Row(
        "script: train.py\nargs: --fast\n", ['job.yaml:2:7: args: must be a list, such as [a, b], not "--fast"']
    ),
    "a list in args": Row(
        "script: train.py\nargs: [a, [b]]\n",
        ["job.yaml:2:11: args[1]: must be text, a number or true or false, not a list"],
    ),
    "null": Row(
        "script: train.py\nresources: {nodes: }\n",
        ["job.yaml:2:19: resources.nodes: has no value; set a whole number or a range such as 2-4, or remove this key"],
    ),
    "a number in quotes": Row(
        "script: train.py\nresources: {nodes: '2'}\n",
        ['job.yaml:2:20: resources.nodes: must be a whole number, not "2"; remove the quotes'],
    ),
    "true in quotes": Row(
        "script: train.py\nslurm: {exclusive: 'true'}\n",
        ['job.yaml:2:20: slurm.exclusive: must be true or false, not "true"; remove the quotes'],
    ),
    "no memory": Row(
        "script: train.py\nresources: {mem_gb: 0}\n", ["job.yaml:2:21: resources.mem_gb: must be more than 0, not 0"]
    ),
    "memory with its unit": Row(
        "script: train.py\nresources: {mem_gb: 4GB}\n",
        ['job.yaml:2:21: resources.mem_gb: must be a number, not "4GB"'],
    ),
    "GPUs with their kind": Row(
        "script: train.py\nresources: {gpus_per_node: 'a100:4'}\n",
        ['job.yaml:2:28: resources.gpus_per_node: must be a whole number, not "a100:4"'],
    ),
    "negative time": Row(
        "script: train.py\nresources: {timeout_min: -5}\n",
        ["job.yaml:2:26: resources.timeout_min: must be at least 1, not -5"],
    ),
    "an impossible clock time": Row(
        "script: train.py\nresources: {timeout_min: '99:99:99'}\n",
        [
            'job.yaml:2:26: resources.timeout_min: "99:99:99" is not a valid time; write minutes, or a quoted '
            'clock time such as "24:00:00" or "1-12:00:00"'
        ],
    ),
    "no tasks": Row(
        "script: train.py\nresources: {tasks_per_node: 0}\n",
        ["job.yaml:2:29: resources.tasks_per_node: must be at least 1, not 0"],
    ),
    "fewer than no spares": Row(
        "script: train.py\nresources: {spare_nodes: -1}\n",
        ["job.yaml:2:26: resources.spare_nodes: must be at least 0, not -1"],
    ),
    "an empty section": Row(
        "script: train.py\nresources:\n",
        ["job.yaml:2:11: resources: has no value; set a mapping of keys to values, or remove this key"],
    ),
    "shared with everyone": Row(
        "script: train.py\nshare: everyone\n", ['job.yaml:2:8: share: must be none or group, not "everyone"']
    ),
    "no time for collectives": Row(
        "script: train.py\ndistributed: {collective_timeout_min: 0}\n",
        ["job.yaml:2:39: distributed.collective_timeout_min: must be more than 0, not 0"],
    ),
    "one port": Row(
        "script: train.py\ndistributed: {port_range: [20000]}\n",
        [
            "job.yaml:2:27: distributed.port_range: must be the first and the last of at least 32 ports, "
            "such as [20000, 32000], not [20000]"
        ],
    ),
    "a port beyond all": Row(
        "script: train.py\ndistributed: {port_range: [20000, 70000]}\n",
        ["job.yaml:2:35: distributed.port_range[1]: must be at most 65535, not 70000"],
    ),
    "a list as a script": Row("script: [train.py]\n", ["job.yaml:1:9: script: must be text, not a list"]),
    "a list of variables": Row(
        "script: train.py\nenvironment: {variables: [A]}\n",
        ["job.yaml:2:26: environment.variables: must be a mapping of keys to values, not a list"],
    ),
    "one line of setup": Row(
        "script: train.py\nenvironment: {setup: module load cuda}\n",
        ['job.yaml:2:22: environment.setup: must be a list, such as [a, b], not "module load cuda"'],
    ),
    "a tracker that is true": Row(
        "script: train.py\ntrackers: {mlflow: true}\n",
        ["job.yaml:2:20: trackers.mlflow: must be a mapping of keys to values, not true"],
    ),
    "a slip in after": Row(
        "script: train.py\nafter: {okay: [x]}\n",
        ['job.yaml:2:9: after.okay: unknown key "okay"; did you mean "ok"?'],
    ),
    "passed and given": Row(
        "script: train.py\nenvironment: {pass: [A], variables: {A: x}}\n",
        ["job.yaml:2:22: environment.pass[0]: A is also set under environment.variables; keep one of the two"],
    ),
    "a watch outside the run": Row(
        "script: train.py\ncheckpoint: {watch: ../x}\n",
        ["job.yaml:2:21: checkpoint.watch: must be a pattern below the run directory, such as out/*.pt"],
    ),
    "brackets that do not match": Row(
        "script: train.py\nslurm: {exclude: 'gpu[01'}\n",
        ["job.yaml:2:18: slurm.exclude: is not a host list; write it like gpu[01-04],gpu09"],
    ),
    "a host of a range wanted and excluded": Row(
        "script: train.py\nresources: {nodes: 2}\nslurm: {nodelist: 'gpu[01-02]', exclude: gpu01}\n",
        ["job.yaml:3:42: slurm.exclude: gpu01 is in both nodelist and exclude; remove it from one"],
    ),
    "another number of GPUs of a type of digits": Row(
        "script: train.py\nresources: {gpus_per_node: 4}\nslurm: {gres: 'gpu:3090:2'}\n",
        [
            "job.yaml:3:15: slurm.gres: the number of GPUs per node is 2 here and 4 in resources.gpus_per_node; make them equal"
        ],
    ),
    "a range of nodes that is upside down": Row(
        "script: train.py\nresources: {nodes: 4-2}\n",
        [
            'job.yaml:2:20: resources.nodes: "4-2" is not a range of node counts: write the smaller one first, at least 1, such as 2-4'
        ],
    ),
    "a range of no nodes": Row(
        "script: train.py\nresources: {nodes: 0-2}\n",
        [
            'job.yaml:2:20: resources.nodes: "0-2" is not a range of node counts: write the smaller one first, at least 1, such as 2-4'
        ],
    ),
    "a list of node counts": Row(
        "script: train.py\nresources: {nodes: '2,4'}\n",
        ['job.yaml:2:20: resources.nodes: must be a whole number or a range such as 2-4, not "2,4"'],
    ),
    "node counts in a list": Row(
        "script: train.py\nresources: {nodes: [2, 4]}\n",
        ["job.yaml:2:20: resources.nodes: must be a whole number or a range such as 2-4, not a list"],
    ),
    "no nodes": Row(
        "script: train.py\nresources: {nodes: 0}\n", ["job.yaml:2:20: resources.nodes: must be at least 1, not 0"]
    ),
    "no time": Row(
        "script: train.py\nresources: {timeout_min: 0}\n",
        ["job.yaml:2:26: resources.timeout_min: must be at least 1, not 0"],
    ),
    "too many": Row(
        "script: train.py\nresources: {nodes: 99999999999}\n",
        ["job.yaml:2:20: resources.nodes: must be at most 2147483647, not 99999999999"],
    ),
    "a slip of the finger": Row(
        "script: train.py\nresources: {nodes: 200000000}\n",
        ["job.yaml:2:1: resources: 200,000,000 ranks and 0 spare nodes are more than any cluster has"],
    ),
    "infinite memory": Row(
        "script: train.py\nresources: {mem_gb: .inf}\n",
        ["job.yaml:2:21: resources.mem_gb: must be a finite number, not inf"],
    ),
    "one checkpoint": Row(
        "script: train.py\ncheckpoint: {keep_last: 1}\n",
        ["job.yaml:2:25: checkpoint.keep_last: must be at least 2, not 1"],
    ),
    "an unknown backend": Row(
        "script: train.py\ndistributed: {backend: nncl}\n",
        ['job.yaml:2:24: distributed.backend: must be auto, nccl or gloo, not "nncl"; did you mean "nccl"?'],
    ),
    "an odd clock time": Row(
        'script: train.py\nresources: {timeout_min: "1 day"}\n',
        [
            'job.yaml:2:26: resources.timeout_min: "1 day" is not a valid time; write minutes, or a quoted clock '
            'time such as "24:00:00" or "1-12:00:00"'
        ],
    ),
    "an ambiguous clock time": Row(
        'script: train.py\nresources: {timeout_min: "12:30"}\n',
        [
            'job.yaml:2:26: resources.timeout_min: "12:30" is ambiguous: hours and minutes, or minutes and '
            'seconds as SLURM reads it; write "12:30:00" for the first or "0:12:30" for the second'
        ],
    ),
    # --- contradictions
    "two kinds of work": Row(
        "script: train.py\ntask: tasks:Net\n",
        ["job.yaml:1:1: script: set only one of task, function and script, not task and script"],
    ),
    "nccl without GPUs": Row(
        "script: train.py\ndistributed: {backend: nccl}\n",
        ["job.yaml:2:24: distributed.backend: nccl needs GPUs, but resources.gpus_per_node is 0; set auto or gloo"],
    ),
    "more workers than GPUs": Row(
        "script: train.py\nresources: {gpus_per_node: 2, tasks_per_node: 4}\n",
        [
            "job.yaml:2:47: resources.tasks_per_node: 4 workers cannot share 2 GPUs: NCCL takes one rank per GPU;"
            " request 4 GPUs, or remove this key"
        ],
    ),
    "gres and gpus differ": Row(
        'script: train.py\nresources: {gpus_per_node: 2}\nslurm: {gres: "gpu:a100:4"}\n',
        [
            "job.yaml:3:15: slurm.gres: the number of GPUs per node is 4 here and 2 in resources.gpus_per_node; make them equal"
        ],
    ),
    "ports the wrong way round": Row(
        "script: train.py\ndistributed: {port_range: [30000, 20000]}\n",
        [
            "job.yaml:2:27: distributed.port_range: must be the first and the last of at least 32 ports, "
            "such as [20000, 32000], not [30000, 20000]"
        ],
    ),
    "a privileged port": Row(
        "script: train.py\ndistributed: {port_range: [80, 20000]}\n",
        ["job.yaml:2:28: distributed.port_range[0]: must be at least 1024, not 80"],
    ),
    "more hosts than nodes": Row(
        'script: train.py\nresources: {nodes: 2, spare_nodes: 1}\nslurm: {nodelist: "gpu[01-04]"}\n',
        ["job.yaml:3:19: slurm.nodelist: names 4 hosts, but resources.nodes and spare_nodes request 3"],
    ),
    "a next attempt of a sweep, queued early": Row(
        "script: train.py\nrestart: {queue_early: true}\nsweep: {seed: [1, 2]}\n",
        [
            "job.yaml:2:24: restart.queue_early: a sweep is one array job: there is no next attempt to queue; remove this key"
        ],
    ),
    "a next attempt that is not wanted, queued early": Row(
        "script: train.py\nrestart: {queue_early: true, requeue: false}\n",
        [
            "job.yaml:2:24: restart.queue_early: restart.requeue is off: there is no next attempt to queue; remove this key"
        ],
    ),
    "a replacement that the run cannot wait for": Row(
        "script: train.py\nresources: {nodes: 2, replace: true}\n",
        [
            "job.yaml:2:32: resources.replace: needs nodes that the run can do without: set resources.spare_nodes, or a range such as"
            " resources.nodes: 2-4"
        ],
    ),
    "a replacement for a named host": Row(
        'script: train.py\nresources: {nodes: 2-3, replace: true}\nslurm: {nodelist: "gpu[01-03]"}\n',
        ["job.yaml:2:34: resources.replace: another host cannot replace one of slurm.nodelist; remove one of the two"],
    ),
    "wanted and excluded": Row(
        'script: train.py\nslurm: {nodelist: "gpu01", exclude: "gpu01,gpu02"}\n',
        ["job.yaml:2:37: slurm.exclude: gpu01 is in both nodelist and exclude; remove it from one"],
    ),
    "waiting longer than running": Row(
        "script: train.py\nresources: {timeout_min: 10}\ndistributed: {init_timeout_min: 10}\n",
        ["job.yaml:3:33: distributed.init_timeout_min: must be less than resources.timeout_min (10), not 10"],
    ),
    "a signal before the start": Row(
        "script: train.py\nresources: {timeout_min: 1}\nrestart: {signal_lead_s: 90}\n",
        ["job.yaml:3:26: restart.signal_lead_s: must be less than resources.timeout_min (60 s), not 90"],
    ),
    "all attempts shorter than one": Row(
        'script: train.py\nresources: {timeout_min: "24:00:00"}\nrestart: {max_total_hours: 12}\n',
        [
            "job.yaml:3:28: restart.max_total_hours: 12 h for all attempts is less than the limit of one "
            "(resources.timeout_min: 1440)"
        ],
    ),
    "an attempt longer than all may take": Row(
        'script: train.py\nresources: {timeout_min: "14-00:00:00"}\n',
        [
            "job.yaml:2:26: resources.timeout_min: is more than restart.max_total_hours, the limit of all attempts (168 h); "
            "set that key, too"
        ],
    ),
    "bounds the wrong way round": Row(
        "script: train.py\ncheckpoint: {min_interval_min: 40}\n",
        ["job.yaml:2:32: checkpoint.min_interval_min: min_interval_min (40) must not exceed max_interval_min (30)"],
    ),
    "keeping what is not saved": Row(
        "script: train.py\ncheckpoint: {interval_steps: 300, keep_every_steps: 1000}\n",
        [
            "job.yaml:2:53: checkpoint.keep_every_steps: must be a multiple of interval_steps (300), not 1000: no other step is saved"
        ],
    ),
    "an interval for no checkpoints": Row(
        "script: train.py\ncheckpoint: {enabled: false, interval_min: 5}\n",
        ["job.yaml:2:30: checkpoint.interval_min: has no effect while checkpoint.enabled is false"],
    ),
    "args for a task": Row(
        "task: tasks:Net\nparams: {lr: 1}\nargs: [--fast]\n",
        ["job.yaml:3:1: args: is only for scripts; a task or function takes params"],
    ),
    "arguments within script": Row(
        "script: -m train --lr 1\n",
        [
            'job.yaml:1:9: script: must be a file, or "-m package.module" and nothing else; write the arguments under args'
        ],
    ),
    "dependency twice": Row(
        "script: train.py\nslurm: {dependency: afterok:1}\nafter: k7f\n",
        ["job.yaml:3:1: after: set either slurm.dependency or after, not both"],
    ),
    "an owned option": Row(
        "script: train.py\nslurm: {extra: {ntasks: 4, output: x.log, mem_per_cpu: 1G, -p: debug}}\nresources: {mem_gb: 4}\n",
        [
            "job.yaml:2:17: slurm.extra.ntasks: set resources.tasks_per_node instead",
            "job.yaml:2:28: slurm.extra.output: the launcher alone decides about --output; remove it",
            "job.yaml:2:43: slurm.extra.mem_per_cpu: set either resources.mem_gb or this option, not both",
            'job.yaml:2:60: slurm.extra.-p: "-p" is not an sbatch option; write its long name without dashes, such as mem-per-gpu',
        ],
    ),
    "a container of the batch script": Row(
        "script: train.py\nslurm: {extra: {container-image: a.sqsh}}\n",
        ["job.yaml:2:17: slurm.extra.container-image: set environment.container instead"],
    ),
    "a link outside": Row(
        "script: train.py\ncode: {link: [/data, ../data, .]}\n",
        [
            f"job.yaml:2:{column}: code.link[{i}]: must be a directory below code.dir, such as data; "
            "an absolute path needs no link"
            for i, column in enumerate((15, 22, 31))
        ],
    ),
    "notify on what": Row(
        "script: train.py\nnotify: {on: [fail]}\n",
        [
            'job.yaml:2:15: notify.on[0]: must be started, preempted, failed, completed or cancelled, not "fail";'
            ' did you mean "failed"?'
        ],
    ),
    "watching a task": Row(
        "function: tasks:loop\nparams: {lr: 1}\ncheckpoint: {watch: 'out/*.pt'}\n",
        [
            "job.yaml:3:14: checkpoint.watch: is only for scripts; the launcher itself saves the checkpoints of a task or function"
        ],
    ),
    # --- secrets
    "a secret by value": Row(
        "script: train.py\nenvironment: {variables: {WANDB_API_KEY: abc}}\n",
        [
            "job.yaml:2:27: environment.variables.WANDB_API_KEY: WANDB_API_KEY is a secret; export it before you "
            "submit and write environment: {pass: [WANDB_API_KEY]} instead"
        ],
    ),
    "a secret that is a number": Row(
        "script: train.py\nenvironment: {variables: {DB_PASSWORD: 123456}}\n",
        [
            "job.yaml:2:27: environment.variables.DB_PASSWORD: DB_PASSWORD is a secret; export it before you "
            "submit and write environment: {pass: [DB_PASSWORD]} instead"
        ],
    ),
    "a variable that is a list": Row(
        "script: train.py\nenvironment: {variables: {DB_PASSWORD: [123456]}}\n",
        ["job.yaml:2:40: environment.variables.DB_PASSWORD: must be text, a number, true or false"],
    ),
    "a variable without a value": Row(
        "script: train.py\nenvironment: {variables: {A: }}\n",
        ['job.yaml:2:29: environment.variables.A: has no value; set it to "" for an empty one, or remove this key'],
    ),
    "a variable that YAML readers read differently": Row(
        "script: train.py\nenvironment: {variables: {A: off}}\n",
        [
            "job.yaml:2:30: environment.variables.A: some YAML readers take off for text, others for false; write"
            ' false, or "off" in quotes'
        ],
    ),
    "a secret read from the environment": Row(
        "script: train.py\nargs: ['--token', '${oc.env:HF_TOKEN,none}']\n",
        [
            "job.yaml:2:19: args[1]: the value of HF_TOKEN is a secret and would be written into files; list "
            "HF_TOKEN under environment.pass instead"
        ],
    ),
    "a secret read by another spelling": Row(
        "script: train.py\nargs: ['--token', '${oc.env:\"HF_TOKEN\",none}']\n",
        [
            "job.yaml:2:19: args[1]: the value of HF_TOKEN is a secret and would be written into files; list "
            "HF_TOKEN under environment.pass instead"
        ],
    ),
    "what looks like a secret": Row(
        f"script: train.py\nargs: [--token, ghp_{'a1' * 18}]\n",
        [
            "job.yaml:2:17: args[1]: looks like a secret; export it as an environment variable and list its name "
            "under environment.pass"
        ],
    ),
    "a secret in a line of setup": Row(
        "script: train.py\nenvironment: {setup: [module load cuda, export HF_TOKEN=abc, 'export A_TOKEN=$B']}\n",
        [
            "job.yaml:2:41: environment.setup[1]: sets the secret HF_TOKEN; export it before you submit and list "
            "HF_TOKEN under environment.pass instead"
        ],
    ),
    "a secret that the sbatch script would show": Row(
        "script: train.py\nslurm: {comment: 'token=abc', extra: {bb: A_TOKEN=x}, srun_args: ['--export=X=1,B_TOKEN=2']}\n"
        "environment: {container: a.sif, container_args: [--env, 'HF_TOKEN=abc', --bind, '/run/token:/x1234567', --env, A_TOKEN]}\n",
        [
            f"job.yaml:{at}: {key}: sets the secret {name}; export it before you submit and list {name} under environment.pass instead"
            for at, key, name in (
                ("2:18", "slurm.comment", "token"),
                ("2:43", "slurm.extra.bb", "A_TOKEN"),
                ("2:67", "slurm.srun_args[0]", "B_TOKEN"),
                ("3:57", "environment.container_args[1]", "HF_TOKEN"),
            )
        ],
    ),
    "another cluster": Row(
        "script: train.py\nslurm: {extra: {clusters: other}}\n",
        [
            "job.yaml:2:17: slurm.extra.clusters: only this machine's cluster is asked for the job; submit on a login node of the "
            "other one"
        ],
    ),
    "a key as it is written on the command line": Row(
        "script: train.py\nresources.nodes: 2\n'params.lr': 3\n",
        [
            'job.yaml:2:1: resources.nodes: unknown key "resources.nodes"; in a file write nodes below resources, on a line of its own',
            'job.yaml:3:1: params.lr: unknown key "params.lr"; in a file write lr below params, on a line of its own',
        ],
    ),
    "pass is pass": Row(
        "script: train.py\nenvironment: {pass_: [A]}\n",
        ['job.yaml:2:15: environment.pass_: unknown key "pass_"; did you mean "pass"?'],
    ),
    "a URL where a name belongs": Row(
        "script: train.py\nnotify: {urls: ['slack://T/B/x']}\n",
        [
            "job.yaml:2:17: notify.urls[0]: must be the name of an environment variable that holds the URL, "
            "because the URL is a secret"
        ],
    ),
    "a variable every worker has": Row(
        "script: train.py\nenvironment: {variables: {RANK: '0', 1A: x}}\n",
        [
            "job.yaml:2:27: environment.variables.RANK: the launcher or SLURM sets RANK for every worker; remove it",
            "job.yaml:2:38: environment.variables.1A: the name of an environment variable has only letters, digits and underscores",
        ],
    ),
    "a variable with which no program can be started": Row(
        f"script: train.py\nenvironment:\n  variables:\n    MOST: {'x' * 130000}\n    LONG: {'ü' * 60000}{'x' * 11067}\n",
        [
            "job.yaml:5:11: environment.variables.LONG: is too long: Linux starts no program with a variable of 128 KiB; "
            "write it to a file"
        ],
    ),
    # --- interpolation
    "an unknown key in ${}": Row(
        "script: train.py\nargs: ['${params.lr}']\n",
        ["job.yaml:2:8: args[0]: ${params.lr} names a key that is not set"],
    ),
    "an unknown run value": Row(
        "script: train.py\nargs: ['${run.dri}']\n",
        ['job.yaml:2:8: args[0]: ${run.dri} does not exist; did you mean "run.dir"?'],
    ),
    "an axis of a sweep that is set twice": Row(
        "script: train.py\nsweep: {seed: [1], checkpoint.keep_last: [2], checkpoint: {keep_last: [3, 4]}}\n",
        ["job.yaml:2:60: sweep.checkpoint.keep_last: checkpoint.keep_last is set twice under sweep; remove one"],
    ),
    "an open ${": Row(
        "script: train.py\nargs: ['${params.lr']\n",
        [
            'job.yaml:2:8: args[0]: this "${" does not begin an interpolation such as ${params.lr}; write \\${ '
            "for these characters, \\\\${ in double quotes"
        ],
    ),
    "a circle": Row(
        "script: train.py\nparams: {a: '${params.b}', b: '${params.a}'}\n",
        [
            "job.yaml:2:13: params.a: ${params.b} refers to itself",
            "job.yaml:2:31: params.b: ${params.a} refers to itself",
        ],
    ),
    "an unset variable": Row(
        "script: train.py\nslurm: {account: '${oc.env:NO_SUCH_ACCOUNT}'}\n",
        ["job.yaml:2:18: slurm.account: the environment variable NO_SUCH_ACCOUNT is not set"],
    ),
    # --- overrides
    "an override without =": Row(
        "script: train.py\n",
        ['command line: "nodes" is not an override; write key=value, such as resources.nodes=2'],
        ("nodes",),
    ),
    "a Hydra override": Row(
        "script: train.py\n",
        ['command line: "+params.lr=1": remove the "+"; write params.lr=value'],
        ("+params.lr=1",),
    ),
    "an override of an unknown key": Row(
        "script: train.py\n",
        ['command line: resources.node: unknown key "node"; did you mean "nodes"?'],
        ("resources.node=2",),
    ),
    "an override of the wrong type": Row(
        "script: train.py\n",
        ['command line: resources.nodes: must be a whole number or a range such as 2-4, not "two"'],
        ("resources.nodes=two",),
    ),
    "an override below a value": Row(
        "script: train.py\n",
        ['command line: script.x: script is "train.py", so no key can be set below it'],
        ("script.x=1",),
    ),
    "an override far below a value": Row(
        "script: train.py\nparams: {a: 3}\n",
        ["command line: params.a.b.c: params.a is 3, so no key can be set below it"],
        ("params.a.b.c=1",),
    ),
    "an override beyond a list": Row(
        "script: train.py\n",
        ["command line: args[5]: the list has no such item"],
        ("args[5]=x",),
    ),
    "an override without a value": Row(
        "script: train.py\n",
        ["command line: resources.nodes: has no value; set a whole number or a range such as 2-4, or remove this key"],
        ("resources.nodes=",),
    ),
    "an override with open brackets": Row(
        "script: train.py\n",
        ["command line: args: the value '[a' is not valid YAML: check brackets and quotes"],
        ("args=[a",),
    ),
    # --- the named code
    "no such script": Row(
        "script: trian.py\n",
        ['job.yaml:1:9: script: file not found: {dir}/trian.py; did you mean "train.py"?'],
        error=CodeError,
    ),
    "a script with its arguments": Row(
        "script: train.py --lr 3 --name 'a b'\n",
        [
            "job.yaml:1:9: script: file not found: {dir}/train.py --lr 3 --name 'a b'; write the arguments under "
            "args, as in script: train.py and args: [--lr, '3', --name, a b]"
        ],
        error=CodeError,
    ),
    "a script that is no Python": Row(
        "script: broken.py\n",
        ["job.yaml:1:9: script: {dir}/broken.py:2 is not valid Python: '(' was never closed"],
        error=CodeError,
        extra={"broken.py": "x = 1\ny = (\n"},
    ),
    "a script outside": Row(
        "script: ../outside.py\n",
        ["job.yaml:1:9: script: ../outside.py is outside the code directory {dir}; set code.dir to its directory"],
        error=CodeError,
        extra={"../outside.py": "x = 1\n"},
    ),
    "no code directory": Row(
        "script: train.py\ncode: {dir: sorce}\n",
        ["job.yaml:2:13: code.dir: directory not found: {dir}/sorce"],
        error=CodeError,
    ),
    "nothing to link": Row(
        "script: train.py\ncode: {link: [data]}\n",
        ["job.yaml:2:15: code.link[0]: not found: {dir}/data"],
        error=CodeError,
    ),
    "no such module": Row(
        "task: task:Net\n",
        ['job.yaml:1:7: task: module task not found: it is neither in {dir} nor installed; did you mean "tasks"?'],
        error=CodeError,
    ),
    "no such class": Row(
        "task: tasks:Ned\n",
        ['job.yaml:1:7: task: class Ned not found in {dir}/tasks.py; did you mean "Net"?'],
        error=CodeError,
    ),
    "no class but a name": Row(
        "task: tasks\n", ['job.yaml:1:7: task: must be module:Class, not "tasks"'], error=ConfigError
    ),
    "a class that is no Training": Row(
        "task: tasks:Plain\n",
        ["job.yaml:1:7: task: Plain is not a subclass of launcher.Training: it has no base class"],
        error=CodeError,
    ),
    "a model as a task": Row(
        "task: tasks:Model\n",
        ["job.yaml:1:7: task: Model is a subclass of nn.Module, not of launcher.Training"],
        error=CodeError,
    ),
    "a task without all its methods": Row(
        "task: tasks:Half\n",
        [
            "job.yaml:1:7: task: Half does not define all methods that launcher.Training requires; add optimizer, train_data"
        ],
        error=CodeError,
    ),
    "a task whose base lacks a method": Row(
        "task: tasks:Other\n",
        ["job.yaml:1:7: task: Other does not define all methods that launcher.Training requires; add train_data"],
        error=CodeError,
    ),
    "a function as a task": Row(
        "task: tasks:loop\n",
        ["job.yaml:1:7: task: loop is a function; write function: instead of task:"],
        error=CodeError,
    ),
    "a task as a function": Row(
        "function: tasks:Net\n",
        [
            "job.yaml:1:11: function: Net is a class; write task: instead of function:, with a subclass of launcher.Training"
        ],
        error=CodeError,
    ),
    "a function without a worker": Row(
        "function: tasks:nothing\n",
        ["job.yaml:1:11: function: nothing takes no argument, but the launcher calls it with a launcher.Worker"],
        error=CodeError,
    ),
    "an async function": Row(
        "function: tasks:later\n",
        [
            "job.yaml:1:11: function: later is an async function; the launcher calls it without await, so write a plain function"
        ],
        error=CodeError,
    ),
    "wrong parameters": Row(
        "task: tasks:Net\nparams:\n  lrr: 0.1\n  depth: 3\n",
        [
            'job.yaml:2:1: params: Net needs the parameter "lr", which is not set',
            'job.yaml:3:3: params.lrr: Net has no parameter "lrr"; did you mean "lr"?',
        ],
        error=CodeError,
    ),
    "wrong parameters of an inherited constructor": Row(
        "task: tasks:Child\nparams: {lr: 1, widht: 2}\n",
        ['job.yaml:2:17: params.widht: Child has no parameter "widht"; did you mean "width"?'],
        error=CodeError,
    ),
    "wrong parameters of a dataclass": Row(
        "task: tasks:Small\nparams: {hidden: 1}\n",
        [
            'job.yaml:2:1: params: Small needs the parameter "lr", which is not set',
            'job.yaml:2:10: params.hidden: Small has no parameter "hidden"; allowed here: lr, depth',
        ],
        error=CodeError,
    ),
    "wrong parameters of a function": Row(
        "function: tasks:loop\nparams: {lr: 1, worker: 2}\n",
        ['job.yaml:2:17: params.worker: loop has no parameter "worker"; allowed here: lr, depth'],
        error=CodeError,
    ),
    "no parameter of that shape": Row(
        "task: tasks:Free\nparams: {'a b': 1}\n",
        ['job.yaml:2:10: params.a b: "a b" is not a valid parameter name'],
        error=CodeError,
    ),
    "a package without a main": Row(
        "script: -m package\n",
        ["job.yaml:1:9: script: -m cannot run package: this package has no __main__.py"],
        error=CodeError,
        extra={"package/__init__.py": ""},
    ),
    "a directory as a script": Row(
        "script: package\n",
        ["job.yaml:1:9: script: {dir}/package is a directory, not a file"],
        error=CodeError,
        extra={"package/__init__.py": ""},
    ),
    "a module that is a file's name": Row(
        "script: -m train.py\n",
        ['job.yaml:1:9: script: module train.py not found in {dir}; did you mean "-m train"?'],
        error=CodeError,
    ),
    "no such module to run": Row(
        "script: -m lab.train\n",
        ["job.yaml:1:9: script: module lab.train not found: it is neither in {dir} nor installed"],
        error=CodeError,
    ),
    # --- everything at once
    "many faults": Row(
        "script: train.py\nnam: x\nresources:\n  nodes: 0\n  gpus_per_node: 2\n  tasks_per_node: 4\nslurm: {partition: 'a b'}\n",
        [
            "command line: seed: must be at least 0, not -1",
            'job.yaml:2:1: nam: unknown key "nam"; did you mean "name"?',
            "job.yaml:4:10: resources.nodes: must be at least 1, not 0",
            "job.yaml:6:19: resources.tasks_per_node: 4 workers cannot share 2 GPUs: NCCL takes one rank per GPU;"
            " request 4 GPUs, or remove this key",
            'job.yaml:7:20: slurm.partition: must be partition names joined by commas, not "a b"',
        ],
        ("seed=-1",),
    ),
    "configuration and code": Row(
        "task: tasks:Ned\nresources: {nodes: 0}\n",
        [
            'job.yaml:1:7: task: class Ned not found in {dir}/tasks.py; did you mean "Net"?',
            "job.yaml:2:20: resources.nodes: must be at least 1, not 0",
        ],
    ),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with code, current for the test."""
    home = tmp_path / "project"
    home.mkdir()
    (home / "train.py").write_text("print('training')\n")
    (home / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(home)
    return home


@pytest.mark.parametrize("name", ROWS)
def test_each_fault_is_said_with_its_place(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`submit` ends with the exit code of the error's class and exactly these lines; nothing is created or submitted."""
    row = ROWS[name]
    for path, text in row.extra.items():
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(text)
    (project / "job.yaml").write_text(row.text)
    pretend_slurm(project.parent, monkeypatch)
    before = sorted(project.parent.rglob("*"))
    code = main(["submit", "job.yaml", *row.overrides])
    expected = [line.replace("{dir}", str(project)) for line in row.said]

    assert code == row.error.exit_code
    assert capsys.readouterr().err == "launcher: " + "\n".join(expected) + "\n"
    assert sorted(project.parent.rglob("*")) == before


def pretend_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SLURM whose every command leaves a trace, and a home of its own."""
    (folder / "bin").mkdir()
    for command in ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo"):
        (folder / "bin" / command).write_text(f'#!/bin/sh\ntouch "{folder}/called"\n')
        (folder / "bin" / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(folder))
    for name in ("LAUNCHER_SITE", "LAUNCHER_RUNS_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_good_jobs_pass(project: Path) -> None:
    """What looks like the wrong ones but is right is taken."""
    good = [
        "task: tasks:Net\nparams: {lr: 1, width: 4}\n",
        "task: tasks:Free\nparams: {anything: 1}\n",
        "task: tasks:Small\nparams: {lr: 3e-4}\n",
        "function: tasks:loop\nparams: {lr: 1}\n",
        "script: train.py\nresources: {gpus_per_node: 2, tasks_per_node: 4}\ndistributed: {backend: gloo}\n",
        "script: train.py\nresources: {gpus_per_node: 4}\nslurm: {gres: 'gpu:a100:4(S:0-1)'}\n",
        "script: train.py\nslurm: {constraint: 'a100&(ib|opa)', nodelist: 'gpu[01-02]', extra: {wckey: w}}\nresources: {nodes: 2}\n",
        "script: train.py\nresources: {timeout_min: 10}\n",
        "script: train.py\nenvironment: {variables: {TOKENIZERS_PARALLELISM: 'false', NOTE: \"two\\nlines\"}}\n",
        'script: train.py\nslurm: {comment: "it\'s über & fine $(x)"}\n',
        "script: -m http.server\n",
        "base: &b {lr: 1}\nscript: train.py\n".replace("base: &b {lr: 1}\n", "")
        + "params: {a: &b {lr: 1}, c: {<<: *b, d: 2}}\n",
    ]
    for text in good:
        Path("job.yaml").write_text(dedent(text))
        load_job("job.yaml", sites=[])
