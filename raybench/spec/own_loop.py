"""Training loops and commands without a Workload, by how they are written as a run spec's
`workload`.

    train.py:train                        a function of the user's own, given a `raybench.Run`
    $ python train.py --lr {learning_rate}    a command, which prints what it reaches

Such a loop brings its data with it. A command is one process that has the resources of all its
workers, and `{key}` in it stands for a key of the run spec, `{model.NAME}` for one of `model`, as
JSON writes it, a text as it is. `{--flag:key}` is an option: `--flag` for true, nothing for false
and null, `--flag VALUE` for anything else; `{--flag=:key}` is `--flag=VALUE`, and
`{--bn|--no-bn:key}` has an option for false.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from raybench.spec.errors import UserError, did_you_mean

MARK = "$ "
"""Beginning of a command."""
UNREPORTED, OTHER_KEYS = "the command reports no", "its lines of JSON have"
"""Beginning of what a command fails with that has printed no metric: another configuration will not
do better."""
OWN_DATA = {"name": "workload"}
"""The `dataset` of a loop of one's own: whatever it loads."""
PLACE = re.compile(r"\{([A-Za-z_][\w.]*)\}")
OPTION = re.compile(r"\{(-[^\s:{}|]*)(?:\|(-[^\s:{}|]*))?:([A-Za-z_][\w.]*)\}")
"""An option that depends on a key: what stands there if it is true, and if it is false."""


def is_command(workload: object) -> bool:
    """Whether a workload is a command."""
    return str(workload).startswith(MARK)


def is_own_loop(workload: object) -> bool:
    """Whether a workload is a training loop of the user's own: a function of a file, or a command.

    All others are a Workload: `mnist_small`, `torchvision:resnet18`, `module:Class`.
    """
    return is_command(workload) or ".py:" in str(workload)


def with_own_data(content: Any) -> Any:
    """Return a document with a `workload` that is a loop of one's own with its own data."""
    is_own = isinstance(content, dict) and is_own_loop(content.get("workload", ""))
    return content | {"dataset": OWN_DATA} if is_own else content


def keys_of(workload: str) -> list[str]:
    """Return the keys that stand in a command."""
    return [*PLACE.findall(workload), *(found[3] for found in OPTION.finditer(workload))]


def words_of(workload: str, values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command with `values` in place of their names; no shell reads them.

    `values` has mappings as they are: `{model.block.kernel}` is a value within `model.block`.

    Raises:
        UserError: For a name that there is not, quotes that do not close, and an option within a
            word.
    """
    try:
        words = shlex.split(workload.removeprefix(MARK))
    except ValueError as error:
        raise UserError(f"command {workload.removeprefix(MARK)}: {error}; close it.") from None
    if not words:
        raise UserError("command: is empty; write it as python train.py --lr {learning_rate}.")
    placed = []
    for word in words:
        if option := OPTION.fullmatch(word):
            placed += _option(option[1], option[2], _value(values, option[3]))
        elif "{-" in word:
            raise UserError(
                f"command: {word} is no option that can be left out; write it as a word of its "
                "own, without blanks, as {--flag:model.NAME}."
            )
        else:
            placed.append(PLACE.sub(lambda found: _text(_value(values, found[1])), word))
    return placed


def _option(name: str, otherwise: str | None, value: Any) -> list[str]:
    """Return the words of an option: none for null, and for false unless `otherwise` stands for
    it."""
    if value is None:
        return []
    if isinstance(value, bool):
        chosen = name if value else otherwise
        return [chosen.removesuffix("=")] if chosen else []
    text = _text(value)
    return [f"{name}{text}"] if name.endswith("=") else [name, text]


def _value(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a name, or one within a mapping; UserError where there is none."""
    parent, dot, name = key.rpartition(".")
    if key in values:
        return values[key]
    if dot and key.count(".") > 1:
        outer = _value(values, parent)
        if isinstance(outer, Mapping) and name in outer:
            return outer[name]
    hint = did_you_mean(key, values, "see docs/keys.md.")
    raise UserError(f"command: {{{key}}} is no key of the run; {hint}")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
