"""Secrets are taken out of text, and ordinary code is left as it is."""

from __future__ import annotations

import pytest

from launcher.run.redact import redact

SECRETS = {
    'API_KEY = "sk-live-abcdef123456"': "sk-live-abcdef123456",
    "wandb_api_key: 0123456789abcdef": "0123456789abcdef",
    "https://ann:hunter22@example.org/repo.git": "hunter22",
    "https://0123456789abcdef@example.org/repo.git": "0123456789abcdef",
    "password='correct horse'": "correct horse",
    "x = ghp_abcdefghijklmnopqrst123": "ghp_abcdefghijklmnopqrst123",
}


@pytest.mark.parametrize("text", sorted(SECRETS))
def test_secrets_are_taken_out(text: str) -> None:
    """What is assigned to a telling name, sits in an address or has a known form is not written down."""
    assert SECRETS[text] not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "sorted(x, key=lambda p: p.name)",
        "max_tokens=4096",
        "tokenizer = 'bert-base-uncased'",
        "lr: 3e-4",
        "ssh://git@host/x",
    ],
)
def test_code_is_left_as_it_is(text: str) -> None:
    """A patch must stay readable: ordinary code is no secret."""
    assert redact(text) == text


def test_known_values_are_taken_out_the_longest_first() -> None:
    """A passed secret never reaches the history, one that holds another included; "x" would make holes everywhere."""
    text = redact("GET https://ann:hunter22@host/x?k=abcd1234&s=abcd failed", ["abcd", "abcd1234", "x", ""])

    assert text == "GET https://<redacted>@host/x?k=<redacted>&s=<redacted> failed"
