"""Syntax of the key `workload` for a user's own training loop: a function or a command.

    train.py:train                                    a function that receives a `raybench.Run`
    $ python train.py --lr {learning_rate}            a command that prints its metric
    $torchrun python train.py --lr {learning_rate}    the same, one process per worker

These training loops load their data themselves. With `$ `, the command is a single process that has
the resources of all workers. With `$torchrun `, the command is started once per worker with the
environment variables of torchrun, and rank 0 prints the metric.

Placeholders in a command (strings are inserted unchanged, other values as JSON):

    {key}                   the value of a run-spec key
    {model.NAME}            a setting of the model
    {folder}                the temporary folder of the run, which is empty when the command starts
    {--flag:key}            `--flag` for true, nothing for false and null, else `--flag VALUE`
    {--flag=:key}           as before, but `--flag=VALUE`
    {--flag|--no-flag:key}  as before, but `--no-flag` for false
"""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raybench.spec.errors import ErrorCode, UserError, did_you_mean

MARK = "$ "
"""Prefix of a workload that is a command started once per run."""
LAUNCH_MARKS = {"torchrun": "$torchrun "}
"""Prefixes of workloads that are commands started once per worker, keyed by the name of the
launcher."""
UNREPORTED, OTHER_KEYS = "the command reports no", "its lines of JSON have"
"""Parts of the error message for a command whose output lacks the metric. A message with both parts
ends a study in which no run has trained yet, because every configuration would fail in the same
way."""
OWN_DATA = {"name": "workload"}
"""Value of `dataset` for a user's own training loop, which loads its data itself."""
IMPORT = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
"""Pattern of an import in Python code. The group is the imported package."""
FOLDER = "folder"
"""Name of the placeholder for the temporary folder of the run."""
ABBREVIATIONS = {
    "lr": "learning_rate",
    "bs": "batch_size_per_worker",
    "wd": "weight_decay",
}
"""Keys that the error message about an unknown placeholder suggests, keyed by abbreviation."""
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.]*)\}")
"""Pattern of a placeholder for a value. The group is the key."""
OPTION = re.compile(r"\{(-[^\s:{}|]*)(?:\|(-[^\s:{}|]*))?:([A-Za-z_][\w.]*)\}")
"""Pattern of a placeholder for an option. The groups are the flag, the flag for the value false,
and the key."""


def is_command(workload: object) -> bool:
    """Return whether a workload is a command."""
    return str(workload).startswith((MARK, *LAUNCH_MARKS.values()))


def is_launched(workload: object) -> bool:
    """Return whether a workload is a command that is started once per worker."""
    return str(workload).startswith(tuple(LAUNCH_MARKS.values()))


def framework_of_command(workload: str) -> str:
    """Return the framework of a command: `torch` if the command is started once per worker, since
    torch then connects the processes; otherwise `python`."""
    return "torch" if is_launched(workload) else "python"


def framework_of(workload: str) -> str | None:
    """Return the framework of a user's own training loop, for when `framework` is not set.

    Args:
        workload: The key `workload` of a run spec.

    Returns:
        The framework of a command (see `framework_of_command`); `tensorflow` for a function in a
        file that imports Keras or TensorFlow but not torch; otherwise None.
    """
    if is_command(workload):
        return framework_of_command(workload)
    file = Path(workload.rpartition(":")[0])
    if not is_own_loop(workload) or not file.is_file():
        return None
    imported = set(IMPORT.findall(file.read_text(errors="replace")))
    return "tensorflow" if imported & {"keras", "tensorflow"} and "torch" not in imported else None


def text_of_command(workload: str) -> str:
    """Return a command without its prefix."""
    return workload.partition(" ")[2]


def is_own_loop(workload: object) -> bool:
    """Return whether a workload is the user's own training loop: a function in a file, or a
    command.

    All other workloads are names of a `Workload`, such as `mnist_small`, `torchvision:resnet18` or
    `module:Class`.
    """
    return is_command(workload) or ".py:" in str(workload)


def with_own_data(content: Any) -> Any:
    """Return the content of a study or run-spec file, with `dataset` set to OWN_DATA if `workload`
    is the user's own training loop."""
    is_own = isinstance(content, dict) and is_own_loop(content.get("workload", ""))
    return content | {"dataset": OWN_DATA} if is_own else content


def keys_of(workload: str) -> list[str]:
    """Return the keys in the placeholders of a command."""
    return [*PLACEHOLDER.findall(workload), *(match[3] for match in OPTION.finditer(workload))]


def words_of(workload: str, values: Mapping[str, Any]) -> list[str]:
    """Return the arguments (argv) of a command, with values in place of the placeholders.

    The command is split by the rules of a shell, but is not run by a shell.

    Args:
        workload: The command.
        values: Values by key. The value of `{model.block.kernel}` is the entry `kernel` of the
            mapping `model.block`.

    Raises:
        UserError: A key is unknown, quotes do not close, the command is empty, or a placeholder
            such as `{--flag:key}` is only part of a word.
    """
    try:
        words = shlex.split(text_of_command(workload))
    except ValueError as error:
        raise UserError(
            f"command {text_of_command(workload)}: {error}; close it.", ErrorCode.COMMAND
        ) from None
    if not words:
        raise UserError(
            "command: is empty; write it as python train.py --lr {learning_rate}.",
            ErrorCode.COMMAND,
        )
    arguments = []
    for word in words:
        if option := OPTION.fullmatch(word):
            arguments += _option(option[1], option[2], _value(values, option[3]))
        elif "{-" in word:
            raise UserError(
                f"command: {word} is not a valid option; write it as a separate word without "
                "blanks, as {--flag:model.NAME}.",
                ErrorCode.COMMAND,
            )
        else:
            arguments.append(PLACEHOLDER.sub(lambda match: _text(_value(values, match[1])), word))
    return arguments


def _option(name: str, otherwise: str | None, value: Any) -> list[str]:
    """Return the arguments for an option of a command.

    Args:
        name: The flag; if it ends in `=`, the value follows in the same argument.
        otherwise: The flag for the value false; None if there is none.
        value: Value of the key; for None, the option is left out.
    """
    if value is None:
        return []
    if isinstance(value, bool):
        chosen = name if value else otherwise
        return [chosen.removesuffix("=")] if chosen else []
    text = _text(value)
    return [f"{name}{text}"] if name.endswith("=") else [name, text]


def _value(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, which may be an entry of a nested mapping; raise UserError
    if the key is unknown."""
    parent, dot, name = key.rpartition(".")
    if key in values:
        return values[key]
    if dot and key.count(".") > 1:
        outer = _value(values, parent)
        if isinstance(outer, Mapping) and name in outer:
            return outer[name]
    hint = did_you_mean(ABBREVIATIONS.get(key, key), values, "see docs/keys.md.")
    raise UserError(f"command: {{{key}}} is not a key of the run; {hint}", ErrorCode.UNKNOWN_KEY)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
