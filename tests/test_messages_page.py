"""What the launcher says: docs/messages.md holds every sentence, each short and each command in it a real one."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import click
import pytest

from launcher.cli.main import cli

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
messages_page = importlib.import_module("messages_page")

SPEAKING = {"echo", "secho", "warn", "event", "print_wrapped", "Finding", "ok", "problem", "warning", "note"}
"""Functions that take a sentence and show it, beside the constructors of errors."""


def verbs() -> dict[str, set[str]]:
    """Each verb's options."""
    context, found = click.Context(cli), {}
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        found[name] = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
    return found


def test_no_sentence_is_too_long() -> None:
    """At most 30 words: a tired reader holds no more."""
    assert messages_page.too_long() == []


def test_recommended_commands_exist() -> None:
    """Every `launcher VERB --option` that a sentence names is one that click knows."""
    assert messages_page.unknown_commands(verbs()) == []


def test_wrong_commands_would_be_found() -> None:
    """A verb and an option that do not exist are found; prose about the launcher is not taken for a command."""
    said = {
        "x": [
            "launcher resurrect RUN helps",
            "launcher why --loud RUN tells",
            "the launcher restarts it",
            "launcher why RUN tells",
        ]
    }
    assert messages_page.unknown_commands(verbs(), said) == [
        "launcher resurrect RUN helps",
        "launcher why --loud RUN tells",
    ]


def test_long_sentences_would_be_found() -> None:
    """Thirty-one words are one too many; two sentences of twenty are not."""
    long, fine = " ".join(["word"] * 31), " ".join(["word"] * 20) + ". " + " ".join(["word"] * 20)
    assert messages_page.too_long({"x": [long, fine]}) == [long]


def spoken() -> list[str]:
    """The longest fixed part of every text that is given to a call that speaks: errors, echoes, events, warnings."""
    found = []
    for path in (ROOT / "launcher").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name.endswith("Error") or name in SPEAKING:
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                found += [max(parts, key=len) for text in given if (parts := fixed_parts(text))]
    return [" ".join(part.split()) for part in found if len(part.split()) >= 4]


def fixed_parts(text: ast.expr) -> list[str]:
    """What is written out in a string or an f-string."""
    values = text.values if isinstance(text, ast.JoinedStr) else [text]
    return [part.value for part in values if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def test_whatever_is_said_is_on_the_page() -> None:
    """No error, echo, event or warning of the package is missing from the page."""
    page = " ".join(messages_page.page().split())
    found = spoken()

    assert len(found) > 150
    assert [part for part in found if part not in page] == []


def test_every_line_is_as_a_user_sees_it() -> None:
    """No placeholder, no value glued to a word, no doubled mark, nothing as Python writes it."""
    assert messages_page.flaws() == []


@pytest.mark.parametrize(
    "line",
    [
        "waits for ‹who›",
        "stopped at step41262",
        "lost 14steps",
        "failed: ; try again",
        "it failed..",
        "two  spaces",
        "waits for ",
        "nodes () joined",
        "['a', 'b'] failed",
        "reason None of gpu022",
    ],
)
def test_flaws_would_be_found(line: str) -> None:
    """Lines that were not rendered whole are found."""
    assert messages_page.flaws({"x": ["rank 5 on gpu022 failed at step 41,262: exit code 3", line]}) != []


def test_good_lines_have_no_flaw() -> None:
    """Names that hold digits, dots of paths and calls are no flaws."""
    good = "gpu022: launcher.attach() in ../train.py, resources.mem_gb=... of resnet50-1121-0842-k7f (SIGUSR2)."
    assert messages_page.flaws({"x": [good]}) == []


def test_page_has_every_group() -> None:
    """Under each heading stands something, and every module of the package has a heading."""
    assert [heading for heading, said in messages_page.messages().items() if not said] == []


def test_every_written_text_is_on_the_page() -> None:
    """No text of three words in the package is missing, whether it speaks by itself or is a part of a sentence."""
    assert messages_page.missing() == []


def test_missing_texts_would_be_found() -> None:
    """A sentence that is taken off the page is named with its place."""
    without = messages_page.page().replace("epoch 12 done", "").replace("the run cannot start", "")

    assert [line.partition(":")[0] for line in messages_page.missing(without)] == ["node/policy/decisions.py"]
