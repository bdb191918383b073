"""docs/messages.md: every sentence that the launcher can say, rendered by its own code with sample values.

Sentences are the string literals and f-strings of launcher/ that hold at least three words and are no docstring, pattern, shell
text or key. What is said inside another sentence is shown there.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import messages_real as real
from messages_render import ROOT, Module, Reader, with_before
from messages_samples import WITHIN, last_name

MOST_WORDS = 30
EVENTS = "Events (`watch`, `status`, `report`)"
GROUPS: dict[str, tuple[str, ...]] = {
    "The job file (every verb that reads one)": ("config/document", "config/load", "config/check"),
    "`init`": ("cli/init", "config/convert"),
    "`plan`, `submit`": ("cli/plan", "cli/_estimate", "submission/plan", "submission/facts"),
    "`submit`": ("cli/submit", "cli/_submitting", "submission/submit", "submission/folder", "submission/backends",
                 "submission/sweeps/submit_sweep", "submission/sweeps/points", "submission/dependencies"),
    "`run`": ("cli/run",),
    "`dry-run`": ("cli/dry_run", "submission/rehearsal", "run/rehearsals"),
    "`resubmit`": ("cli/resubmit", "submission/resubmit", "submission/sweeps"),
    "`hold` and `rerun`": ("cli/hold", "cli/rerun", "submission/reruns", "submission/hold_link", "node/leader/hold", "node/agent/reruns"),
    "`cancel`": ("cli/cancel", "submission/cancel", "submission/liveness"),
    "`status` and `ls`": ("cli/status", "cli/ls", "report/text/status", "report/text/listing", "report/model", "run/after"),
    "`watch`": ("cli/watch", "cli/_follow_run", "report/live"),
    EVENTS: ("report/text/words",),
    "`why`": ("cli/why", "report/diagnosis"),
    "`logs`": ("cli/logs",),
    "`nodes`": ("cli/nodes",),
    "`report`": ("cli/report", "report/page", "report/formats"),
    "`doctor`": ("cli/doctor", "report/site", "slurm/probe"),
    "`shell`": ("cli/shell", "node/agent/shell"),
    "`clean` and `completion`": ("cli/clean", "cli/completion"),
    "SLURM (every verb that asks it)": ("slurm",),
    "Why a run ended, or restarted (its last line, `status`, `why`)": ("node/policy", "node/leader", "node/allocation"),
    "The log of a node (`logs --agents`) and the check before the start": ("node",),
    "The log of a rank (`logs`)": ("training",),
    "Every verb": ("",),
}  # fmt: skip
"""Headings, and what the paths of their modules begin with: the first that fits counts."""
NOT_SHOWN: dict[str, tuple[str, ...]] = {
    "frozen.py": (),
    "run/tracebacks.py": (),
    "training/start/preload.py": (),
    "__main__.py": (),
    "node/agent/__main__.py": (),
    "run/causes.py": ("CAUSES",),
    "slurm/probe.py": ("_LOOK", "_script"),
    "submission/plan/script.py": ("python_command", "_local_gpus", "render_script", "_mounts", "setup_lines"),
    "submission/plan/around_srun.py": ("KEEP_SHELL", "joins", "teardown", "courier", "keeper", "_await_keeper"),
    "cli/_options.py": ("wait_option", "sweep_option"),
}
"""Modules, and in them the names, whose strings are code for others; the causes are in docs/json.md. No names: all of them."""
_CODE = re.compile(
    r"[{}]|==|\n *\n|^import |%[a-zA-Z]|; do$|^\[ |^srun --|^--[a-z-]+[ =][^e:]*$|^<|^\$|\w=\$|\$\{?[a-z]"
)
"""What shell text, formats and command lines have, and sentences have not."""
_WORD = re.compile(r"[A-Za-z][a-z']+")
_PATTERNS = {
    "compile",
    "match",
    "search",
    "sub",
    "startswith",
    "endswith",
    "fullmatch",
    "findall",
    "finditer",
    "split",
    "get_type_hints",
    "cast",
    "TypeVar",
}


def _not_said(tree: ast.Module, hidden: tuple[str, ...]) -> set[int]:
    """The string nodes that nobody is shown here: docstrings, patterns, annotations, keys, comparisons, help texts."""
    out: set[int] = set()

    def skip(node: ast.AST | None) -> None:
        out.update(id(inner) for inner in ast.walk(node)) if node else None

    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                skip(node.value)
            case ast.Call() if last_name(node.func) in _PATTERNS:
                skip(node)
            case (
                ast.FunctionDef(name=name)
                | ast.Assign(targets=[ast.Name(id=name)])
                | ast.AnnAssign(target=ast.Name(id=name))
            ) if name in hidden:
                skip(node)
            case ast.keyword(arg="help" | "short_help" | "epilog"):
                skip(node.value)
            case ast.AnnAssign(annotation=skipped) | ast.arg(annotation=skipped) | ast.FunctionDef(returns=skipped):
                skip(skipped)
            case ast.Compare() | ast.Subscript(value=ast.Name(id="Callable")):
                skip(node)
            case ast.Dict(keys=keys):
                for key in keys:
                    skip(key)
            case ast.JoinedStr(values=parts):
                out.update(id(part) for part in parts if isinstance(part, ast.Constant))
    return out


def _candidates(module: Module) -> Iterator[tuple[ast.AST, ast.expr]]:
    """Every string expression of a module and what is rendered for it, in the order of lines."""
    unsaid = _not_said(module.tree, NOT_SHOWN.get(module.place, ()))
    nodes = sorted((n for n in ast.walk(module.tree) if hasattr(n, "lineno")), key=lambda n: (n.lineno, n.col_offset))
    for node in nodes:
        if id(node) in unsaid:
            continue
        match node:
            case ast.JoinedStr() | ast.Constant(value=str()):
                yield node, node
            case ast.BinOp(op=ast.Add()) if any(
                isinstance(n, (ast.JoinedStr, ast.Constant)) for n in (node.left, node.right)
            ):
                yield node, node
            case ast.AugAssign(target=ast.Name(), op=ast.Add()):
                yield node, with_before(module, node)
            case ast.Call(func=ast.Attribute(attr="format")):
                yield node, node
            case ast.Call() if (frame := real.framed(module.place, node)) is not None:
                yield node, frame


def is_prose(text: str) -> bool:
    """Three words at least, and neither shell nor code."""
    return len(_WORD.findall(text)) >= 3 and " " in text.strip() and not _CODE.search(text)


def fixed_parts(node: ast.AST) -> list[str]:
    """What is written out in a string expression."""
    return [
        " ".join(n.value.split()) for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]


def _within(place: str, text: str) -> str:
    """A part of a sentence in that sentence."""
    for beginning, sentence in WITHIN.get(place, ()):
        if re.match(beginning, text):
            return sentence.replace("{}", text)
    return text


def _tidy(text: str) -> str:
    return " ".join(text.split())


@functools.cache
def _modules() -> dict[str, Module]:
    """The modules of the launcher, by their paths below it."""
    places = sorted(str(path.relative_to(ROOT / "launcher")) for path in (ROOT / "launcher").rglob("*.py"))
    return {place: Module(place) for place in places if NOT_SHOWN.get(place) != ()}


@functools.cache
def messages() -> dict[str, list[str]]:
    """Heading → the sentences said under it, each once."""
    modules = _modules()
    out: dict[str, list[str]] = {heading: [] for heading in GROUPS}
    found: list[tuple[str, ast.AST, list[str]]] = []
    inside: dict[int, list[str]] = {}
    """Strings, by the id of their node, that other sentences hold, and these."""
    read: list[tuple[ast.expr, Reader]] = []
    """Keeps every node alive: the id of one that is gone is given to another."""
    rendered = {place: [_tidy(text) for text in texts] for place, texts in real.rendered().items()}
    whole = "\n".join(text for texts in rendered.values() for text in texts).casefold()
    for place, module in modules.items():
        heading = next(title for title, rooms in GROUPS.items() if place.startswith(rooms))
        found += [(heading, ast.Constant(text), [text]) for text in rendered.get(place, ())]
        for node, shown in _candidates(module):
            reader = Reader(module, modules)
            read.append((shown, reader))
            given = [text for text in reader.values(shown, {}) if isinstance(text, str)]
            texts = [_tidy(line) for text in given for line in text.splitlines() if is_prose(line)]
            written = [n for n in (node, *reader.seen.values()) if hasattr(n, "lineno")]
            parts = {part for n in written for part in fixed_parts(n) if re.search("[a-z]{2}", part)}
            parts = {part for part in parts if " " in part} or parts
            kept: list[str] = []
            for text in texts:  # each says something that none before it has said
                if any(
                    part in text and part.casefold() not in whole and not any(part in one for one in kept)
                    for part in parts
                ):
                    kept.append(text)
            texts = [_within(place, text) for text in kept]
            if texts:
                found.append((heading, node, texts))
                for key in reader.seen.keys() - {id(node)}:
                    inside.setdefault(key, []).extend(texts)
    for heading, node, texts in found:
        part = max(fixed_parts(node), key=len, default="")
        if not any(part in text for text in inside.get(id(node), ())):
            out[heading] += [text for text in texts if text]
    said = [text for texts in out.values() for text in texts]
    everything = "\n".join(dict.fromkeys(said)).casefold()
    seen: set[str] = set()
    for heading, texts in out.items():  # once; not what is said as a part of another
        new = [text for text in dict.fromkeys(texts) if text not in seen]
        seen.update(new)
        out[heading] = [text for text in new if everything.count(text.casefold()) == 1]
    return out


def page() -> str:
    """The page."""
    text = "# Messages\n\nEvery sentence that the launcher can say, with sample values. Made from the code by `make docs`.\n"
    for heading, said in messages().items():
        text += f"\n## {heading}\n\n" + "".join(f"- {one}\n" for one in said)
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


def missing(text: str | None = None) -> list[str]:
    """What is written out in the source, three words at least, and is not on the page."""
    said = _tidy(text or page()).casefold()
    found = []
    for place, module in _modules().items():
        for node, _ in _candidates(module):
            part = (
                max(fixed_parts(node), key=len, default="") if isinstance(node, (ast.JoinedStr, ast.Constant)) else ""
            )
            if is_prose(part) and _within(place, part) and part.casefold() not in said:
                found.append(f"{place}:{getattr(node, 'lineno', 0)}: {part}")
    return found


_NAMES = "gpu014 gpu022 gpu031 gpu009 gpu09 gpu01 cpu031 resnet50 xxh3 cu12 cu13 ext4 ib0 login1".replace(" ", "|")
_FLAWS = {
    "a part without a sample": r"‹|›",
    "a doubled mark": r"(?<!\.)\.\.(?![./])|[,;] ?[,;:]|[,;:] ?\.(?!\.)|: ?[:;]|\s\s",
    "a lonely mark": r"\s[,;:.](?:\s|$)|(?<!\w)\(\s*\)|\( | \)|[;,(\s]$",
    "a number without a space before it": rf"\b(?!(?:{_NAMES})\b)[a-z]{{2,}}\d[\d,]*\b",
    "a number without a space after it": r"\b\d[\d,]*[a-z]{4,}",
    "a value as Python writes it": r"^\[|\['|Path\(|<\w+ object|(?<!^)\bNone\b|\{\}",
}


def flaws(said_by_heading: dict[str, list[str]] | None = None) -> list[str]:
    """``flaw: line`` of every line that was not rendered as a user sees it."""
    lines = [one for said in (said_by_heading or messages()).values() for one in said]
    return [f"{flaw}: {one}" for one in lines for flaw, pattern in _FLAWS.items() if re.search(pattern, one)]
