"""What a command line may hold that nobody else should read."""

import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"
SHORTEST = 6
"""Values of secret variables that are shorter are no secrets, and stand in too many words."""
# A key is of words: `hf_token` and `token` are secret, `num_tokens` and `tokenizer` are not.
KEY = re.compile(
    r"(?i)(?:(?:secret|passw(?:or)?d|passphrase|api[_-]?key|credential|private[_-]?key|access[_-]?key)"
    r"\w{0,40}|(?<![a-z0-9])(?:token|auth))(?!\w)[\"']?\s*[=:]\s*(?=\S)"
)
USER = re.compile(r"(?<=://)[^/\s?#]*@")
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
        follows_flag = argument.startswith("-") and KEY.search(f"{argument}=x") is not None
        follows_flag = follows_flag and "=" not in argument
    return hidden


def _redacted(argument: str, values: Sequence[str]) -> str:
    for value in values:
        argument = argument.replace(value, HIDDEN)
    argument = USER.sub(f"{HIDDEN}@", argument)
    found = KEY.search(argument)
    if found is None:
        return argument
    # The rest of the argument: a secret may hold any character.
    return argument[: found.end()] + HIDDEN
