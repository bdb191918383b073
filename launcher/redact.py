"""What is a secret, by its name or its form; and text without it, before it is written or shown.

Whoever can write a line of a log chooses the text, so every pattern here takes time in proportion to it: a run of characters is
entered at its beginning only (a look behind), and ends at a character that begins no other run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

REDACTED = "<redacted>"
_SHORTEST = 4
_SHORTEST_LINE = 8
_WORD = (
    r"(?:(?:api|access|private|encryption|signing|account|openai)[_-]?key|secrets?(?:[_-]?key)?|token|passw(?:or)?ds?|passphrase"
    r"|credentials?|jwt|(?:db|my|mysql|pg|postgres|redis|smtp|mail|admin|root|user|ftp|proxy)[_-](?:pass|pwd)|(?:gh|github|gitlab)[_-]pat)"
)
_NAME = re.compile(rf"(?i)(?:.*[_.-])?{_WORD}")
# Of a language model: pad_token, special_tokens_map; a rate, a place.
_ORDINARY = re.compile(
    r"(?i)(?:.*[_.-])?(?:pad|bos|eos|unk|mask|sep|cls|image|special|start|stop|end)_token|.*[_-](?:map|file|path|dir|per_second|per_s)"
)
# "token" but not "tokenizer", "api_key" but not "key=lambda"; numbers and short words are no secrets.
_TELLING = re.compile(rf"(?i){_WORD}(?!iz)")
_SET = re.compile(r"(?<![\w.-])(?P<name>[\w.-]+)(?P<sep>[\"']?\s*[:=]\s*)")
_OPTION = re.compile(r"(?<![\w.-])--?(?P<name>[A-Za-z][\w.-]*)(?P<sep>[\"']?(?:,\s*|\s+)(?:-\s+)?[\"']?)(?!-)")
_QUOTED = re.compile(r"\"[^\"]{6,}\"|'[^']{6,}'")
_BARE = re.compile(r"[^\s,;\"']+")
_NUMBER_OR_CODE = re.compile(r"[+-]?[\d.]+(?:[eE][+-]?\d+)?\Z|\w+\(")
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"(?i)[a-z]")
_SHORTEST_BARE = 8
_BETWEEN = re.compile(r"([\s,\[\]\"']+)")
# user:password@ and token@ alike; "git@" of "ssh://git@host" is a user's name, and no secret.
_IN_URL = re.compile(r"://(?!git@)[^/\s]+@")
_HEADER = re.compile(
    r"(?i)\b(?P<before>authorization[\"']?[:=] ?[\"']?(?:bearer|basic|token) |bearer )(?=[^\s\"',]{8})[^\s\"',]+"
)
_SIGNED = re.compile(r"(?i)(?P<before>[?&](?:sig|x-(?:amz|goog)-(?:signature|security-token|credential))=)[^\s&\"']+")
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s:@$]+@")
# GitHub, Hugging Face, OpenAI, AWS, GitLab, Slack, Google, npm and PyPI publish these forms for scanners; the address of a webhook is
# all that one needs to post to it. Of a private key the lines after its first one are cut, too.
_TOKEN = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{22,}|hf_[A-Za-z0-9]{16,}|sk[-_][\w-]{20,}|AKIA[0-9A-Z]{16,}"
    r"|glpat-[\w-]{16,}|xox[abprs][-_][\w-]{10,}|xapp-[\w-]{10,}|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-AgE[\w-]{16,}"
    r"|hooks\.slack\.com/services/[\w/]+|discord(?:app)?\.com/api/webhooks/[\w/-]+)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY(?:-----(?:(?:\s|\\[nr])+(?:Proc-Type|DEK-Info):[^\n]*)*"
    r"(?:(?:\s|\\[nr])+[+\"' ]?[A-Za-z0-9+/=]{16,})*"
    r"(?:(?:(?:\s|\\[nr])+[+\"' ]?[A-Za-z0-9+/=]{1,15})?(?:\s|\\[nr])+[+\"' ]?-----END [A-Z ]*PRIVATE KEY-----)?)?"
)
# A JSON web token: eyJ is '{"'. That a dot and a second part follow is asked once, where the first part's run begins.
_JWT = re.compile(r"(?<![\w-])(?=[\w-]+\.eyJ[\w-]{8,}\.)(?P<before>[\w-]*?)\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*")


def secret_name(name: str) -> bool:
    """Tell whether a variable or an option of this name holds a secret, as WANDB_API_KEY, SLURM_JWT and db-password do."""
    return bool(_NAME.fullmatch(name)) and not _ORDINARY.fullmatch(name)


def holds_secret(text: str) -> bool:
    """Tell whether ``text`` has a token of a known form, a private key, or an address with a password."""
    return bool(_TOKEN.search(text) or _JWT.search(text) or _PASSWORD_IN_URL.search(text))


def redact(text: str, secrets: Iterable[str] = (), *, most: int | None = None) -> str:
    """Replace ``secrets``, and what looks like a secret: assigned to a telling name, in an address, of a known form.

    Of ``secrets``, those of fewer than 4 characters stay: they occur in ordinary words. ``most``: characters of the result that
    are returned. Who cuts a text before leaves parts of secrets in it, which nothing finds.
    """
    for form in _forms(tuple(secrets)):
        text = text.replace(form, REDACTED)
    text = text[: most and 2 * most]  # the patterns take a second for some megabytes
    text = _without_values(_without_values(text, _SET, _tells), _OPTION, secret_name)
    text = _IN_URL.sub(f"://{REDACTED}@", text)
    text = _SIGNED.sub(rf"\g<before>{REDACTED}", _HEADER.sub(rf"\g<before>{REDACTED}", text))
    return _TOKEN.sub(REDACTED, _JWT.sub(rf"\g<before>{REDACTED}", text))[:most]


@lru_cache(maxsize=4)  # a message has many texts
def _forms(secrets: tuple[str, ...]) -> list[str]:
    """Return the texts that show ``secrets``, the longest first: each as it is, as Python and JSON quote it, and its longer lines."""
    shown = {part for secret in secrets if len(part := secret.strip()) >= _SHORTEST}
    shown |= {part for secret in shown for line in secret.splitlines() if len(part := line.strip()) >= _SHORTEST_LINE}
    # Python's quotes depend on those of the whole text that it shows: with both kinds in it, it escapes one.
    quoted = {q for s in shown for q in (repr(s)[1:-1], repr(f'"{s}')[2:-1], json.dumps(s)[1:-1])}
    return sorted(shown | quoted, key=len, reverse=True)


def redact_texts(value: Any, secrets: Sequence[str] = ()) -> Any:
    """Return a copy of a message with `redact` applied to each of its texts."""
    if isinstance(value, dict):
        return {key: redact_texts(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list):
        return [redact_texts(inner, secrets) for inner in value]
    return redact(value, secrets) if isinstance(value, str) else value


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
        return {k: _all_redacted(v) if secret_name(str(k)) else redact_values(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        words = redact_words([str(item) if _is_word(item) else "" for item in value])
        return [
            word if isinstance(item, str) or word == REDACTED else redact_values(item)
            for item, word in zip(value, words, strict=True)
        ]
    return redact(value) if isinstance(value, str) else value


def _all_redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _all_redacted(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_all_redacted(v) for v in value]
    return REDACTED if _is_word(value) else value


def _tells(name: str) -> bool:
    return bool(_TELLING.search(name)) and not _ORDINARY.fullmatch(name)


def _is_word(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != ""


def _without_values(text: str, names: re.Pattern[str], telling: Callable[[str], object]) -> str:
    """Replace the value after each name that is ``telling``, where the value is quoted or has letters and digits."""
    parts, done, ordinary_until = [], 0, 0
    for found in names.finditer(text):
        at = found.end()
        if found.start() < done or not telling(found["name"]):
            continue
        value = _QUOTED.match(text, at)
        if value is None and at >= ordinary_until and (value := _BARE.match(text, at)):
            bare = value[0]
            plain = len(bare) < _SHORTEST_BARE or not _DIGIT.search(bare) or not _LETTER.search(bare)
            if plain or _NUMBER_OR_CODE.match(bare):
                ordinary_until, value = value.end(), None  # nor is any end of it a secret: it is not looked at again
        if value is not None:
            parts += [text[done:at], REDACTED]
            done = value.end()
    return "".join([*parts, text[done:]])
