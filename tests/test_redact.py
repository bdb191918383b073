"""Secrets are taken out of text, and ordinary code is left as it is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.redact import REDACTED, holds_secret, redact, redact_texts, redact_values, redact_words, secret_name

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
    "curl --api-key abcd1234efgh https://host": "abcd1234efgh",
    "args:\n- --password\n- hunter22x\n": "hunter22x",
    'args: ["--hf-token", "abcd1234efgh"]': "abcd1234efgh",
    "x-eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJhbm4ifQ.c2lnbmF0dXJl": "eyJhbGciOiJIUzI1NiJ9",
    "Authorization: Bearer abcdefghij.kl": "abcdefghij",
    'headers={"Authorization": "token abcdefghijkl"}': "abcdefghijkl",
    "https://ann:pa@ss@host/x": "ss@host",
    "https://x.blob/y?sv=1&sig=abc%2Bdef&se=2": "abc",
    "https://hooks.slack.com/services/T0/B0/xyz": "xyz",
    "MYSQL_PWD: abc123def": "abc123def",
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nMIIEowIBAAKCAQEA\nMIIEowIBAAKCAQEA\nab==\n-----END RSA PRIVATE KEY-----": "MII",
    "+-----BEGIN PRIVATE KEY-----\n+MIIEowIBAAKCAQEA1234\n+-----END PRIVATE KEY-----\n": "MII",
    'key = "-----BEGIN PRIVATE KEY-----\\nMIIEowIBAAKCAQEA1234\\n-----END PRIVATE KEY-----"': "MII",
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
        "tokens_per_second: 1.23e-05",
        "special_tokens_map=/data/v1/map.json",
        "token=tensor(5,device='cuda:0')",
        "eos_token = '<|endoftext|>'",
        "commit 0123456789abcdef0123",
        'parser.add_argument("--token", "-t", help="the token")',
        'click.option("--token", "token_name")',
    ],
)
def test_code_is_left_as_it_is(text: str) -> None:
    """A patch must stay readable: ordinary code is no secret."""
    assert redact(text) == text


def test_known_values_are_taken_out_the_longest_first() -> None:
    """A passed secret never reaches the history, one that holds another included; "x" would make holes everywhere."""
    text = redact("GET https://ann:hunter22@host/x?k=abcd1234&s=abcd failed", ["abcd", "abcd1234", "x", ""])

    assert text == "GET https://<redacted>@host/x?k=<redacted>&s=<redacted> failed"


PASSWORD = """pa'ss\\w0rd"xyz99"""
KEY = "-----BEGIN KEY-----\n" + "\n".join(f"line{n:02d}abcdefgh" for n in range(40)) + "\n-----END KEY-----\n"


@pytest.mark.parametrize(
    "shown", [repr, json.dumps, lambda s: repr([s]), lambda s: repr(f"x'{s}"), lambda s: repr(f'x"{s}')]
)
@pytest.mark.parametrize("secret", [PASSWORD, "pa'ss99word", 'pa"ss99word', "back\\slash99", KEY], ids=repr)
def test_a_known_value_is_found_as_python_and_json_quote_it(secret: str, shown: Callable[[str], str]) -> None:
    """`KeyError` shows the repr of its key, `{x!r}` that of a part, a library JSON: no piece of the value stays."""
    left = redact(f"cannot open {shown(secret)}", [secret]).replace(REDACTED, "")

    assert not re.search(r"\w{4}\d{2}|99|slash|line|KEY", left), left


def test_a_value_of_several_lines_is_found_line_by_line() -> None:
    """Who logs it puts a prefix before each line, or drops blanks and what is around it; its short lines are ordinary words."""
    said = "\n".join(f"[rank0]: {line.strip()}" for line in f"{KEY}\n  {KEY}".splitlines() if line) + "\nmain"

    assert set(redact(said, [f"{KEY}\n\n  indented value  \nmain"]).splitlines()) == {f"[rank0]: {REDACTED}", "main"}


def test_a_text_is_cut_after_its_secrets_are_gone() -> None:
    """Wherever the text is cut, no beginning of a secret stays, of a known value or of a known form."""
    for before in range(60, 101):
        for secret, known in (("hunter22-hunter22", True), ("ghp_abcdefghijklmnopqrst", False)):
            text = redact(f"{'x' * before} {secret} and on", [secret] * known, most=100)
            assert len(text) == 100 or not text.endswith("x")
            assert "hunter" not in text
            assert "ghp" not in text
    assert redact("short", most=100) == "short"


