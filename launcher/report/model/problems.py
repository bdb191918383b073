"""Say which of a run's files could not be read, so that a reader knows what a report lacks."""

from __future__ import annotations

from launcher.report import formats
from launcher.report.model.history import History
from launcher.run.files import Damage
from launcher.run.own_folder import mark_of_owner
from launcher.run.paths import SPEC_VERSION
from launcher.run.units import plural


def faults(h: History, *, active: bool) -> list[str]:
    """One sentence per file that is damaged, missing or of another version, and of a folder that others can write in.

    Empty for a whole run of one's own.

    ``active``: the run is pending or running, and a half-written last line is a line that is just being written.
    """
    told = {"": f"the run's folder: {mark}"} if (mark := mark_of_owner(h.paths.root)) else {}
    told |= {d.file: words for d in h.damage if (words := damage_in_words(d, active=active))}
    # Both are written before a run is submitted; every other file comes when there is something to say.
    for name, there in (("events.jsonl", h.events), ("spec.json", h.spec)):
        if not there:
            told.setdefault(name, f"{name}: missing or empty")
    version = h.spec.get("version")
    if h.spec and version != SPEC_VERSION:
        which = f"version {formats.clean(str(version), 20)}" if "version" in h.spec else "no version"
        told["version"] = f"spec.json: written by another launcher ({which}, this one writes {SPEC_VERSION})"
    return list(told.values())


def damage_in_words(damage: Damage, *, active: bool) -> str:
    """``events.jsonl: 3 lines could not be read``; "" for what is no fault."""
    if damage.why:
        return f"{damage.file}: could not be read ({damage.why})"
    lines = damage.lines + (damage.torn and not active)
    return f"{damage.file}: {plural(lines, 'line')} could not be read" if lines else ""


def shortened(told: list[str], most: int = 3) -> str:
    """All on one line, the first ``most`` of them."""
    more = len(told) - most
    return "; ".join(told[:most]) + (f"; and {more} more" if more > 0 else "")
