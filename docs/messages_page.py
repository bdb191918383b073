"""docs/messages.md: every sentence that the launcher can say, rendered by its own code with sample values.

Sentences are the string literals and f-strings of launcher/ that hold at least three words and are no docstring, pattern, shell
text or key. An f-string is evaluated as it stands, with `SAMPLES` where it names values of a run and the real functions of
launcher/report/formats.py where it calls them.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.report import formats
from launcher.run import units

ROOT = Path(__file__).resolve().parents[1]
MOST_WORDS = 30
GROUPS = {
    "cli": "Verbs",
    "config": "The job file (`plan`, `submit`, `dry-run`, `init`)",
    "submission": "Planning and submitting (`plan`, `submit`, `resubmit`, `cancel`, `dry-run`)",
    "report/diagnosis": "Why (`why`)",
    "report/site": "The site (`doctor`)",
    "report/page": "The page (`report`)",
    "report/live": "The live view (`watch`)",
    "report": "Reading runs (`status`, `ls`, `nodes`, `logs`)",
    "slurm": "SLURM",
    "node": "On the nodes (events, logs, how a run ended)",
    "training": "Inside a worker (its log)",
    "": "Everywhere",
}
"""Rooms and their headings; the first that a module's path begins with counts."""
NOT_SHOWN = {"slurm/probe.py": "_LOOK", "frozen.py": "", "training/start/preload.py": ""}
"""Modules (and in them names) whose strings are code for another interpreter."""
SAMPLES: dict[str, Any] = {
    "rank": 5, "ranks": [5, 6], "host": "node2", "hosts": ["node2", "node3"], "node": 1, "nodes": ["node2", "node3"],
    "step": 41262, "run_id": "resnet50-1121-0842-k7f", "run": "resnet50-1121-0842-k7f", "name": "resnet50",
    "path": "runs/resnet50-1121-0842-k7f", "key": "resources.nodes", "value": "8", "word": "8", "error": "Permission denied",
    "job_id": "482913", "line": 12, "column": 3, "signal": "TERM", "exception": "ValueError", "message": "bad label 11",
    "verb": "submit", "file": "train.py", "t": 1795311918.0, "seconds": 42.0, "text": "bad label 11", "reason": "Rank 5 failed.",
    "partition": "gpu", "version": "2.13.0", "module": "train", "function": "main", "option": "--nodes", "hint": "",
    "also": "", "names": ["train.py", "job.yaml"], "paths": ["train.py", "job.yaml"], "problems": ["train.py", "job.yaml"],
}  # fmt: skip
_NUMBERS = re.compile(
    r"(_s|_min|_gb|_bytes|_t|_h|count|port|size|step|steps|epoch|epochs|n|number|percent|limit|left|most|max|min|len)$"
)
_CODE = re.compile(
    r"[{}]|==|\n *\n|^import |%[a-zA-Z]|; do$|^\[ |^srun --|-m launcher\.|^--[a-z-]+[ =][^e:]*$|^<|^\$|\w=\$|\$\{?[a-z]"
)
"""What shell text, formats and command lines have, and sentences have not."""
_WORD = re.compile(r"[A-Za-z][a-z']+")
_REAL = {
    name: value
    for module in (formats, units)
    for name, value in vars(module).items()
    if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
} | {
    name: getattr(builtins, name)
    for name in ("len", "str", "int", "round", "min", "max", "sorted", "abs", "repr", "list", "set", "sum")
}
_PATTERNS = {
    "compile",
    "match",
    "search",
    "sub",
    "fullmatch",
    "findall",
    "finditer",
    "split",
    "get_type_hints",
    "cast",
    "TypeVar",
}


def sample(name: str) -> Any:
    """A value that a variable, attribute or function of that name could have."""
    low = name.lower().strip("_")
    if low in SAMPLES:
        return SAMPLES[low]
    for known in sorted(SAMPLES, key=len, reverse=True):
        if low.endswith("_" + known):
            return SAMPLES[known]
    return 3 if _NUMBERS.search(low) else f"‹{low.replace('_', ' ')}›"


class _Sampled(ast.NodeTransformer):
    """Puts samples where an expression reads values that only a run has."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.values: dict[str, Any] = dict(_REAL)
        self.constants = constants

    def _replace(self, node: ast.expr, name: str) -> ast.expr:
        key = f"_{len(self.values)}"
        self.values[key] = self.constants.get(name, sample(name))
        return ast.copy_location(ast.Name(key, ast.Load()), node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        kept = isinstance(node.ctx, ast.Store) or hasattr(builtins, node.id)  # `count` may be a number of the caller's
        return node if kept else self._replace(node, node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._replace(node, node.attr)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return self._replace(node, _last_name(node))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        func = node.func
        real = isinstance(func, ast.Name) and func.id in _REAL
        joins = isinstance(func, ast.Attribute) and func.attr == "join" and isinstance(func.value, ast.Constant)
        if not (real or joins):
            return self._replace(node, _last_name(node))
        node.args = [self.visit(argument) for argument in node.args]
        if joins and isinstance(node.args[0], ast.Name) and isinstance(self.values[node.args[0].id], str):
            self.values[node.args[0].id] = [self.values[node.args[0].id]]
        return node


def _last_name(node: ast.expr) -> str:
    """The identifier that says what an expression is: the key of a subscript, the attribute, the function called."""
    if isinstance(node, ast.Subscript):
        key = node.slice
        return (
            str(key.value) if isinstance(key, ast.Constant) and isinstance(key.value, str) else _last_name(node.value)
        )
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else "value"


def render(node: ast.expr, constants: dict[str, Any]) -> str:
    """What an f-string gives, each of its values sampled."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.FormattedValue):
        spec = render(node.format_spec, constants) if node.format_spec else ""
        value = evaluate(node.value, constants)
        value = repr(value) if node.conversion == ord("r") else value
        value = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        value = ", ".join(map(str, value)) if isinstance(value, list) else value
        for given in (value, 3):
            with contextlib.suppress(ValueError, TypeError):
                return format(given, spec)
        return str(value)
    return "".join(render(part, constants) for part in node.values) if isinstance(node, ast.JoinedStr) else ""


