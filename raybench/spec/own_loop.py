"""What trains without a Workload, by how it is written as a run spec's `workload`.

    train.py:train                        a function of the user's own, given a `raybench.Run`
    $ python train.py --lr {learning_rate}    a command, which prints what it reaches

Such a loop brings its data with it. A command is one process that has the resources of all its
workers, and `{key}` in it stands for a key of the run spec, `{model.NAME}` for one of `model`.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from raybench.spec.errors import UserError, did_you_mean

MARK = "$ "
"""What a command begins with."""
UNREPORTED = "the command reports no"
"""Beginning of what a command fails with that has printed no metric: another configuration will not
do better."""
OWN_DATA = {"name": "workload"}
"""The `dataset` of a loop of one's own: whatever it loads."""
PLACE = re.compile(r"\{([A-Za-z_][\w.]*)\}")


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
    return PLACE.findall(workload)


def words_of(workload: str, values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command with `values` in place of their names; no shell reads them.

    UserError for a name that there is not, and for quotes that do not close.
    """
    try:
        words = shlex.split(workload.removeprefix(MARK))
    except ValueError as error:
        raise UserError(f"command {workload.removeprefix(MARK)}: {error}; close it.") from None
    if not words:
        raise UserError("command: is empty; write it as python train.py --lr {learning_rate}.")
    for key in keys_of(workload):
        if key not in values:
            hint = did_you_mean(key, values, "see docs/keys.md.")
            raise UserError(f"command: {{{key}}} is no key of the run; {hint}")
    return [PLACE.sub(lambda found: _text(values[found[1]]), word) for word in words]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
