"""Optimizers: those shipped with raybench and their settings, and optimizer classes of
libraries."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from raybench.spec.errors import ErrorCode, did_you_mean

Own = Literal["adam", "radam", "lars", "lamb", "sgd", "adamw", "muon"]
OPTIMIZERS: tuple[str, ...] = get_args(Own)
ADAM: dict[str, float] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
DEFAULTS: dict[str, dict[str, float]] = {
    "adam": ADAM,
    "radam": ADAM,
    "lars": {"momentum": 0.9, "trust_coefficient": 0.001},
    "lamb": ADAM | {"epsilon": 1e-6},
    "sgd": {"momentum": 0.9, "nesterov": False},
    "adamw": ADAM,
    "muon": {"momentum": 0.95} | ADAM,
}
"""Settings of each optimizer, with the default values of the optimizer's authors."""
OPTIMIZER_DEFAULT_KEYS = ("momentum", "beta2", "epsilon")
"""Run-spec keys whose default depends on the optimizer."""
FRAMEWORK_OF = {"torch": "torch", "keras": "tensorflow"}
"""Framework that a library's optimizer class requires, keyed by the prefix of the name, as in
`torch:SGD` and `keras:Nadam`."""
KEY_OF = {
    **dict.fromkeys(("lr", "learning_rate"), "learning_rate"),
    "weight_decay": "weight_decay",
    **dict.fromkeys(("clipnorm", "global_clipnorm"), "clip_norm"),
    **dict.fromkeys(("use_ema", "ema_momentum", "ema_overwrite_frequency"), "ema_decay"),
    "gradient_accumulation_steps": "accumulate",
}
"""Run-spec keys that replace arguments of a library's optimizer class, keyed by argument. These
arguments are not allowed in `optimizer_options`."""
_CLASS = r"(torch|keras):([A-Za-z_]\w*\.)*[A-Za-z_]\w*"


def _known(name: str) -> str:
    if name in OPTIMIZERS or re.fullmatch(_CLASS, name):
        return name
    if ":" in name:
        raise ValueError(
            "write a library's class as torch:SGD or keras:Nadam, and a class of another module as "
            "torch:module.Class"
        )
    hint = did_you_mean(
        name,
        OPTIMIZERS,
        f"write {', '.join(OPTIMIZERS)}, or a library's class, such as torch:NAdam, keras:Lion or "
        "torch:module.Class",
    )
    raise PydanticCustomError(ErrorCode.UNKNOWN_NAME, f"there is no such optimizer; {hint}")


Optimizer = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema({"anyOf": [{"enum": list(OPTIMIZERS)}, {"pattern": f"^{_CLASS}$"}]}),
]


def is_library_class(name: str) -> bool:
    """Return whether an optimizer is a library's class, such as `torch:SGD`."""
    return ":" in name


def problem_of_optimizer(optimizer: str, framework: str, options: dict[str, Any]) -> str | None:
    """Return a message if an optimizer, its options and a framework conflict, else None."""
    if not is_library_class(optimizer):
        if not options:
            return None
        return (
            f"optimizer_options require a library's class, such as torch:SGD; the settings of "
            f"{optimizer} are keys of the run: {', '.join(DEFAULTS[optimizer])}, weight_decay"
        )
    required = FRAMEWORK_OF[optimizer.partition(":")[0]]
    if required != framework:
        return (
            f"optimizer {optimizer} requires framework {required}; set framework: {required}, or "
            f"an optimizer of both frameworks: {', '.join(OPTIMIZERS)}"
        )
    for name in options:
        if name in KEY_OF:
            return f"set the key {KEY_OF[name]} in place of optimizer_options.{name}"
    return None
