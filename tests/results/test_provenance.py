"""The recorded command line contains no secrets."""

import pytest

from raybench.spec.text import redact

SECRET = "hunter2,x=1:y"
HIDDEN = (
    *(f"token={SECRET}", f"fixed.hf_token={SECRET}", f"a.db_passwd={SECRET}"),
    *(f"MY_SECRET={SECRET}", f"x.client_secret_value={SECRET}", f"apikey={SECRET}"),
    *(f"x.API-KEY={SECRET}", f"credentials={SECRET}", f"aws.access_key_id={SECRET}"),
    *(f"passphrase = {SECRET}", f"dataset={{name: digits, token: {SECRET}}}"),
    *(f'dataset={{"password": "{SECRET}"}}', f"--set=token={SECRET}", f"--api-key={SECRET}"),
    *("https://user:hunter2,x1:y@host/x", "workload=s3://me:hunter2,x1:y@host/x"),
    "postgresql+psycopg://hunter2@host",
)
SHOWN = ["space.framework=[torch]", "fixed.num_tokens=512", "tokenizer=bpe", "secrets/space.yaml"]
SHOWN += ["http://host:8265", "--address=ray://head:10001", "passes=3"]


def test_values_of_secret_keys_and_flags_are_redacted():
    for argument in HIDDEN:
        (shown,) = redact([argument], {})
        assert "hunter2" not in shown
        assert "***" in shown
    for flag in ("--api-key", "--hf-token"):
        assert redact([flag, SECRET, "next"], {}) == [flag, "***", "next"]
    assert redact(SHOWN, {"HOME": "/root", "RAY_AUTH_MODE": "token", "PWD": SHOWN[0]}) == SHOWN


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "ENC_KEY"])
def test_values_of_secret_variables_are_redacted(name):
    arguments = ["--set", "workload=m:C?k=s3cr3t!", "--out", "s3cr3t!", "as3cr3t!b"]
    shown = redact(arguments, {name: "s3cr3t!", "OTHER_TOKEN": "abc", "EMPTY_TOKEN": ""})
    assert shown == ["--set", "workload=m:C?k=***", "--out", "***", "a***b"]
    assert redact(["abcdefghi"], {"A_TOKEN": "abcdef", "B_TOKEN": "abcdefghi"}) == ["***"]
