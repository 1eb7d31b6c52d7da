"""The optimizers of other libraries, as optimizers.py measures them; those installed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import installed

Params = list[torch.nn.Parameter]
Variants = dict[str, dict[str, Callable[[Params], torch.optim.Optimizer]]]
"""Family, name of the variant: what builds it over parameters."""
NEEDS = {"timm": ["timm"], "pytorch-optimizer": ["pytorch_optimizer"]}


def groups(params: Params, decay: float, **matrices_only: object) -> list[dict[str, Any]]:
    """Biases apart: they get neither decay nor a trust ratio."""
    matrices = [p for p in params if p.ndim > 1]
    vectors = [p for p in params if p.ndim <= 1]
    return [
        {"params": matrices, "weight_decay": decay, **matrices_only},
        {"params": vectors, "weight_decay": 0.0},
    ]


def left_out() -> dict[str, list[str]]:
    """Return the libraries that are not installed, with what is missing."""
    return installed.left_out(NEEDS)


def peer_variants(decay: float) -> Variants:
    """Return the variants of every installed library, looping and foreach."""
    families = ("radam", "lars", "lamb", "nadamw", "lion", "schedule_free_adamw")
    found: Variants = {family: {} for family in families}
    lacking = left_out()
    if "timm" not in lacking:
        _add_timm(found, decay)
    if "pytorch-optimizer" not in lacking:
        _add_pytorch_optimizer(found, decay)
    return found


def _add_timm(found: Variants, decay: float) -> None:
    import timm.optim

    def build(kind: Any, options: dict[str, Any], params: Params) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = kind(groups(params, decay, always_adapt=True), **options)
        return made

    def plain(kind: Any, options: dict[str, Any], params: Params) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = kind(groups(params, decay), **options)
        return made

    for form, foreach in (("loop", False), ("foreach", True)):
        shared = {"lr": 1e-3, "foreach": foreach}
        lamb, lars = shared | {"max_grad_norm": None}, shared | {"momentum": 0.9}
        found["lamb"][f"timm {form}"] = partial(build, timm.optim.Lamb, lamb)
        found["lars"][f"timm {form}"] = partial(build, timm.optim.Lars, lars)
        for family, kind in (("nadamw", timm.optim.NAdamW), ("lion", timm.optim.Lion)):
            found[family][f"timm {form}"] = partial(plain, kind, shared)


def _add_pytorch_optimizer(found: Variants, decay: float) -> None:
    import pytorch_optimizer

    def build(kind: Any, options: dict[str, Any], params: Params) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = kind(groups(params, decay), **options)
        return made

    for form, foreach in (("loop", False), ("foreach", True)):
        options = {"lr": 1e-3, "foreach": foreach}
        name = f"pytorch-optimizer {form}"
        found["lamb"][name] = partial(build, pytorch_optimizer.Lamb, options)
        found["lars"][name] = partial(build, pytorch_optimizer.LARS, options | {"momentum": 0.9})
        found["radam"][name] = partial(build, pytorch_optimizer.RAdam, options)
