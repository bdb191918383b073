#!/usr/bin/env python3
"""Write the generated pages of docs/, or with ``--check`` say which are stale.

docs/verbs/         one page a verb, from its ``--help``
docs/api.md         what `launcher` gives to Python code, from its docstrings
docs/reference.md   every key of a job file, from launcher/config/document/schema.py
docs/messages.md    every sentence that the launcher can say, from its source
docs/json.md        every key of what --json prints, from the dataclasses of launcher/report
docs/modules.md     every module in a sentence, from its docstring
docs/versions.md    what was tested on which SLURM and Python, from docs/versions.json and docs/pythons.json; and the README's claim
launcher/config/job.schema.json  the JSON Schema that `launcher schema` prints
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

import api_page
import click
import messages_page
import reference_page as reference
import versions_page

from launcher import errors
from launcher.cli import clean, logs, watch
from launcher.cli.main import cli
from launcher.report.diagnosis import why
from launcher.report.model import ledger, summary, troubles
from launcher.report.page import figures
from launcher.report.text import listing
from launcher.run import causes, event_parts, events
from launcher.run.records import Record

DOCS = Path(__file__).resolve().parent
SCHEMA = "../launcher/config/job.schema.json"


def help_text(name: str, command: click.Command, parent: click.Context) -> str:
    """What ``--help`` prints at a width of 80, sub-commands included."""
    context = click.Context(command, info_name=name, parent=parent, terminal_width=80, max_content_width=80)
    text = f"```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            below = command.get_command(context, inner)
            if below:
                text += f"\n## {context.command_path} {inner}\n\n{help_text(inner, below, context)}"
    return text


def verb_pages() -> dict[str, str]:
    """File name → page, one a verb, and an index."""
    root = click.Context(
        cli, info_name="launcher", terminal_width=80, **(cli.context_settings | {"max_content_width": 80})
    )
    pages, rows = {}, []
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        if command is None or command.hidden:
            continue
        pages[f"verbs/{name}.md"] = f"# launcher {name}\n\n{help_text(name, command, root)}"
        first = (command.help or "").strip().split("\n")[0]
        rows.append(f"- [{name}]({name}.md): {first}")
    codes = f"## Exit codes\n\n```text\n{(errors.__doc__ or '').strip()}\n```\n"
    pages["verbs/README.md"] = (
        f"# Verbs\n\nMade from each verb's `--help` by `make docs`.\n\n{chr(10).join(rows)}\n\n{codes}"
    )
    return pages


_JSON = """# What --json prints

Made from launcher/report by `make docs`. Keys stay; new ones may come. Times are seconds since the epoch, durations seconds,
null is unknown. Numbers that are not finite are the strings "nan", "inf" and "-inf". `plan`, `dry-run`, `doctor` and `nodes` have --json, too;
their keys are not listed here and may change.
"""
_TABLES = (
    ("launcher status RUN --json", "One object; a list unless exactly one RUN is named that is no sweep.", summary, "RunSummary", ()),
    ("ledger of status", "Where the time went, over all attempts; also `total_s` and `goodput` (useful / total).", ledger,
     "Ledger", ("segments",)),
    ("advice of status", "What the run's own history recommends; null where it tells too little.", ledger, "Advice", ()),
    ("troubles of status", "A list, the most pressing first: what is wrong or slow with a run that lives; `why` and `report` tell it, too.",
     troubles, "Trouble", ()),
    ("launcher ls --json", "A list, newest first.", listing, "ListingRow", ()),
    ("launcher why RUN --json", "One object; its `rows` are called `evidence`: lists of texts by label.", why, "Why", ()),
    ("launcher report RUN --json", "The keys of status with ledger, advice and troubles, and these. One object in one line; for several RUNs a "
     "list of such lines.", figures, "Figures", ()),
    ("launcher logs RUN --json", "One object a line of the log, with --follow as the lines come. `jq -r .text` gives the log back.",
     logs, "Line", ()),
    ("launcher watch RUN --json", "One object an event, as it comes: the keys of `events.jsonl` (below) with `words` for people, the "
     "last line of `type` state. Of a sweep such a line for every point that is in another state. Without RUN: ls --json.",
     watch, "Change", ()),
    ("launcher clean --json", "A list: what can be removed, or with --yes has been.", clean, "Old", ()),
)  # fmt: skip


def json_page() -> str:
    """The keys of every object that a reading verb prints as JSON."""
    text = _JSON
    for title, said, module, name, hidden in _TABLES:
        docs = reference.field_docs(module, name)
        rows = [
            f"| `{key}` | {doc.replace('|', '/').replace('``', '`')} |"
            for key, doc in docs.items()
            if key not in hidden
        ]
        text += f"\n## {title}\n\n{said}\n\n| key | means |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    rows = [
        f"| `{kind}` | {row.ends} | {row.means[0].upper()}{row.means[1:]}. |" for kind, row in causes.CAUSES.items()
    ]
    return (
        text
        + _CAUSES
        + "\n".join(rows)
        + "\n"
        + _EVENTS
        + "\n".join(_event_row(kind, f"`{kind.type}`") for kind in events.Event.kinds.values())
        + _PARTS
        + "\n".join(_event_row(getattr(event_parts, name), f"`{place}`") for name, place in _PLACES.items())
        + "\n"
    )


_CAUSES = """
## Kinds of causes

