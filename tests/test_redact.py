"""Secrets are taken out of text, and ordinary code is left as it is."""

from __future__ import annotations

import pytest

from launcher.redact import holds_secret, redact, secret_name

SECRETS = {
    'API_KEY = "sk-live-abcdef123456"': "sk-live-abcdef123456",
    "wandb_api_key: 0123456789abcdef": "0123456789abcdef",
    "https://ann:hunter22@example.org/repo.git": "hunter22",
    "https://0123456789abcdef@example.org/repo.git": "0123456789abcdef",
    "password='correct horse'": "correct horse",
    "x = ghp_abcdefghijklmnopqrst123": "ghp_abcdefghijklmnopqrst123",
    "aws AKIAABCDEFGHIJKLMNOPQRS ok": "AKIAABCDEFGHIJKLMNOP",
    "left over: AKIAABCDEFGHIJKLMNOPQRS": "QRS",
    "x = glpat-abcdefghijklmnopqrstuvwx": "uvwx",
    "x = glpat-abcdefghijklmnop": "abcdefghijklmnop",
    "x = sk_live_abcdefghijklmnopqrst": "abcdefghijklmnopqrst",
    "x = xoxb_1234567890-abc": "1234567890",
    "x = hf_abcdefghijklmnopqrst": "abcdefghijklmnopqrst",
    "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJhbm4ifQ.c2lnbmF0dXJl": "eyJhbGciOiJIUzI1NiJ9",
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


def test_names_of_secrets_are_told_from_names_of_settings() -> None:
    """A variable whose last words name a secret holds one; a tokenizer, a count of tokens and a file of keys do not."""
    assert all(
        map(
            secret_name,
            ["WANDB_API_KEY", "HF_TOKEN", "SLURM_JWT", "password", "AWS_SECRET_ACCESS_KEY", "my_passphrase"],
        )
    )
    assert not any(
        map(secret_name, ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEY_FILE", "SECRETARY", "JWTS", "BUCKET"])
    )


def test_a_text_that_holds_a_secret_is_told_from_one_that_has_a_placeholder() -> None:
    """An address with a password, a token and a private key are secrets; a password from a variable and a user's name are not."""
    assert holds_secret("postgres://ann:hunter22@db/x")
    assert holds_secret("-----BEGIN RSA PRIVATE KEY-----")
    assert holds_secret(f"hf_{'aB1' * 11}")
    assert not any(
        map(holds_secret, ["https://ann:$PW@db/x", "https://ann@db/x", "sk-learn", "hf_transfer", "eyJ.eyJ"])
    )
