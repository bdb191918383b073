"""Make the schema's pages: ``docs/reference.md`` and a JSON Schema for editors, both from schema.py and site_profile.py."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from launcher.config.check.rules import OWNED_OPTIONS
from launcher.config.document import schema
from launcher.config.document.schema import Job
from launcher.config.document.validation import key_name
from launcher.config.load import site_profile
from launcher.config.load.sweep import SWEPT

__all__ = ["field_docs", "json_schema", "json_schema_text", "page"]

_INTRO = """# Every key of a job file

Made from `launcher/config/document/schema.py` by `make docs`. `launcher schema > job.schema.json` writes the same for editors: with
`# yaml-language-server: $schema=job.schema.json` as its first line, an editor completes and checks a job file as you type.

Later sources override earlier ones: `/etc/launcher/site.yaml`, the profile that `$LAUNCHER_SITE` names,
`~/.config/launcher/site.yaml`, the job file, and `key.path=value` on the command line. Mappings merge, lists are replaced,
and `key=null` unsets an optional key. All errors are reported at once, as `file:line:column: key.path: what is wrong`.

`${params.x}` stands for another key of the job, `${oc.env:USER}` for an environment variable (for secrets use
`environment.pass`), `${run.dir}`, `${run.id}` and `${run.name}` for the run's own; `\\${` writes `${` itself
(`\\\\${` in double quotes).
Clock times and numbers with leading zeros need quotes.
An *extra* is an optional dependency: `pip install 'ddp-launcher[tensorboard]'` adds one to an installed launcher.
"""


def field_docs(module: Any, name: str) -> dict[str, str]:
    """The docstring under each field of a dataclass, by field name."""
    return _docs(module).get(name, {})


def _docs(module: Any) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = found.setdefault(node.name, {})
        for item, after in zip(node.body, node.body[1:], strict=False):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and isinstance(after, ast.Expr):
                text = ast.literal_eval(after.value)
                fields[item.target.id] = " ".join(str(text).split())
    return found


# --- for editors --------------------------------------------------------------------------------------------------------


def json_schema_text() -> str:
    """`json_schema` as the file that ``launcher schema`` prints."""
    return json.dumps(json_schema(), indent=1) + "\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema of a job file, every field described."""
    made = TypeAdapter(Job).json_schema()
    docs = _docs(schema)
    for name, section in {"Job": made, **made["$defs"]}.items():  # pydantic 2.12 leaves classes undescribed
        section.setdefault("description", inspect.getdoc(getattr(schema, name)))
    _describe(made, docs["Job"], made["$defs"])
    for name, section in made["$defs"].items():
        _describe(section, docs.get(name, {}), made["$defs"])
    for section in (made, *made["$defs"].values()):
        for prop in section.get("properties", {}).values():
            _allow_interpolation(prop)
    made["properties"]["sweep"] = _sweep_schema(docs["Job"]["sweep"])
    made["oneOf"] = [{"required": [key]} for key in ("task", "function", "script")]
    made["title"] = "A job of ddp-launcher"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _describe(section: dict[str, Any], docs: dict[str, str], defs: dict[str, Any]) -> None:
    section.pop("title", None)
    by_alias = {name.rstrip("_"): text for name, text in docs.items()}
    for name, prop in section.get("properties", {}).items():
        prop.pop("title", None)
        if name in by_alias:
            prop["description"] = by_alias[name]
        elif ref := next((o["$ref"] for o in (prop, *prop.get("anyOf", [])) if "$ref" in o), None):
            prop["description"] = defs[ref.rpartition("/")[2]]["description"]
        options = [o for o in prop.get("anyOf", []) if o.get("type") != "null"]
        if prop.get("default", 0) is None:
            del prop["default"]
            if len(options) == 1:
                prop.pop("anyOf")
                prop.update(options[0])


_INTERPOLATED = {"type": "string", "pattern": r"^\$\{.+\}$"}
_KEPT = ("description", "default")


def _allow_interpolation(prop: dict[str, Any]) -> None:
    """``nodes: ${params.n}`` is no fault before it is filled in; keys that take any text take that already."""
    value = {key: prop[key] for key in prop if key not in _KEPT}
    options = value.get("anyOf", [value])
    kinds = {o.get("type") for o in options if not {"enum", "pattern"} & {*o}}
    if (kinds & {"integer", "number", "boolean"} or any("enum" in o for o in options)) and "string" not in kinds:
        for key in value:
            del prop[key]
        prop["anyOf"] = [*options, _INTERPOLATED]


def _sweep_schema(text: str) -> dict[str, Any]:
    values = {
        "anyOf": [
            {"type": "array", "minItems": 1},
            {"type": "string", "pattern": "^range\\(.*\\)$"},
            {"type": "object"},
        ]
    }
    parallelism = {"type": "integer", "minimum": 1, "description": "Most points that run at the same time."}
    return {
        "type": "object",
        "description": text,
        "properties": {"array_parallelism": parallelism},
        "additionalProperties": values,
    }


