"""Events as tests write them: only the keys that matter."""

from __future__ import annotations

from typing import Any

from launcher.run import clock
from launcher.run.events import Event, parse_event


def an_event(type_: str, **values: Any) -> Event:
    """An event of ``type_`` as another version may have written it: with these keys alone, and the time of now."""
    return parse_event({"t": round(clock.now(), 4), "type": type_, **values}, [])
