"""A first job file for a directory, from what is in it and what the site has. Pure but for reading the directory."""

from __future__ import annotations

import ast
import math
from pathlib import Path

from launcher.config.check.user_code import imports, parse_or_none
from launcher.config.convert.draft import Draft
from launcher.config.document.clock_times import time_limit_text
from launcher.frozen import frozen

__all__ = ["DefaultPartition", "find_work", "first_job"]

_LIKELY = ("train.py", "main.py", "run.py", "pretrain.py", "finetune.py")
_MOST_FILES = 200


@frozen(kw_only=True)
class DefaultPartition:
    """Where the job would run."""

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
    """The key and value that name the work: a launcher.Training subclass, else the likeliest script; ("", "") for neither."""
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
    """It imports torch or something around it, and does something when run."""
    tops = {found.module.split(".")[0] for found in imports(tree)}
    runs = any(isinstance(n, (ast.If, ast.Expr, ast.With, ast.For)) and not _is_docstring(n) for n in tree.body)
    return bool(tops & {"torch", "lightning", "pytorch_lightning", "accelerate", "transformers"}) and runs


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def first_job(work: tuple[str, str], place: DefaultPartition, source: str) -> str:
    """The text of a job file."""
    draft = Draft(source, heading="Left to you:")
    key, value = work
    if key == "task":
        draft.put("task", value, "its keyword arguments go under params")
    else:
        draft.put("script", value or "train.py", "" if value else "name your program")
        draft.put("args", [], '"${run.dir}" is the run\'s own directory')
    draft.put("resources.nodes", 1)
    if place.gpus:
        draft.put("resources.gpus_per_node", place.gpus, "one worker each")
    else:
        draft.put("resources.tasks_per_node", 2, "workers on CPUs; with gpus_per_node there is one per GPU")
    workers = place.gpus or 2
    if place.cpus:
        draft.put("resources.cpus_per_task", max(place.cpus // workers, 1), f"a node has {place.cpus}")
    limit = min(place.limit_min or math.inf, 60)
    draft.put("resources.timeout_min", int(limit), _limit(place))
    if place.partition:
        draft.put("slurm.partition", place.partition, f"also here: {', '.join(place.others)}" if place.others else "")
        if place.account_needed:
            draft.leave("slurm.account: this site wants one; sacctmgr show associations user=$USER names yours.")
    return draft.text()


def _limit(place: DefaultPartition) -> str:
    """What may be asked for."""
    if place.limit_min is None:
        return 'minutes, or a quoted clock time such as "24:00:00"'
    return f'minutes, or a quoted clock time; at most "{time_limit_text(place.limit_min)}" here'