# --- for people ---------------------------------------------------------------------------------------------------------


def page() -> str:
    """The reference page, Markdown."""
    docs = _docs(schema)
    text = [_INTRO, "## The job\n", _table(Job, docs["Job"], "")]
    for path, cls in _sections(Job, ""):
        text += [f"\n## {path}\n", f"{cls.__doc__}\n", _table(cls, docs[cls.__name__], path)]
    text.append(_site_part())
    text.append(_sweep_part())
    text.append(_extra_part())
    return "\n".join(text)


def _sections(cls: Any, above: str) -> list[tuple[str, Any]]:
    found = []
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        inner = _dataclass_in(hints[field.name])
        if inner is not None:
            path = f"{above}.{key_name(field)}" if above else key_name(field)
            found += [(path, inner), *_sections(inner, path)]
    return found


def _dataclass_in(hint: Any) -> Any:
    return next((o for o in (hint, *get_args(hint)) if dataclasses.is_dataclass(o)), None)


def _table(cls: Any, docs: dict[str, str], path: str) -> str:
    properties = TypeAdapter(cls).json_schema()
    lines = ["| key | is | default | means |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(cls):
        name = key_name(field)
        full = f"{path}.{name}" if path else name
        prop = properties["properties"].get(name, {})
        section = _dataclass_in(get_type_hints(cls)[field.name])
        kind = f"[a section](#{full.replace('.', '').lower()})" if section else _kind(prop, properties)
        lines.append(f"| `{name}` | {kind} | {_default(field)} | {_cell(docs.get(field.name) or section.__doc__)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _kind(prop: dict[str, Any], root: dict[str, Any]) -> str:
    if "$ref" in prop:
        prop = root["$defs"][prop["$ref"].rpartition("/")[2]]
    if "enum" in prop:
        return ", ".join(f"`{v}`" for v in prop["enum"])
    if "anyOf" in prop:
        kinds = dict.fromkeys(_kind(o, root) for o in prop["anyOf"] if o.get("type") != "null")
        return " or ".join(kinds)
    kind = prop.get("type")
    if kind == "array":
        return f"a list: {_kind(prop.get('items', {}), root)}"
    if kind == "object":
        return "a mapping"
    named = {"string": "text", "boolean": "`true` or `false`", "integer": "a whole number", "number": "a number"}
    return named.get(str(kind), "any value") + _bounds(prop)


def _bounds(prop: dict[str, Any]) -> str:
    low, above, high = prop.get("minimum"), prop.get("exclusiveMinimum"), prop.get("maximum")
    high = None if high is not None and high >= 2**31 - 1 else high
    if low is not None and high is not None:
        return f", {low} to {high}"
    if low is not None:
        return f", at least {low:g}"
    return f" above {above:g}" if above is not None else ""


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    if dataclasses.is_dataclass(value) or value is None or value in ([], {}):
        return ""
    value = getattr(value, "value", value)
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _site_part() -> str:
    docs = field_docs(site_profile, "SiteProfile")
    lines = [
        "\n## Site profiles\n",
        "A site profile sets defaults for any key of a job, and has these keys of its own. `launcher doctor --write-site` writes",
        "one; [slurm/site.yaml](../slurm/site.yaml) is an example. An administrator's profile can lock keys:",
        "`locked: [slurm.account, restart.max_total_hours]`.\n",
        "| key | default | means |",
        "| --- | --- | --- |",
    ]
    for field in dataclasses.fields(site_profile.SiteProfile):
        lines.append(
            f"| `{field.name}` | {_default(field) if field.default != () else ''} | {_cell(docs[field.name])} |"
        )
    return "\n".join(lines) + "\n"


def _sweep_part() -> str:
    keys = ", ".join(f"`{key}`" for key in SWEPT if key != "params")
    return (
        '\n## sweep\n\n`sweep: {params.lr: [0.1, 0.01], seed: "range(5)", array_parallelism: 4}` submits ten points as one array. '
        f"At most four\nrun at the same time. Keys below `params` can vary, and {keys}.\n"
        "Other keys cannot: all points share one sbatch script.\n"
        "On the command line: `--sweep params.lr=0.1,0.01`, once for each key. `launcher ls --sweep ID` compares the points,\n"
        "`launcher resubmit ID --failed` continues the failed ones.\n"
    )


def _extra_part() -> str:
    owned = ", ".join(f"`--{name}` ({key})" if key else f"`--{name}`" for name, key in sorted(OWNED_OPTIONS.items()))
    return (
        "\n## slurm.extra\n\nAny sbatch option without a key of its own, by its long name without dashes: "
        '`slurm: {extra: {wckey: vision, licenses: "matlab:1", contiguous: true}}`.\nNot allowed: '
        f"{owned}.\n"
    )
