"""Remove secrets from text before it is written or shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["REDACTED", "redact"]

REDACTED = "<redacted>"
_SHORTEST = 4
# "token" but not "tokenizer", "api_key" but not "key=lambda"; numbers and short words are no secrets.
_TELLING = (
    r"[A-Za-z0-9_.-]*(?:api_?key|access_?key|private_?key|secret|token(?!iz)|passw(?:or)?d|credential)[A-Za-z0-9_.-]*"
)
_ASSIGNMENT = re.compile(
    rf"(?i)(?P<name>{_TELLING})(?P<sep>[\"']?\s*[:=]\s*)"
    r"(?P<value>\"[^\"]{6,}\"|'[^']{6,}'|(?=[^\s,;\"']*\d)(?=[^\s,;\"']*[a-z])[^\s,;\"']{8,})"
)
# user:password@ and token@ alike; "git@" of "ssh://git@host" is a user's name, and no secret.
_IN_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?!git@)[^/@\s]+@")
_KNOWN_TOKEN = re.compile(r"\b(?:ghp|gho|github_pat|hf|glpat|xox[abp]|sk|AKIA)[_-]?[A-Za-z0-9_-]{16,}")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace ``secrets``, and what looks like a secret: assigned to a telling name, in an address, of a known form.

    Of ``secrets``, those of fewer than 4 characters stay: they occur in ordinary words.
    """
    for secret in sorted((s for s in secrets if len(s) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = _ASSIGNMENT.sub(lambda m: f"{m['name']}{m['sep']}{REDACTED}", text)
    text = _IN_URL.sub(lambda m: f"{m['scheme']}{REDACTED}@", text)
    return _KNOWN_TOKEN.sub(REDACTED, text)
