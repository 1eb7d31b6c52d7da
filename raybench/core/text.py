"""Text from outside (users, libraries, files), made safe to print and to write."""

import re
import shlex
import shutil
import sys
from pathlib import PurePath

SCRIPT = "raybench"
"""The installed program; its commands are modules too: `python -m raybench.tune`."""
ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f]*(?:\x07|\x1b\\|\x9c)"
    # (titles, links)
    r"|\x1b[ -/]*[0-~]"  # the rest: reset, character sets
)
LINE_ENDS = re.compile(r"(?<![ \t])[ \t]*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+[ \t]*")
# Control characters, and the marks that make a terminal show text in another order.
INVISIBLE = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
NO_CHARACTER = re.compile(r"[\ud800-\udfff]")


def clean(text: str) -> str:
    """Return `text` as one line that any terminal, any file and UTF-8 takes as it is.

    Line ends become a space (none at the ends), tabs too; escape sequences and control characters
    go, and half a surrogate pair (a byte that was no UTF-8) becomes the replacement character.
    """
    if text.isprintable():  # nearly always
        return text
    text = ESCAPES.sub("", text)
    text = LINE_ENDS.sub(" ", text.strip("\n\r\v\f")).replace("\t", " ")
    return NO_CHARACTER.sub("\ufffd", INVISIBLE.sub("", text))


def clean_lines(text: str) -> str:
    """Return `text` with each line `clean`: for files that hold a library's own words."""
    return "\n".join(clean(line) for line in text.splitlines())


def command_line(name: str, *arguments: object, given: str | None = None) -> str:
    """Return `name` of our commands with its arguments, quoted: it can be copied into a shell.

    In the words of the command that was `given`, of this process without one: `raybench tune` or
    `python -m raybench.tune`.
    """
    words = split_command(given) if given is not None else [program()]
    first = words[:1] if words and _is_script(words[0]) else None
    own = [*first, name] if first else ["python", "-m", f"{SCRIPT}.{name}"]
    return shlex.join([*own, *map(str, arguments)])


def split_command(given: str) -> list[str]:
    """Return the words of a command line; [] of what no shell would take."""
    try:
        return shlex.split(given)
    except ValueError:
        return []


def program() -> str:
    """Return the program of this process as a user would name it: without its folder where a shell
    finds it."""
    found = sys.argv[0]
    is_found = _is_script(found) and shutil.which(SCRIPT) == found
    return SCRIPT if is_found else found


def _is_script(word: str) -> bool:
    return PurePath(word).stem == SCRIPT


def shorten(text: str, length: int) -> str:
    """Return `text` in at most `length` characters; the middle goes, its ends say most."""
    if len(text) <= length:
        return text
    tail = length // 3
    return f"{text[: length - tail - 3]}...{text[len(text) - tail :]}"
