"""The optimizers by name: ours, with the settings that each reads, and the classes of libraries."""

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, WithJsonSchema

from raybench.spec.errors import did_you_mean, removed

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
"""The settings that each optimizer reads, as its authors have them."""
LEFT_TO_IT = ("momentum", "beta2", "epsilon")
"""Keys of a run whose default is the optimizer's own."""
FRAMEWORK_OF = {"torch": "torch", "keras": "tensorflow"}
"""Prefix of the name of a library's class, and the framework that it trains in."""
KEY_OF = {
    **dict.fromkeys(("lr", "learning_rate"), "learning_rate"),
    "weight_decay": "weight_decay",
    **dict.fromkeys(("clipnorm", "global_clipnorm"), "clip_norm"),
    **dict.fromkeys(("use_ema", "ema_momentum", "ema_overwrite_frequency"), "ema_decay"),
    "gradient_accumulation_steps": "accumulate",
}
"""Arguments of libraries' classes that a run has keys for."""
_CLASS = r"(torch|keras):([A-Za-z_]\w*\.)*[A-Za-z_]\w*"


def _known(name: str) -> str:
    if name in OPTIMIZERS or re.fullmatch(_CLASS, name):
        return name
    if ":" in name:
        raise ValueError(
            "a library's class is written torch:SGD or keras:Nadam, of another module "
            "torch:module.Class"
        )
    if (problem := removed(f"optimizer {name}")) is not None:
        raise ValueError(problem)
    raise ValueError(f"there is no such optimizer; {did_you_mean(name, OPTIMIZERS)}")


Optimizer = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema({"anyOf": [{"enum": list(OPTIMIZERS)}, {"pattern": f"^{_CLASS}$"}]}),
]


def is_librarys(name: str) -> bool:
    """Whether an optimizer is a library's class, by its name."""
    return ":" in name


def framework_of(name: str) -> str | None:
    """Return the one framework that an optimizer is for; None of ours, which are in both."""
    return FRAMEWORK_OF[name.partition(":")[0]] if is_librarys(name) else None


def problem_of_optimizer(optimizer: str, framework: str, options: dict[str, Any]) -> str | None:
    """Return why an optimizer cannot have these options in a framework."""
    wanted = framework_of(optimizer)
    if wanted is None:
        if not options:
            return None
        return (
            f"optimizer_options are a library's, as of torch:SGD; what {optimizer} reads are keys "
            f"of the run: {', '.join(DEFAULTS[optimizer])}, weight_decay"
        )
    if wanted != framework:
        return (
            f"optimizer {optimizer} is of framework {wanted}; set framework: {wanted}, or an "
            f"optimizer of both: {', '.join(OPTIMIZERS)}"
        )
    for name in options:
        if name in KEY_OF:
            return f"optimizer_options.{name} is the run's {KEY_OF[name]}; set that key"
    return None
