"""The contestants of the replayed searches, by name."""

import importlib
from pathlib import Path
from typing import Any

from recorded import Task
from replay import Contestant

from raybench.spec.study import DEFAULT_TRIALS

SEARCHED = DEFAULT_TRIALS
"""Trials of RACED before its race begins, as in the default study."""
OURS, RACED, TPE = "raybench", "raybench, then its race", "raybench, TPE"
CONTESTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "raybench": ("contestant:Raybench", {}),
    RACED: ("contestant:Raybench", {"trials": SEARCHED}),
    "Ray, ASHA by seconds": ("peer_ray:ray_peer", {"by": "train_s"}),
    "Ray, ASHA by epochs": ("peer_ray:ray_peer", {"by": "training_iteration"}),
    "Optuna, Hyperband": ("peer_optuna:optuna_peer", {"pruner": "hyperband"}),
    "Optuna, halving": ("peer_optuna:optuna_peer", {"pruner": "halving"}),
    "Syne Tune ASHA": ("peer_syne:Syne", {"method": "ASHA"}),
    "Syne Tune BORE": ("peer_syne:Syne", {"method": "BORE"}),
    "Syne Tune CQR": ("peer_syne:Syne", {"method": "CQR"}),
    "Syne Tune ASHABORE": ("peer_syne:Syne", {"method": "ASHABORE"}),
    "Syne Tune ASHACQR": ("peer_syne:Syne", {"method": "ASHACQR"}),
    "NePS PriorBand": ("peer_neps:Neps", {}),
    "SMAC3, budgets": ("peer_smac:Smac3", {}),
    "FLAML BlendSearch": ("peer_flaml:FlamlTune", {"method": "BlendSearch"}),
    "FLAML CFO": ("peer_flaml:FlamlTune", {"method": "CFO"}),
    "random, ASHA": ("peer_ray:RandomAsha", {}),
    "random": ("peer:Random", {}),
}
"""Maker as `module:function` (called with space, seed and folder) and its options, by name."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    TPE: ("contestant:Raybench", {"sampler": "tpe"}),
    "raybench, no priors": ("contestant:Raybench", {"priors": False}),
    "raybench, workers sampled": ("contestant:Raybench", {"factorise": False}),
    "raybench, no cap": ("contestant:Raybench", {"cap_factor": None}),
    "raybench, no stops": ("contestant:Raybench", {"early_stopping": False}),
    "raybench, random": ("contestant:Raybench", {"sampler": "random"}),
}
"""Variants of raybench's search for `search_ablation.py`; not contestants of `search_table.py`."""
REGISTRY = CONTESTANTS | VARIANTS
NEEDS: dict[str, tuple[str, ...]] = {
    "peer_syne": ("syne_tune",),
    "peer_neps": ("neps",),
    "peer_smac": ("smac",),
    "peer_flaml": ("flaml",),
}
"""Libraries that a contestant's module needs."""


def needs(name: str) -> tuple[str, ...]:
    """Return the libraries that a contestant needs beyond those of raybench."""
    maker, options = REGISTRY[name]
    modules = NEEDS.get(maker.partition(":")[0], ())
    # Syne Tune's quantile searchers import its blackbox repository, which imports huggingface_hub.
    is_cqr = str(options.get("method", "")).endswith("CQR")
    return (*modules, "huggingface_hub") if is_cqr else modules


def make(name: str, task: Task, seed: int, folder: Path, **more: Any) -> Contestant:
    """Build a contestant of the registry."""
    maker, options = REGISTRY[name]
    module, _, function = maker.partition(":")
    contestant: Contestant = getattr(importlib.import_module(module), function)(
        task.space, seed, folder, **(options | more)
    )
    return contestant