def evaluate(node: ast.expr, constants: dict[str, Any]) -> Any:
    """The value of an expression inside an f-string, with samples for what it reads."""
    sampled = _Sampled(constants)
    tree = ast.fix_missing_locations(ast.Expression(sampled.visit(ast.parse(ast.unparse(node), mode="eval").body)))
    try:
        return eval(compile(tree, "<message>", "eval"), {"__builtins__": {}}, sampled.values)  # noqa: S307
    except Exception:  # a sample that does not fit the expression: the sample for the whole of it
        return sample(_last_name(node))


def _not_said(tree: ast.Module) -> set[int]:
    """The string nodes that nobody is shown: docstrings, patterns, annotations, keys, comparisons."""
    out: set[int] = set()

    def skip(node: ast.AST | None) -> None:
        out.update(id(inner) for inner in ast.walk(node)) if node else None

    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skip(node.value)
        elif isinstance(node, ast.Call) and _last_name(node.func) in _PATTERNS:
            skip(node)
        elif isinstance(node, (ast.AnnAssign, ast.arg)):
            skip(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            skip(node.returns)
        elif isinstance(node, ast.Compare):
            skip(node)
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                skip(key)
    return out


def constants_of(tree: ast.Module) -> dict[str, Any]:
    """The module's constants that are plain values."""
    out: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                out[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return out


def said_by(path: Path) -> Iterator[str]:
    """Every sentence in one module, in the order of its lines."""
    tree = ast.parse(path.read_text())
    constants, out = constants_of(tree), _not_said(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):  # its parts are rendered with it
            out.update(id(part) for value in node.values for part in ast.walk(value))
    for node in sorted((n for n in ast.walk(tree) if hasattr(n, "lineno")), key=lambda n: (n.lineno, n.col_offset)):
        if id(node) in out:
            continue
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            text = render(node, constants)
            if is_prose(text):
                yield text


def is_prose(text: str) -> bool:
    """Three words at least, and neither shell nor code."""
    return len(_WORD.findall(text)) >= 3 and " " in text.strip() and not _CODE.search(text)


def messages() -> dict[str, list[str]]:
    """Heading → the sentences said under it, each once."""
    out: dict[str, list[str]] = {heading: [] for heading in GROUPS.values()}
    seen: set[str] = set()
    for path in sorted((ROOT / "launcher").rglob("*.py")):
        place = str(path.relative_to(ROOT / "launcher"))
        if place in NOT_SHOWN:
            continue
        heading = next(GROUPS[room] for room in GROUPS if place.startswith(room))
        for text in said_by(path):
            if text not in seen:
                seen.add(text)
                out[heading].append(text)
    return out


def page() -> str:
    """The page."""
    text = "# Messages\n\nEvery sentence that the launcher can say, with sample values. Made from the code by `make docs`.\n"
    for heading, said in messages().items():
        text += f"\n## {heading}\n\n" + "".join("- " + " ".join(one.split()) + "\n" for one in said)
    return text


def too_long(said_by_heading: dict[str, list[str]] | None = None) -> list[str]:
    """Sentences of more words than a tired reader can hold."""
    sentences = (
        sentence
        for said in (said_by_heading or messages()).values()
        for one in said
        for sentence in re.split(r"[.;:!?]\s|\n", one)
    )
    return [sentence for sentence in sentences if len(sentence.split()) > MOST_WORDS]


def unknown_commands(verbs: dict[str, set[str]], said_by_heading: dict[str, list[str]] | None = None) -> list[str]:
    """Commands that a sentence recommends and that do not exist; ``verbs``: each verb's options."""
    out = []
    for said in (said_by_heading or messages()).values():
        for one in said:
            for before, verb, rest in re.findall(r"(\S*\s|^)launcher ([a-z][a-z-]*)((?: [^\s,;.:)]+)*)", one):
                if before.strip().lower() in {"the", "a", "submitit"}:
                    continue  # prose: "the launcher restarts it"
                options = {word.split("=")[0] for word in rest.split() if word.startswith("--")}
                if verb not in verbs or options - verbs[verb]:
                    out.append(f"launcher {verb}{rest}")
    return out
