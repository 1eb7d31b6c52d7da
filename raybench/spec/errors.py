"""`UserError` and `StudyError`, whose messages are one sentence for the user; exit codes; removed
commands, options and keys.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

DONE, FAILED, WRONG_INPUT, NOT_REACHED, INTERRUPTED = 0, 1, 2, 3, 130
UNDECIDED, WORSE, NO_DIFFERENCE = 4, 5, 6
"""Exit codes. DONE: success. FAILED: the study failed. WRONG_INPUT: invalid input. NOT_REACHED: no
winner, because no run reached the target or the best run is no better than the baseline.
INTERRUPTED: Ctrl-C. Only from `compare`: UNDECIDED: more runs are needed; WORSE: B is worse than A;
NO_DIFFERENCE: B is as good as A."""


class ErrorCode(StrEnum):
    """Kind of invalid input, stable across versions, whereas error messages may change."""

    UNKNOWN_KEY = "unknown_key"
    """A file, `--set` or a mapping has a key that does not exist."""
    UNKNOWN_NAME = "unknown_name"
    """A value is not one of the known names of optimizers, workloads, metrics, columns or
    commands."""
    INVALID_OPTION = "invalid_option"
    """The command line has an unknown option, lacks a required one, or cannot be parsed."""
    INVALID_VALUE = "invalid_value"
    """A value has the wrong type or form, or is out of range."""
    MISSING = "missing"
    """A required key, option or part of a file is missing."""
    CONFLICT = "conflict"
    """Two settings exclude each other."""
    REMOVED = "removed"
    """A command, option or key existed in an earlier version and was removed."""
    UNSUPPORTED = "unsupported"
    """The framework, device, host or kind of study does not support a setting."""
    NOT_INSTALLED = "not_installed"
    """A package is missing."""
    INVALID_FILE = "invalid_file"
    """A file is not valid YAML, CSV or text, or has another format than expected."""
    NOT_FOUND = "not_found"
    """A file, folder, dataset or set of weights does not exist or cannot be read."""
    NOT_WRITABLE = "not_writable"
    """A file or folder cannot be written."""
    UNREACHABLE = "unreachable"
    """A cluster, host or object store does not answer."""
    INVALID_DATA = "invalid_data"
    """The dataset cannot be used for training: it is empty, has only one class, has values that are
    not finite, or has the wrong shape."""
    INVALID_MODEL = "invalid_model"
    """The model cannot be trained, or does not fit the data."""
    INVALID_WEIGHTS = "invalid_weights"
    """Weights or a checkpoint are damaged or belong to another model or run."""
    USER_CODE = "user_code"
    """The user's code raises an exception, does not return, or returns an invalid value."""
    COMMAND = "command"
    """The training command (`--command`) cannot be started, has failed, or prints an invalid
    line."""
    NO_ROOM = "no_room"
    """The cluster has too few CPUs or GPUs, or too little memory or disk space."""
    NO_TIME = "no_time"
    """The time budget or a timeout is too short."""
    STUDY_IN_USE = "study_in_use"
    """Another process runs the study in this results folder."""
    STUDY_CHANGED = "study_changed"
    """The results folder belongs to a study with other settings or other code, or was written by
    another version."""
    NO_RESULT = "no_result"
    """The results lack what the command needs, such as a confirmed winner."""
    TOO_FEW = "too_few"
    """There are too few runs, sizes or rows to compute the result."""


@dataclass(frozen=True)
class CommandError:
    """Error that ended a command."""

    kind: Literal["user", "study", "interrupted"]
    message: str
    code: ErrorCode | None = None
    """Error code of the invalid input; None unless `kind` is `user`."""


@dataclass(frozen=True)
class Ended:
    """Result of a command, which the option `--json` prints."""

    code: int
    """Exit code."""
    place: str | None = None
    """Results folder or URL; None if nothing was written."""
    answer: Sequence[str] = ()
    """Sentences that answer the user's question; if empty, the sentences about the study in `place`
    are used."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further details, as plain data."""
    error: CommandError | None = None


class UserError(ValueError):
    """Invalid input; the message is one sentence that says what to do.

    Commands print the message without a traceback and exit with code 2. Unprintable characters in
    the message (line breaks, terminal escapes, unpaired surrogates) are made printable.

    Args:
        message: The sentence.
        code: The kind of mistake, for programs and tests.
        details: Further text, such as the traceback of the user's code.

    Example:
        >>> try:
        ...     raybench.load("nowhere")
        ... except raybench.UserError as error:
        ...     print(error.code)
        not_found
    """

    code: ErrorCode
    details: str | None

    def __init__(self, message: object, code: ErrorCode, details: str | None = None) -> None:
        super().__init__("".join(map(_printable, str(message))))
        self.code = code
        self.details = details

    def __reduce__(self) -> tuple[type[Self], tuple[str, ErrorCode, str | None]]:
        """Return what pickle needs to rebuild the exception in another process."""
        return type(self), (str(self), self.code, self.details)


class StudyError(Exception):
    """The study cannot continue, although the input is valid; the message is one sentence.

    Commands print the message without a traceback and exit with code 1.

    Example:
        >>> try:
        ...     raise raybench.StudyError("results/x has no result.")
        ... except raybench.StudyError as error:
        ...     print(error)
        results/x has no result.
    """


def did_you_mean(name: object, names: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error message about an unknown name, which suggests a known name.

    Args:
        name: The unknown name.
        names: Known names; the closest one is suggested, ignoring case.
        otherwise: Text to return if no known name is close; by default, a list of all known names.
    """
    by_lower = {word.lower(): word for word in names}
    close = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    if close:
        return f"did you mean '{by_lower[close[0]]}'?"
    return otherwise or f"there are {', '.join(by_lower.values())}."


REMOVED = {
    **dict.fromkeys(
        (f"{name} --hosts" for name in ("compare", "scale", "train", "tune")),
        "diagnose names the worker that the others wait for",
    ),
    "transfer": "forecast DIR... --to FILE predicts rate, batch and loss of a large model",
    "report --as": "best.yaml holds every number of the winner",
    "key exchange_every": "write accumulate",
    "key mup_base": "it did not improve the predicted rate of a large model; leave it out, and run "
    "raybench forecast on studies of several sizes",
    "key spot": "give the spot price as the machine's price; preemptions are not predicted",
    "watch": "the command that runs a study shows it, --log tensorboard and optuna-dashboard "
    "DIR/optuna.log follow it from elsewhere, and report reads what is recorded so far",
}
"""Removed commands, options and keys, each with the end of its error message, which says what to
use instead. An option is listed as "COMMAND --option", a key as "key NAME"."""


def removed(name: str) -> str | None:
    """Return the end of an error message about a removed command, option or key.

    Args:
        name: A name as listed in REMOVED, such as "watch" or "key spot".

    Returns:
        Text without a period that says what to use instead; None if the name is not in REMOVED.
    """
    instead = REMOVED.get(name)
    return None if instead is None else f"was removed; {instead}"


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else character.encode("unicode_escape").decode()
