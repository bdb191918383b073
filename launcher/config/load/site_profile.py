"""Read site profiles: defaults for every job of a site or user, and keys that an administrator has locked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from launcher.config.document.source import (
    FILE_BYTES,
    Document,
    Origin,
    Problem,
    join,
    read_yaml,
    too_large,
    value_text,
)
from launcher.config.document.validation import did_you_mean, keys_at, suggestion
from launcher.errors import ConfigError
from launcher.frozen import frozen
from launcher.opening import open_regular
from launcher.ownership import home, other_writer

ADMIN_PROFILE = Path("/etc/launcher/site.yaml")


@frozen(kw_only=True)
class SiteProfile:
    """The keys of a site profile beside defaults of job keys; later profiles override earlier ones."""

    runs_dir: str | None = None
    """Directory of runs when neither $LAUNCHER_RUNS_DIR nor the job sets one. It may contain $USER and other variables."""
    debug_partition: str | None = None
    """Partition for `launcher dry-run --slurm` and `launcher doctor --probe`."""
    gpu_request: str = "gpus-per-node"
    """How to request GPUs: gpus-per-node or gres."""
    locked: tuple[str, ...] = ()
    """Job keys that nothing after the profile may change. A section locks all its keys."""


@dataclass
class Layer:
    """One source of job keys: a site profile, the job file or the command line."""

    source: str
    document: Document
    locked: tuple[str, ...] = ()


def user_profile(environ: Mapping[str, str] = os.environ) -> Path:
    """Return where this user's own profile is or would be."""
    return Path(environ.get("XDG_CONFIG_HOME") or home() / ".config") / "launcher" / "site.yaml"


def site_paths(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """List the profiles of this machine and user, weakest first; the file of $LAUNCHER_SITE must exist."""
    chosen = Path(os.path.expanduser(environ.get("LAUNCHER_SITE", "")))
    paths = (ADMIN_PROFILE, chosen, user_profile(environ))
    return [path for path in paths if os.path.isfile(path) or path == chosen != Path()]


def load_site(sites: list[Path] | None = None) -> SiteProfile:
    """Return the merged profile of ``sites`` (default: this machine's). Raises ConfigError."""
    profile, layers = read_layers(site_paths() if sites is None else sites)
    problems = [p for layer in layers for p in layer.document.problems]
    if problems:
        raise ConfigError([f"{p.origin}: {p.path + ': ' if p.path else ''}{p.message}" for p in problems])
    return profile


def read_layers(paths: list[Path]) -> tuple[SiteProfile, list[Layer]]:
    """Return the merged profile and a layer of job keys per file; faults are problems of the layers' documents."""
    merged: dict[str, Any] = {}
    locked: list[str] = []
    layers = []
    for path in paths:
        document = read_document(path)
        own = _take_own(document)
        locked += own.pop("locked", ())
        merged.update(own)
        layers.append(Layer(str(path), document, tuple(locked)))
    return SiteProfile(**merged, locked=tuple(dict.fromkeys(locked))), layers


def read_document(path: Path, most: int = FILE_BYTES) -> Document:
    """Read a YAML file whose top is a mapping; a file that cannot be read, or is larger than ``most`` bytes, is a problem."""
    source = str(path)
    start = Origin(source, 1, 1, 1, 1)
    try:
        with open(open_regular(path, follow=True), "rb") as f:  # a pipe or a device may never end
            data, writer = f.read(most + 1), other_writer(f.fileno(), os.fstat(f.fileno()))
        if len(data) > most:
            return Document({}, problems=[Problem("", too_large(most), origin=start)])
        document = read_yaml(data.decode("utf-8"), source, most)
        document.writer = writer
    except UnicodeDecodeError as error:
        return Document({}, problems=[Problem("", f"the file is not UTF-8 text (byte {error.start})", origin=start)])
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        if isinstance(error, FileNotFoundError):
            near = [file.name for end in ("yaml", "yml") for file in path.parent.glob(f"*.{end}")]
            said = f"file not found{did_you_mean(path.name, near)}"
        return Document({}, problems=[Problem("", said, origin=Origin(source))])
    if not isinstance(document.data, dict):
        if document.data is not None:
            said = f"the file must be a mapping of keys to values, not {value_text(document.data)}"
            document.problems.append(Problem("", said, origin=start))
        document.data = {}
    return document


def _take_own(document: Document) -> dict[str, Any]:
    """Remove the profile's own keys from the document and return those that are right."""
    own = {}
    for name in [f.name for f in fields(SiteProfile) if f.name in document.data]:
        value = document.data.pop(name)
        if said := _wrong_locks(value) if name == "locked" else _wrong_text(name, value):
            document.problems.append(Problem(name, said, "value", document.origins.get(name)))
        else:
            own[name] = value
    return own


def _wrong_text(name: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return f"must be text, not {value_text(value)}"
    if name == "gpu_request" and value not in ("gpus-per-node", "gres"):
        return f"must be gpus-per-node or gres, not {value_text(value)}"
    return None


def _wrong_locks(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        return f"must be a list of job keys, such as [slurm.account], not {value_text(value)}"
    for name in value:
        above, _, key = name.rpartition(".")
        free = above.split(".")[0] in ("params", "sweep") or above in ("slurm.extra", "environment.variables")
        if not free and key not in (known := keys_at(above)):
            return f'unknown job key "{name}"{suggestion(name, [join(above, one) for one in known])}'
    return None
