"""What the nodes know of a job is a projection of its schema: nothing is declared in one and forgotten in the other."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

import pytest

from launcher.config.document import schema
from launcher.run.spec import CheckpointSpec, DdpSpec, RestartSpec, RunSpec
from launcher.submission.plan.node_spec import COMMAND_ONLY, DERIVED, OWN, SECTIONS

NESTED = {
    "checkpoint": (schema.Checkpointing, CheckpointSpec),
    "restart": (schema.Restart, RestartSpec),
    "distributed.ddp": (schema.Ddp, DdpSpec),
}
"""Sections that the spec holds as a whole."""


def keys(section: Any, prefix: str = "") -> Iterator[str]:
    """Every key path of a section; a tracker's own options belong to it, and `after` is one key."""
    for name, kind in typing.get_type_hints(section).items():
        if is_dataclass(kind) and f"{prefix}{name}" not in NESTED:
            yield from keys(kind, f"{prefix}{name}.")
        elif not name.startswith("_"):
            yield f"{prefix}{name}"


def default_of(one: Field[Any]) -> Any:
    """A field's default, as the spec holds it."""
    value = one.default_factory() if one.default_factory is not MISSING else one.default
    return value.value if isinstance(value, Enum) else value


def test_every_key_reaches_the_nodes_or_stays_by_intent() -> None:
    """A key of the schema is a field of the spec, is worked into one, or is named as the command's own."""
    known = {f.name for f in fields(RunSpec)}
    lost = [
        key
        for key in keys(schema.Job)
        if key not in NESTED and key not in DERIVED and not key.startswith(COMMAND_ONLY)
        if key.rpartition(".")[0] not in SECTIONS or key.rpartition(".")[2] not in known
    ]

    assert lost == []


def test_every_field_of_the_spec_has_a_source() -> None:
    """A field of the spec comes from a key of the job, or is named as the plan's own; no table names a key that is gone."""
    given = set(keys(schema.Job))
    from_keys = {key.rpartition(".")[2] for key in given if key.rpartition(".")[0] in SECTIONS} | {"ddp"}

    assert {f.name for f in fields(RunSpec)} - from_keys - set(DERIVED.values()) - set(OWN) == set()
    assert set(DERIVED) <= given
    assert [name for name in COMMAND_ONLY if not any(key.startswith(name) for key in given)] == []


@pytest.mark.parametrize("section", NESTED)
def test_sections_are_alike(section: str) -> None:
    """A section that the spec holds as a whole has the same keys and defaults there."""
    declared, projected = NESTED[section]

    assert {f.name: default_of(f) for f in fields(declared)} == {f.name: default_of(f) for f in fields(projected)}


def test_keys_of_the_same_name_have_the_same_default() -> None:
    """Where both declare a default, it is the same one."""
    of_spec = {f.name: default_of(f) for f in fields(RunSpec)}
    differ = [
        f.name
        for part in (schema.Job, schema.Resources, schema.Distributed)
        for f in fields(part)
        if f.name in of_spec and f.name not in ("name", "after", "trackers", "notify", "ddp", "checkpoint", "restart")
        if of_spec[f.name] is not MISSING and of_spec[f.name] != default_of(f)
    ]

    assert differ == []