The `kind` of `why --json`, and of each `cause` below.

| kind | ends a | means |
| --- | --- | --- |
"""
_EVENTS = """
## events.jsonl

What happened to a run, in order: one event a line. Every event has `t` (when; the order is that of the lines), `type`, `attempt` (null
before the first leader) and, inside a round, `round`. A key in brackets is written only where it says something. Readers meet keys and
types that they do not know, of later versions.

| type | means | keys |
| --- | --- | --- |
"""
_PARTS = """

Inside them:

| where | means | keys |
| --- | --- | --- |
"""
_PLACES = {"Cause": "cause", "Frame": "cause.frames", "PlacedRank": "round_started.ranks", "RankAt": "worker_failed.ranks",
           "Victim": "victims.ranks", "Laggard": "hang.laggards", "HostCheck": "preflight.checks"}  # fmt: skip


def _event_row(kind: type[Record], named: str) -> str:
    """One row: the record's meaning and its keys, each with its own."""
    docs: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        if cls.__module__ in (events.__name__, event_parts.__name__):
            docs |= reference.field_docs(sys.modules[cls.__module__], cls.__name__)
    keys = []
    for name in kind._frozen_fields:
        if name not in events.Event._frozen_fields or not issubclass(kind, events.Event):
            key = f"`[{name}]`" if name in kind._defaults else f"`{name}`"
            keys.append(f"{key} ({_inside(docs[name])})" if name in docs else key)
    said = " ".join((kind.__doc__ or "").split()).replace("``", "`")
    listed = ", ".join(keys).replace("|", "/").replace("``", "`")
    return f"| {named} | {said} | {listed.replace('none: ', 'null: ').replace('None: ', 'null: ')} |"


def _inside(sentence: str) -> str:
    """Return a sentence as it stands in brackets: "TERM or USR2" keeps its capitals."""
    first = sentence[0] if sentence[1:2].isupper() else sentence[0].lower()
    return first + sentence[1:].rstrip(".")


_MODULES = """# Every module in a sentence

Made from the modules' docstrings by `make docs`. [architecture.md](architecture.md) says how they work together.
"""


def modules_page() -> str:
    """Every room of launcher/ with its modules, each with the first sentences of its docstring."""
    root, text = DOCS.parent / "launcher", _MODULES
    for package in sorted(root.rglob("__init__.py")):
        room = package.parent
        text += f"\n## {room.relative_to(root.parent)}/\n\n{_said_of(package)}\n"
        modules = [f"- `{path.name}`: {_said_of(path)}\n" for path in sorted(room.glob("*.py")) if path != package]
        text += "".join(["\n", *modules] if modules else [])
    return text


def _said_of(module: Path) -> str:
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(docstring.split("\n\n")[0].split()).replace("``", "`")


def stale(pages: dict[str, str]) -> list[str]:
    """The pages that differ from what is on disk, and those on disk that nothing makes any more."""
    wrong = [name for name, text in pages.items() if not (DOCS / name).is_file() or (DOCS / name).read_text() != text]
    left = {f"verbs/{p.name}" for p in (DOCS / "verbs").glob("*.md")} - set(pages)
    return sorted(wrong) + sorted(left)


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a page is stale")
    args = parser.parse_args()
    pages = {
        **verb_pages(),
        "api.md": api_page.page(),
        "reference.md": reference.page(),
        "messages.md": messages_page.page(),
        "json.md": json_page(),
        "modules.md": modules_page(),
        SCHEMA: reference.json_schema_text(),
    }
    if versions_page.RECORD.exists():
        pages |= versions_page.pages()
    wrong = stale(pages)
    if args.check:
        sys.exit(f"stale, `make docs` renews them: {', '.join(wrong)}" if wrong else 0)
    for name in wrong:
        if name in pages:
            (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / name).write_text(pages[name])
        else:
            (DOCS / name).unlink()


if __name__ == "__main__":
    main()
