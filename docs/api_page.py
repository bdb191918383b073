"""Make docs/api.md: what `launcher` gives to Python code, from the docstrings of its classes and functions."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

TRAINING = Path(__file__).resolve().parent.parent / "launcher/training"
_HEAD = """# The Python API

Made from the docstrings of launcher/training by `make docs`. `import launcher` gives these names; torch is imported when one is first used.
Whole programs: [a task](../jobs/toy_classifier.py), [a function](../jobs/linear_checkpoint.py), [a script](tutorial.md) with `attach()`.
"""
_SECTIONS = (
    ("launcher.Training", "the base class of `task: module:Class`", "task.py", "Training"),
    ("launcher.Worker", "what `function: module:name` gets, and `launcher.attach()` returns", "worker.py", "Worker"),
    ("launcher.attach", "for `script:`", "attach.py", "attach"),
    ("launcher.load_checkpoint", "for evaluation and export, outside a run, too", "checkpoint/read.py", "load_checkpoint"),
)  # fmt: skip


def page() -> str:
    """docs/api.md."""
    text = _HEAD
    for title, said, file, name in _SECTIONS:
        body = ast.parse((TRAINING / file).read_text()).body
        node = next(one for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == name)
        text += f"\n## {title}: {said}\n\n"
        if isinstance(node, ast.FunctionDef):
            text += f"`{_call(node)}`\n\n"
        text += f"{_said(ast.get_docstring(node), paragraphs=True)}\n"
        if isinstance(node, ast.ClassDef):
            text += "\n| name | means |\n| --- | --- |\n"
            text += "".join(f"| `{member}` | {means} |\n" for member, means in _members(node))
    return text


def _members(cls: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the public attributes and methods, each with what its docstring says."""
    init = next((one for one in cls.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    for body in (cls.body, init.body if init else []):
        for item, after in itertools.pairwise(body):
            target = (
                item.target
                if isinstance(item, ast.AnnAssign)
                else item.targets[0]
                if isinstance(item, ast.Assign)
                else None
            )
            if not isinstance(after, ast.Expr) or not isinstance(target, ast.Name | ast.Attribute):
                continue
            name = target.id if isinstance(target, ast.Name) else target.attr
            default = f" = {ast.unparse(item.value)}" if isinstance(item, ast.AnnAssign) and item.value else ""
            if not name.startswith("_"):
                yield name + default, _said(ast.literal_eval(after.value))
    for item in cls.body:
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_") and (said := ast.get_docstring(item)):
            kinds = [ast.unparse(one) for one in item.decorator_list]
            must = "**Required.** " if "abstractmethod" in kinds else ""
            yield item.name if "property" in kinds else _call(item), must + _said(said)


def _call(function: ast.FunctionDef) -> str:
    """Return a function's name with its arguments, without types."""
    for argument in (*function.args.args, *function.args.kwonlyargs, function.args.vararg, function.args.kwarg):
        if argument is not None:
            argument.annotation = None
    function.args.args = [one for one in function.args.args if one.arg != "self"]
    return f"{function.name}({ast.unparse(function.args)})"


def _said(docstring: str | None, *, paragraphs: bool = False) -> str:
    """Return a docstring for Markdown: in one line, or a line for each paragraph."""
    parts = (" ".join(part.split()) for part in (docstring or "").split("\n\n"))
    text = ("\n\n" if paragraphs else " ").join(parts).replace("``", "`")
    return text if paragraphs else text.replace("|", "\\|")
