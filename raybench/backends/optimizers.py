"""The optimizers by name, with what each of them reads: the same for both frameworks.

| name                | reads                                 | weight decay                       |
|---------------------|---------------------------------------|------------------------------------|
| adam                | beta1, beta2, epsilon                 | decoupled, times the rate          |
| radam               | beta1, beta2, epsilon                 | decoupled, times the rate          |
| lars                | momentum, trust_coefficient           | added to the gradient, inside the  |
|                     |                                       | ratio                              |
| lamb                | beta1, beta2, epsilon (1e-6)          | added to the direction, inside the |
|                     |                                       | ratio                              |
| sgd                 | momentum, nesterov                    | added to the gradient (L2)         |
| adamw               | as adam, whose usual name it is       | as adam                            |
| nadamw              | beta1, beta2, epsilon                 | decoupled, times the rate          |
| lion                | beta1, beta2 (0.99)                   | decoupled, times the rate          |
| schedule_free_adamw | beta1, beta2, epsilon                 | added to the direction: decoupled, |
|                     |                                       | times the rate                     |
| muon                | momentum (0.95); beta1, beta2 and     | decoupled, times the rate          |
|                     | epsilon for what AdamW trains         |                                    |

Momentum is 0.9, beta2 0.999 and epsilon 1e-8 where a row says nothing else. Biases and norm
parameters (ndim <= 1) get neither weight decay nor trust ratio. A new optimizer is a row here, its
name in `core/run_keys.py`, and a class in each framework's `optim` folder.
"""

from typing import Any

from raybench.core.spec import RunSpec

ADAM = ("beta1", "beta2", "epsilon")
READS = {
    "adam": ADAM,
    "radam": ADAM,
    "lars": ("momentum", "trust_coefficient"),
    "lamb": ADAM,
    "sgd": ("momentum", "nesterov"),
    "adamw": ADAM,
    "nadamw": ADAM,
    "lion": ("beta1", "beta2"),
    "schedule_free_adamw": ADAM,
    "muon": ("momentum", *ADAM),
}
MOMENTUM = {"muon": 0.95}
"""Those of the authors, where it is not 0.9."""
BETA2 = {"lion": 0.99}
"""Those of the authors, where it is not 0.999."""
EPSILON = {"lamb": 1e-6}
"""Those of the authors, where it is not 1e-8."""


def own_settings(
    name: str,
    *,
    momentum: float | None = None,
    nesterov: bool = False,
    beta1: float = 0.9,
    beta2: float | None = None,
    epsilon: float | None = None,
    trust_coefficient: float = 0.001,
) -> dict[str, float]:
    """Return the settings that this optimizer reads; those of others are ignored.

    None is the optimizer's own. An unknown name is a ValueError.
    """
    if name not in READS:
        raise ValueError(f"unknown optimizer {name!r}; choose one of {', '.join(READS)}")
    settings = {
        "momentum": MOMENTUM.get(name, 0.9) if momentum is None else momentum,
        "nesterov": nesterov,
        "beta1": beta1,
        "beta2": BETA2.get(name, 0.999) if beta2 is None else beta2,
        "epsilon": EPSILON.get(name, 1e-8) if epsilon is None else epsilon,
        "trust_coefficient": trust_coefficient,
    }
    return {setting: settings[setting] for setting in READS[name]}


def settings_of(spec: RunSpec) -> dict[str, Any]:
    """Return what `build_optimizer` takes beside the optimizer's name."""
    return {
        "learning_rate": spec.learning_rate,
        "weight_decay": spec.weight_decay,
        "momentum": spec.momentum,
        "nesterov": spec.nesterov,
        "beta1": spec.beta1,
        "beta2": spec.beta2,
        "epsilon": spec.epsilon,
        "trust_coefficient": spec.trust_coefficient,
    }
