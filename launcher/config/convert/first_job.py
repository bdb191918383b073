"""Write a first job file for a directory, from its files and the site's default partition."""

from __future__ import annotations

import ast
import math
from pathlib import Path

from launcher.config.check.user_code import imports, parse_or_none
from launcher.config.convert.draft import Draft
from launcher.config.document.clock_times import time_limit_text
from launcher.frozen import frozen

_LIKELY = ("train.py", "main.py", "run.py", "pretrain.py", "finetune.py")
_MOST_FILES = 200


@frozen(kw_only=True)
class DefaultPartition:
    """The partition that a first job would use."""

    partition: str = ""
    gpus: int = 0
    """Per node."""
    cpus: int = 0
    """Per node."""
    limit_min: int | None = None
    """The partition's longest time limit; None: none."""
    account_needed: bool = False
    others: tuple[str, ...] = ()
    """The other partitions, a few words each."""


def find_work(folder: Path) -> tuple[str, str]:
    """Find the work in a directory: a launcher.Training subclass, else the likeliest script; ("", "") for neither."""
    files = sorted(folder.glob("*.py"), key=lambda p: (p.name not in _LIKELY, p.name))[:_MOST_FILES]
    scripts = []
    for path in files:
        tree = parse_or_none(path)
        if tree is None:
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and any(ast.unparse(b).endswith("Training") for b in node.bases):
                return "task", f"{path.stem}:{node.name}"
        if _is_training_script(tree):
            scripts.append(path.name)
    if scripts:
        return "script", scripts[0]
    return ("script", files[0].name) if files and files[0].name in _LIKELY else ("", "")


def _is_training_script(tree: ast.Module) -> bool:
    """Tell whether a file imports torch or a library around it, and does something when run."""
    tops = {found.module.split(".")[0] for found in imports(tree)}
    runs = any(
        isinstance(node, ast.If | ast.With | ast.For)
        or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant))  # no docstring
        for node in tree.body
    )
    return bool(tops & {"torch", "lightning", "pytorch_lightning", "accelerate", "transformers"}) and runs


def first_job(work: tuple[str, str], place: DefaultPartition, source: str) -> str:
    """Return the text of a job file."""
    draft = Draft(source, heading="Still to set:")
    key, value = work
    if key == "task":
        draft.put("task", value, "write its keyword arguments under params")
    else:
        draft.put("script", value or "train.py", "" if value else "write the name of your script here")
        draft.put("args", [], '"${run.dir}" is the directory of the run')
    draft.put("resources.nodes", 1)
    if place.gpus:
        draft.put("resources.gpus_per_node", place.gpus, "one worker per GPU")
    else:
        draft.put("resources.tasks_per_node", 2, "workers on CPUs; gpus_per_node starts one worker per GPU instead")
    workers = place.gpus or 2
    if place.cpus:
        draft.put("resources.cpus_per_task", max(place.cpus // workers, 1), f"a node has {place.cpus} CPUs")
    limit = min(place.limit_min or math.inf, 60)
    draft.put("resources.timeout_min", int(limit), _limit(place))
    if place.partition:
        draft.put(
            "slurm.partition", place.partition, f"other partitions: {', '.join(place.others)}" if place.others else ""
        )
        if place.account_needed:
            draft.leave("slurm.account: this site requires one; sacctmgr show associations user=$USER lists yours.")
    return draft.text()


def _limit(place: DefaultPartition) -> str:
    """Return the comment on the time limit."""
    if place.limit_min is None:
        return 'minutes, or a quoted clock time such as "24:00:00"'
    return f'minutes, or a quoted clock time; at most "{time_limit_text(place.limit_min)}" in this partition'