def test_names_of_secrets_are_told_from_names_of_settings() -> None:
    """A variable whose last words name a secret holds one; a tokenizer, a count of tokens and a file of keys do not."""
    assert all(
        map(
            secret_name,
            [
                "WANDB_API_KEY",
                "HF_TOKEN",
                "SLURM_JWT",
                "password",
                "AWS_SECRET_ACCESS_KEY",
                "my_passphrase",
                "MYSQL_PWD",
                "OPENAI_KEY",
            ],
        )
    )
    assert not any(
        map(
            secret_name,
            [
                "TOKENIZERS_PARALLELISM",
                "MAX_TOKENS",
                "KEY_FILE",
                "SECRETARY",
                "JWTS",
                "BUCKET",
                "PWD",
                "pad_token",
                "first_pass",
            ],
        )
    )


def test_a_text_that_holds_a_secret_is_told_from_one_that_has_a_placeholder() -> None:
    """An address with a password, a token and a private key are secrets; a password from a variable and a user's name are not."""
    assert holds_secret("postgres://ann:hunter22@db/x")
    assert holds_secret("-----BEGIN RSA PRIVATE KEY-----")
    assert holds_secret(f"hf_{'aB1' * 11}")
    assert not any(
        map(holds_secret, ["https://ann:$PW@db/x", "https://ann@db/x", "sk-learn", "hf_transfer", "eyJ.eyJ"])
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["x.py", "--password", "hunter2", "--lr", "1"], ["x.py", "--password", REDACTED, "--lr", "1"]),
        (["--api-key=X", "-token=X", "wandb.api_key=X"], [f"--api-key={REDACTED}", f"-token={REDACTED}", f"wandb.api_key={REDACTED}"]),
        (["+params.token=X", "args=[--password,hunter2]"], [f"+params.token={REDACTED}", f"args=[--password,{REDACTED}]"]),
        (["--use-token", "--lr", "1"], ["--use-token", "--lr", "1"]),
        (["--tokenizer", "bert", "--token-file", "/x"], ["--tokenizer", "bert", "--token-file", "/x"]),
    ],
)  # fmt: skip
def test_the_name_of_an_argument_tells_its_secret(words: list[str], shown: list[str]) -> None:
    """What follows an option whose name tells of a secret is one, however short; another option is none."""
    assert redact_words(words) == shown


def test_values_are_redacted_by_key_by_option_and_by_form() -> None:
    """Below a telling key, behind a telling option and in any text; numbers, too. The rest, and the types, stay."""
    values = {"params": {"db_password": 123456, "lr": 0.1, "names": ["a", 1, None]}, "args": ["--password", 42, "--n", 3, True],
              "setup": ["curl -u https://ann:hunter22@host"], "api_key": ""}  # fmt: skip

    assert redact_values(values) == {
        "params": {"db_password": REDACTED, "lr": 0.1, "names": ["a", 1, None]}, "args": ["--password", REDACTED, "--n", 3, True],
        "setup": [f"curl -u https://{REDACTED}@host"], "api_key": "",
    }  # fmt: skip


PIECES = ["0123456789abcdef", "token", "token=", "token='", 'token="=', "-eyJaaaaaaaa", "eyJaaaaaaaa.", "a+b.", "://a:", "token ", " ",
          "--token ", "--token - ", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----\n",
          "\n+AAAAAAAAAAAAAAAA", "://a@", "bearer ", "&sig=", "_", "-", "secret_key", "-sk-", "token : "]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_the_time_grows_with_the_text_and_no_faster(piece: str) -> None:
    """Eight times the text takes about eight times as long, not 64 or 512 times: a line of a log is a stranger's text."""

    def spent(size: int) -> float:
        text = (piece * size)[:size]
        return min(_seconds(lambda: (redact(text), holds_secret(text), secret_name(text))) for _ in range(3))

    assert spent(8_000) < 30 * max(spent(1_000), 0.0005)


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@examples(200)
@given(
    st.lists(
        st.sampled_from([*PIECES, "x", "1", "\n", "=", "\\", "[", "\ud800"]) | st.text(max_size=5), max_size=60
    ).map("".join)
)
def test_any_text_is_redacted(text: str) -> None:
    """Whatever the text, nothing is raised, nothing is added but the mark, and a word stays a word."""
    shown = redact(text)

    assert all(part in text for part in shown.split(REDACTED))
    assert len(redact_words(text.split(" "))) == len(text.split(" "))


def test_all_below_a_telling_key_and_all_texts_of_a_message() -> None:
    """A mapping or a list below "password" holds nothing else; a message is cut in each of its texts, and keeps its form."""
    assert redact_values({"password": {"value": "x", "n": [1]}, "secrets": ["y"]}) == {
        "password": {"value": REDACTED, "n": [REDACTED]}, "secrets": [REDACTED],
    }  # fmt: skip
    message = {"message": "no: abcd1234", "frames": [{"line": 3, "code": "get('abcd1234')"}], "step": None}
    assert redact_texts(message, ["abcd1234"]) == {
        "message": f"no: {REDACTED}", "frames": [{"line": 3, "code": f"get('{REDACTED}')"}], "step": None,
    }  # fmt: skip
