"""Text for screens and files: printable lines, labels of values, command lines, hidden secrets."""

import contextlib
import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote, quote_plus

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

SCRIPT = "raybench"
"""Name of the installed program; its commands also run as `python -m raybench.tune`."""
ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colors, cursor
    # The next line matches window titles and links.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"  # the rest: reset, character sets
)
LINE_ENDS = re.compile(r"(?<![ \t])[ \t]*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+[ \t]*")
# Control characters, and marks that change the direction of text.
INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NO_CHARACTER = re.compile(r"[\ud800-\udfff]")
DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|d|w|)\s*")
UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def seconds_of(text: str) -> float | None:
    """Convert text such as `90`, `90s`, `30min`, `2h`, `1d` or `8w` to seconds; return None for
    other text, and for a duration of 0."""
    match = DURATION.fullmatch(text)
    return float(match[1]) * UNITS[match[2]] or None if match else None


def clean(text: str) -> str:
    """Return `text` as a single line that is safe to print and to write as UTF-8.

    Line breaks and tabs become spaces; line breaks at both ends, escape sequences and control
    characters are removed. An unpaired surrogate (from a byte that was not valid UTF-8) becomes the
    replacement character U+FFFD.
    """
    if text.isprintable():  # the usual case
        return text
    text = ESCAPES.sub("", text)
    text = LINE_ENDS.sub(" ", text.strip("\n\r\v\f")).replace("\t", " ")
    return NO_CHARACTER.sub("\ufffd", INVISIBLE.sub("", text))


def clean_lines(text: str) -> str:
    """Return `text` with `clean` applied to every line."""
    return "\n".join(clean(line) for line in text.splitlines())


def command_line(name: str, *arguments: object, given: str | None = None) -> str:
    """Return a raybench command line, quoted for a shell.

    Args:
        name: Name of the command, such as `tune`.
        arguments: Arguments of the command.
        given: Command line whose form is used, `raybench tune` or `python -m raybench.tune`; by
            default the command line of this process.
    """
    words = split_command(given) if given is not None else [program()]
    first = words[:1] if words and _is_script(words[0]) else None
    program_words = [*first, name] if first else ["python", "-m", f"{SCRIPT}.{name}"]
    return shlex.join([*program_words, *map(str, arguments)])


def split_command(given: str) -> list[str]:
    """Return the words of a command line; [] if its quotes do not close."""
    try:
        return shlex.split(given)
    except ValueError:
        return []


def program() -> str:
    """Return the name under which a shell finds the program of this process: `raybench` if it is on
    the PATH, else its path."""
    path = sys.argv[0]
    is_on_path = _is_script(path) and shutil.which(SCRIPT) == path
    return SCRIPT if is_on_path else path


def _is_script(word: str) -> bool:
    return PurePath(word).stem == SCRIPT


def seconds_text(seconds: float) -> str:
    """Return seconds with two decimals, or with two significant digits below 0.1: `2.31`,
    `0.0047`."""
    decimals = 1 - math.floor(math.log10(seconds)) if 0 < seconds < 0.1 else 2
    return f"{seconds:.{decimals}f}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 run` or `2 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def file_name(text: str) -> str:
    """Return `text` as a portable file name of letters, digits, `_`, `.` and `-`."""
    return re.sub(r"[^\w.-]", "_", text, flags=re.ASCII).lstrip(".")[:100] or "_"


def shorten(text: str, length: int) -> str:
    """Shorten `text` to at most `length` characters by replacing its middle with `...`."""
    if len(text) <= length:
        return text
    tail = length // 3
    return f"{text[: length - tail - 3]}...{text[len(text) - tail :]}"


_WORDS = ("null", "none", "true", "false", "~", ".nan", ".inf", "-.inf", "+.inf")
_MARKS = frozenset("'\"[]{},")


def identity(value: Any) -> str:
    """Return a string that identifies a value: unlike with `==`, 1, 1.0, true and '1' differ."""
    return json.dumps(to_jsonable_python(value), sort_keys=True)


