"""What is a secret, by its name or its form; and text without it, before it is written or shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "<redacted>"
_SHORTEST = 4
_WORD = r"(?:(?:api|access|private)_?key|secret(?:_?key)?|token|passw(?:or)?d|passphrase|credentials?|jwt)"
_NAME = re.compile(rf"(?i)(?:.*_)?{_WORD}")
# "token" but not "tokenizer", "api_key" but not "key=lambda"; numbers and short words are no secrets.
_ASSIGNMENT = re.compile(
    rf"(?i)(?P<name>[\w.-]*{_WORD}(?!iz)[\w.-]*)(?P<sep>[\"']?\s*[:=]\s*)"
    r"(?P<value>\"[^\"]{6,}\"|'[^']{6,}'|(?=[^\s,;\"']*\d)(?=[^\s,;\"']*[a-z])[^\s,;\"']{8,})"
)
# user:password@ and token@ alike; "git@" of "ssh://git@host" is a user's name, and no secret.
_IN_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?!git@)[^/@\s]+@")
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s:@$]+@")
# GitHub, Hugging Face, OpenAI, AWS, GitLab and Slack publish these forms for scanners; eyJ is '{"' of a JSON web token.
_TOKEN = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{22,}|hf_[A-Za-z0-9]{16,}|sk[-_][\w-]{20,}|AKIA[0-9A-Z]{16,}"
    r"|glpat-[\w-]{16,}|xox[abprs][-_][\w-]{10,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)|-----BEGIN [A-Z ]*PRIVATE KEY"
)


def secret_name(name: str) -> bool:
    """Tell whether a variable of this name holds a secret, as WANDB_API_KEY and SLURM_JWT do."""
    return bool(_NAME.fullmatch(name))


def holds_secret(text: str) -> bool:
    """Tell whether ``text`` has a token of a known form, a private key, or an address with a password."""
    return bool(_TOKEN.search(text) or _PASSWORD_IN_URL.search(text))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace ``secrets``, and what looks like a secret: assigned to a telling name, in an address, of a known form.

    Of ``secrets``, those of fewer than 4 characters stay: they occur in ordinary words.
    """
    for secret in sorted((s for s in secrets if len(s) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = _ASSIGNMENT.sub(lambda m: f"{m['name']}{m['sep']}{REDACTED}", text)
    text = _IN_URL.sub(lambda m: f"{m['scheme']}{REDACTED}@", text)
    return _TOKEN.sub(REDACTED, text)
