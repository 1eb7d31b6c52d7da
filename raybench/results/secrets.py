"""What a command line may hold that nobody else should read."""

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"
SHORTEST = 6
"""Values of secret variables that are shorter are no secrets, and stand in too many words."""
# A key is of words: `hf_token` and `token` are secret, `num_tokens` and `tokenizer` are not.
_WORDS = r"(?:\w*(?:secret|passw(?:or)?d|passphrase|api[_-]?key|credential|private[_-]?key)\w*"
_WORDS += r"|access[_-]?key\w*|(?:\w*_)?(?:token|auth))"
KEY = re.compile(rf"(?i)(?<![a-z0-9])((?:[\w-]+[.-])*{_WORDS})(?![\w])([\"']?\s*[=:]\s*)(?=\S)")
FLAG = re.compile(rf"(?i)--(?:[\w]+-)*{_WORDS}")
USER = re.compile(r"([A-Za-z][\w+.-]*://)[^/\s?#]*@")
VARIABLE = re.compile(r"(?i)token|secret|passw|passphrase|api_?key|_key$|credential|private_?key")


def redact(arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return a command's arguments with what looks secret replaced by `***`.

    That is: what follows a key or a flag that is named like a secret (`token`, `password`,
    `api_key`, ...), the user of an URL, and the value of any variable of `environment` that is
    named so.
    """
    values = [
        value
        for name, value in environment.items()
        if VARIABLE.search(name) and len(value) >= SHORTEST
    ]
    # A longer secret first: one may stand in another.
    values.sort(key=len, reverse=True)
    hidden = []
    follows_flag = False
    for argument in arguments:
        hidden.append(HIDDEN if follows_flag else _redacted(argument, values))
        follows_flag = FLAG.fullmatch(argument) is not None
    return hidden


def _redacted(argument: str, values: Sequence[str]) -> str:
    for value in values:
        argument = argument.replace(value, HIDDEN)
    argument = USER.sub(rf"\g<1>{HIDDEN}@", argument)
    found = KEY.search(argument)
    if found is None:
        return argument
    # The rest of the argument: a secret may hold any character.
    return argument[: found.end()] + HIDDEN
