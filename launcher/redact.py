"""What is a secret, by its name or its form; and text without it, before it is written or shown.

Whoever can write a line of a log chooses the text, so every pattern here takes time in proportion to it: a run of characters is
entered at its beginning only (a look behind), and ends at a character that begins no other run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

REDACTED = "<redacted>"
_SHORTEST = 4
_WORD = r"(?:(?:api|access|private)[_-]?key|secret(?:[_-]?key)?|token|passw(?:or)?d|passphrase|credentials?|jwt)"
_NAME = re.compile(rf"(?i)(?:.*[_.-])?{_WORD}")
# "token" but not "tokenizer", "api_key" but not "key=lambda"; numbers and short words are no secrets.
_TELLING = re.compile(rf"(?i){_WORD}(?!iz)")
_SET = re.compile(r"(?<![\w.-])(?P<name>[\w.-]+)(?P<sep>[\"']?\s*[:=]\s*)")
_OPTION = re.compile(r"(?<![\w.-])--?(?P<name>[A-Za-z][\w.-]*)(?P<sep>[\"']?(?:,\s*|\s+)(?:-\s+)?[\"']?)(?!-)")
_QUOTED = re.compile(r"\"[^\"]{6,}\"|'[^']{6,}'")
_BARE = re.compile(r"[^\s,;\"']+")
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"(?i)[a-z]")
_SHORTEST_BARE = 8
_BETWEEN = re.compile(r"([\s,\[\]\"']+)")
# user:password@ and token@ alike; "git@" of "ssh://git@host" is a user's name, and no secret.
_IN_URL = re.compile(r"://(?!git@)[^/@\s]+@")
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s:@$]+@")
# GitHub, Hugging Face, OpenAI, AWS, GitLab and Slack publish these forms for scanners.
_TOKEN = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{22,}|hf_[A-Za-z0-9]{16,}|sk[-_][\w-]{20,}|AKIA[0-9A-Z]{16,}"
    r"|glpat-[\w-]{16,}|xox[abprs][-_][\w-]{10,})|-----BEGIN [A-Z ]*PRIVATE KEY"
)
# A JSON web token: eyJ is '{"'. That a dot and a second part follow is asked once, where the first part's run begins.
_JWT = re.compile(r"(?<![\w-])(?=[\w-]+\.eyJ[\w-]{8,}\.)(?P<before>[\w-]*?)\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*")


def secret_name(name: str) -> bool:
    """Tell whether a variable or an option of this name holds a secret, as WANDB_API_KEY, SLURM_JWT and db-password do."""
    return bool(_NAME.fullmatch(name))


def holds_secret(text: str) -> bool:
    """Tell whether ``text`` has a token of a known form, a private key, or an address with a password."""
    return bool(_TOKEN.search(text) or _JWT.search(text) or _PASSWORD_IN_URL.search(text))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace ``secrets``, and what looks like a secret: assigned to a telling name, in an address, of a known form.

    Of ``secrets``, those of fewer than 4 characters stay: they occur in ordinary words.
    """
    for secret in sorted((s for s in secrets if len(s) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = _without_values(_without_values(text, _SET, _TELLING.search), _OPTION, _NAME.fullmatch)
    text = _IN_URL.sub(f"://{REDACTED}@", text)
    return _TOKEN.sub(REDACTED, _JWT.sub(rf"\g<before>{REDACTED}", text))


def redact_words(words: Sequence[str]) -> list[str]:
    """Return a command's words without secrets: ``--password X``, ``--api-key=X`` and ``a.token=X`` are told by the name alone."""
    result: list[str] = []
    telling = False
    for word in words:
        name, equals, value = word.partition("=")
        if telling and word and not word.startswith("-"):
            result.append(REDACTED)
        elif equals and secret_name(name.lstrip("-+~")):
            result.append(f"{name}={REDACTED}")
        elif equals and value.startswith("["):  # a list on the command line, such as args=[--password,X]
            parts = _BETWEEN.split(value)
            parts[::2] = redact_words(parts[::2])
            result.append(f"{name}={''.join(parts)}")
        else:
            result.append(redact(word))
        telling = not equals and word.startswith("-") and secret_name(word.lstrip("-"))
    return result


def redact_values(value: Any) -> Any:
    """Return a copy of plain values without secrets: below a telling key, in a list of words, in any text."""
    if isinstance(value, dict):
        return {k: REDACTED if _is_word(v) and secret_name(str(k)) else redact_values(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        words = redact_words([str(item) if _is_word(item) else "" for item in value])
        return [
            word if isinstance(item, str) or word == REDACTED else redact_values(item)
            for item, word in zip(value, words, strict=True)
        ]
    return redact(value) if isinstance(value, str) else value


def _is_word(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != ""


def _without_values(text: str, names: re.Pattern[str], telling: Any) -> str:
    """Replace the value behind each name that is ``telling``, where the value is quoted or has letters and digits."""
    parts, done, ordinary_until = [], 0, 0
    for found in names.finditer(text):
        at = found.end()
        if found.start() < done or not telling(found["name"]):
            continue
        value = _QUOTED.match(text, at)
        if value is None and at >= ordinary_until and (value := _BARE.match(text, at)):
            bare = value[0]
            if len(bare) < _SHORTEST_BARE or not _DIGIT.search(bare) or not _LETTER.search(bare):
                ordinary_until, value = value.end(), None  # nor is any end of it a secret: it is not looked at again
        if value is not None:
            parts += [text[done:at], REDACTED]
            done = value.end()
    return "".join([*parts, text[done:]])
