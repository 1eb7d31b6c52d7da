"""The optimizers by name, with what each of them reads: the same for both frameworks.

| name  | reads                                | weight decay                              |
|-------|--------------------------------------|-------------------------------------------|
| adam  | beta1, beta2, epsilon (1e-8)         | decoupled, times the rate (AdamW)         |
| radam | beta1, beta2, epsilon (1e-8)         | decoupled, times the rate                 |
| lars  | momentum, trust_coefficient          | added to the gradient, inside the ratio   |
| lamb  | beta1, beta2, epsilon (1e-6)         | added to the direction, inside the ratio  |
| sgd   | momentum                             | added to the gradient (L2)                |

Biases and norm parameters (ndim <= 1) get neither weight decay nor trust ratio. A new optimizer
is a row here, its name in `core/spec.py`, and a class in each framework's `optim` folder.
"""

from typing import Any

from raybench.core.spec import RunSpec

READS = {
    "adam": ("beta1", "beta2", "epsilon"),
    "radam": ("beta1", "beta2", "epsilon"),
    "lars": ("momentum", "trust_coefficient"),
    "lamb": ("beta1", "beta2", "epsilon"),
    "sgd": ("momentum",),
}
EPSILON = {"adam": 1e-8, "radam": 1e-8, "lamb": 1e-6}


def own_settings(
    name: str,
    *,
    momentum: float = 0.9,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float | None = None,
    trust_coefficient: float = 0.001,
) -> dict[str, float]:
    """Return the settings that this optimizer reads; those of others are ignored.

    An unknown name is a ValueError.
    """
    if name not in READS:
        raise ValueError(f"unknown optimizer {name!r}; choose one of {', '.join(READS)}")
    settings = {
        "momentum": momentum,
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": EPSILON.get(name, 0.0) if epsilon is None else epsilon,
        "trust_coefficient": trust_coefficient,
    }
    return {setting: settings[setting] for setting in READS[name]}


def settings_of(spec: RunSpec) -> dict[str, Any]:
    """Return what `build_optimizer` takes beside the optimizer's name."""
    return {
        "learning_rate": spec.learning_rate,
        "weight_decay": spec.weight_decay,
        "momentum": spec.momentum,
        "beta1": spec.beta1,
        "beta2": spec.beta2,
        "epsilon": spec.epsilon,
        "trust_coefficient": spec.trust_coefficient,
    }