def short(value: object) -> str:
    """Return a value as text for a label: in YAML syntax, with three or four significant digits.

    Examples: `relu`, `null`, `true`, `1`, `1.0`, `'1'`, `[64,32]`, `{kernel:3,stride:1}`. A
    pydantic model, such as an augmentation, shows the keys that differ from their defaults:
    `random_crop(padding=8)`.
    """
    if isinstance(value, BaseModel):
        fields = value.model_dump(exclude_defaults=True)
        kind = fields.pop("kind", "")
        settings = ",".join(f"{key}={item}" for key, item in fields.items())
        return f"{kind}({settings})" if kind and settings else str(kind or settings)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(short, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{short(item)}' for key, item in value.items())}}}"
    if isinstance(value, float):
        return _number_text(value)
    if isinstance(value, str):
        return value if _is_word(value) else repr(value)
    return json.dumps(value)


def _number_text(value: float) -> str:
    text = f"{value:.3g}"
    if float(four := f"{value:.4g}") == value:
        text = four
    elif float(text).is_integer():  # show 0.99995, not 1
        text = f"{value:.6g}"
    return f"{text}.0" if text.lstrip("-").isdigit() else text


def _is_word(text: str) -> bool:
    """Return whether YAML reads unquoted `text` as the same string."""
    if text != text.strip() or not text.isprintable() or not text or _MARKS & set(text):
        return False
    if text.lower() in _WORDS:
        return False
    for convert in (float, lambda digits: int(digits, 0)):
        with contextlib.suppress(ValueError):
            convert(text)
            return False
    return True


HIDDEN = "***"
SHORTEST = 6
"""Minimum length of a secret value to hide; shorter values also occur in ordinary text."""
# Whole words decide: `hf_token` and `token` are secret, `num_tokens` and `tokenizer` are not.
_NAMES = r"(?:secret|passw(?:or)?d|passphrase|credential|(?:api|private|access|account)[_-]?key)"
_KEY = (
    rf"(?i:(?:{_NAMES}\w{{0,40}}|(?<![a-z0-9])(?:token|auth|sig|signature))(?!\w)[\"']?"
    r"\s*[=:]\s*(?=\S))"
)
KEY = re.compile(_KEY)
# In running text, the value ends at the end of the word, or at the closing quote.
KEY_AND_VALUE = re.compile(rf"({_KEY})(\"[^\"\n]*\"|'[^'\n]*'|(?!\*\*\*)[^\s,;&)\]}}\"']+)")
USER = re.compile(r"(?<=://)[^/\s?#]*@")
PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
KNOWN = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # Amazon
    r"|\b(?:hf|ghp|gho|ghs|github_pat)_\w{20,}"  # Hugging Face, GitHub
    r"|\bsk-[\w-]{20,}"
)
"""Secrets that can be recognized by their prefix."""
VARIABLE = re.compile(
    r"(?i)token|secret|passw|passphrase|credential|(?:api|private|access)_?key|_key$"
    r"|connection_?string"
)


def redact(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the arguments of a command with secrets replaced by `***`.

    Secrets are the text after a key or flag with a secret name (`token`, `password`, `api_key`,
    ...), the user name and password in a URL, tokens of a known format, and the values of variables
    with a secret name.

    Args:
        arguments: Arguments of a command.
        environment: Environment variables by name.
    """
    values = secret_values(environment)
    hidden, follows_flag = [], False
    for argument in arguments:
        visible = HIDDEN if follows_flag else KNOWN.sub(HIDDEN, _hide_values(argument, values))
        match = KEY.search(visible)
        # Hide the rest of the argument: a secret may hold any character.
        hidden.append(visible if match is None else visible[: match.end()] + HIDDEN)
        is_flag = argument.startswith("-") and "=" not in argument
        follows_flag = is_flag and KEY.search(f"{argument}=x") is not None
    return hidden


def redact_text(text: str, environment: Mapping[str, str]) -> str:
    """Return a message or a traceback with secrets replaced by `***`.

    The secrets are those of `redact`, and credentials after `Bearer` or `Basic`. After a key with a
    secret name, only the next word or quoted string is hidden, so that the rest of the message can
    still be read. The number of lines does not change.
    """
    text = _hide_values(text, secret_values(environment))
    text = BEARER.sub(rf"\1 {HIDDEN}", text)
    text = KNOWN.sub(HIDDEN, text)
    return KEY_AND_VALUE.sub(rf"\1{HIDDEN}", text)


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the secret values in an environment, longest first because a value may contain
    another.

    These are the values of variables with a secret name, each line of these values, the passwords
    in URLs, and the URL-encoded forms of all these values. Values with fewer than SHORTEST
    characters are left out.
    """
    values: set[str] = set()
    for name, value in environment.items():
        if VARIABLE.search(name):
            values.update((value, *value.splitlines()))
        values.update(PASSWORD.findall(value))
    long = {value for value in values if len(value.strip()) >= SHORTEST}
    long |= {quote(value, safe="") for value in long} | {quote_plus(value) for value in long}
    return sorted(long, key=len, reverse=True)


def _hide_values(text: str, values: Sequence[str]) -> str:
    """Return text with the given values, and user names and passwords in URLs, replaced by
    `***`."""
    for value in values:
        text = text.replace(value, HIDDEN)
    return USER.sub(f"{HIDDEN}@", text)
