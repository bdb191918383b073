"""Numbers, times and lists as people and programs read them."""

from __future__ import annotations

import json
import math

from launcher.report import formats


def test_json_lists_hold_an_object_a_line_and_no_nan() -> None:
    """What `ls --json` prints is JSON that any reader takes, infinities and all, and that grep can be used on."""
    shown = formats.json_lines([{"run": "a", "metrics": {"loss": math.nan}}, {"run": "b"}])

    assert json.loads(shown) == [{"run": "a", "metrics": {"loss": "nan"}}, {"run": "b"}]
    assert len(shown.splitlines()) == 4
    assert json.loads(formats.json_lines([])) == []
