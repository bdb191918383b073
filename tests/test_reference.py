"""The schema's page and JSON Schema say what the schema says."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from launcher.cli.main import cli
from launcher.config.document import schema
from launcher.config.load.load import load_job

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("reference_page", ROOT / "docs" / "reference_page.py")
assert _SPEC is not None
assert _SPEC.loader is not None
reference = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(reference)


def sections() -> list[type]:
    """Every dataclass of the schema."""
    return [
        c
        for c in vars(schema).values()
        if isinstance(c, type) and dataclasses.is_dataclass(c) and c.__module__ == schema.__name__
    ]


def test_the_page_is_up_to_date() -> None:
    """docs/reference.md is what the schema makes today; `make docs` renews it."""
    assert (ROOT / "docs" / "reference.md").read_text() == reference.page()


def test_every_field_is_documented() -> None:
    """No key is without a sentence."""
    silent = [
        f"{c.__name__}.{f.name}"
        for c in sections()
        for f in dataclasses.fields(c)
        if not reference.field_docs(schema, c.__name__).get(f.name)
        and not any(s.__name__ in str(f.type) for s in sections())
    ]

    assert silent == []


def test_every_key_is_on_the_page() -> None:
    """Each key of each section has a row of its own."""
    page = reference.page()
    missing = [f.name for c in sections() for f in dataclasses.fields(c) if f"| `{f.name.rstrip('_')}` |" not in page]

    assert missing == []


def walk(node: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a JSON value."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def test_the_json_schema_holds_together() -> None:
    """`launcher schema` prints JSON whose references resolve, whose keys are those of a job file, each described."""
    result = CliRunner().invoke(cli, ["schema"])
    made = json.loads(result.output)
    refs = {node["$ref"].rpartition("/")[2] for node in walk(made) if "$ref" in node}

    assert result.exit_code == 0
    assert refs <= set(made["$defs"])
    assert set(made["properties"]) == {f.name for f in dataclasses.fields(schema.Job)}
    assert "pass" in made["$defs"]["Environment"]["properties"]
    assert all("description" in p for s in [made, *made["$defs"].values()] for p in s.get("properties", {}).values())
    assert all(s["additionalProperties"] is False for s in [made, *made["$defs"].values()] if s["type"] == "object")


def test_the_json_schema_takes_interpolations() -> None:
    """An editor underlines no ``${params.n}`` where a number, a truth value or one of some words is due, and no object there."""
    made = reference.json_schema()
    resources, job = made["$defs"]["Resources"]["properties"], made["properties"]

    for prop in (resources["nodes"], made["$defs"]["Distributed"]["properties"]["backend"], job["deterministic"]):
        assert prop["anyOf"][-1] == {"type": "string", "pattern": r"^\$\{.+\}$"}
    assert resources["nodes"]["anyOf"][0]["type"] == "integer"
    assert "anyOf" not in job["resources"]


def test_the_site_example_of_the_page_is_a_profile(tmp_path: Path) -> None:
    """The locked keys the page shows are keys that can be locked."""
    site = tmp_path / "site.yaml"
    site.write_text("locked: [slurm.account, restart.max_total_hours]\n")
    (tmp_path / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(
        "script: train.py\nslurm: {extra: {wckey: vision, licenses: 'matlab:1', contiguous: true}}\n"
    )

    assert load_job(tmp_path / "job.yaml", sites=[site]).site.locked == ("slurm.account", "restart.max_total_hours")
