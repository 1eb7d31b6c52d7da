"""What a command line, a message or a traceback may hold that nobody else should read."""

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, quote_plus

HIDDEN = "***"
LONGEST_PATH = 4096
SHORTEST = 6
"""Values of secret variables that are shorter are no secrets, and stand in too many words."""
# A key is of words: `hf_token` and `token` are secret, `num_tokens` and `tokenizer` are not.
_NAMES = (
    r"(?:secret|passw(?:or)?d|passphrase|api[_-]?key|credential|private[_-]?key|"
    r"(?:access|account)[_-]?key)"
)
_KEY = (
    rf"(?i:(?:{_NAMES}\w{{0,40}}|(?<![a-z0-9])(?:token|auth|sig|signature))(?!\w)[\"']?"
    r"\s*[=:]\s*(?=\S))"
)
KEY = re.compile(_KEY)
# In a text the value ends where a word does, or its quotes do.
KEY_AND_VALUE = re.compile(rf"({_KEY})(\"[^\"\n]*\"|'[^'\n]*'|(?!\*\*\*)[^\s,;&)\]}}\"']+)")
SENTENCE = re.compile(r"[A-Za-z]+[ \t]+\w")
"""What follows `passwd: ` where it is no secret but the end of a message: two words."""
USER = re.compile(r"(?<=://)[^/\s?#]*@")
PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
KNOWN = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # Amazon
    r"|\b(?:hf|ghp|gho|ghs|github_pat)_\w{20,}"  # Hugging Face, GitHub
    r"|\bsk-[\w-]{20,}"
)
"""Secrets that are known by how they begin, wherever they come from."""
VARIABLE = re.compile(
    r"(?i)token|secret|passw|passphrase|api_?key|_key$|credential|private_?key|access_?key"
    r"|connection_?string"
)


def redact(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return a command's arguments with what looks secret replaced by `***`.

    That is: what follows a key or a flag that is named like a secret (`token`, `password`,
    `api_key`, ...), the user of an URL, and the value of any variable of `environment` that is
    named so.
    """
    values = secret_values(environment)
    hidden = []
    follows_flag = False
    for argument in arguments:
        hidden.append(HIDDEN if follows_flag else _redacted(argument, values))
        follows_flag = argument.startswith("-") and KEY.search(f"{argument}=x") is not None
        follows_flag = follows_flag and "=" not in argument
    return hidden


def redact_text(text: str, environment: Mapping[str, str]) -> str:
    """Return a message or a traceback, of any number of lines, with what looks secret hidden.

    As `redact` does, but what follows a key named like a secret ends with the word: the rest of
    the message is what the user needs. Its lines stay as many as they were.
    """
    text = _without(text, secret_values(environment))
    text = USER.sub(f"{HIDDEN}@", text)
    text = BEARER.sub(rf"\1 {HIDDEN}", text)
    text = KNOWN.sub(HIDDEN, text)
    return KEY_AND_VALUE.sub(_hidden, text)


def _hidden(found: re.Match[str]) -> str:
    """Hide the value of a key; not the words after a colon that follow a path, or are a sentence.

    `/etc/passwd: is not a file` tells no secret, `passwd=is` and `{"passwd": "is"}` may.
    """
    key, text = found[1], found.string
    if key.endswith((": ", ":\t")) and key.rstrip(": \t")[-1:].isalnum():
        word = text[max(0, found.start() - LONGEST_PATH) : found.start()].split()[-1:]
        is_path = bool(word) and "/" in word[0] and text[found.start() - 1] in "/._-"
        if is_path or SENTENCE.match(text, found.start(2)):
            return found[0]
    return f"{key}{HIDDEN}"


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return what must not be shown of an environment, the longest first: one may stand in
    another.

    The values of variables that are named like secrets and the passwords of all URLs; each line
    of those with several (keys in files), and as an URL writes them.
    """
    found: set[str] = set()
    for name, value in environment.items():
        if VARIABLE.search(name):
            found.update((value, *value.splitlines()))
        found.update(PASSWORD.findall(value))
    long = {value for value in found if len(value.strip()) >= SHORTEST}
    long |= {write(value) for value in long for write in (_quoted, quote_plus)}
    return sorted(long, key=len, reverse=True)


def _quoted(value: str) -> str:
    return quote(value, safe="")


def _without(text: str, values: Sequence[str]) -> str:
    for value in values:
        text = text.replace(value, HIDDEN)
    return text


def _redacted(argument: str, values: Sequence[str]) -> str:
    argument = _without(argument, values)
    argument = USER.sub(f"{HIDDEN}@", argument)
    argument = KNOWN.sub(HIDDEN, argument)
    found = KEY.search(argument)
    if found is None:
        return argument
    # The rest of the argument: a secret may hold any character.
    return argument[: found.end()] + HIDDEN
