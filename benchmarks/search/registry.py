"""The contestants of the replayed searches, by name."""

import importlib
from pathlib import Path
from typing import Any

from recorded import Task
from replay import Contestant

from raybench.spec.study import DEFAULT_TRIALS

SEARCHED = DEFAULT_TRIALS
"""Trials before the race of RACED begins, as in the default study."""
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
"""Name: module:maker(space, seed, folder, **options), options."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    TPE: ("contestant:Raybench", {"sampler": "tpe"}),
    "raybench, no priors": ("contestant:Raybench", {"priors": False}),
    "raybench, workers sampled": ("contestant:Raybench", {"factorise": False}),
    "raybench, no cap": ("contestant:Raybench", {"cap_factor": None}),
    "raybench, no stops": ("contestant:Raybench", {"early_stopping": False}),
    "raybench, random": ("contestant:Raybench", {"sampler": "random"}),
}
"""What search_ablation.py compares; not contestants of the table."""
REGISTRY = CONTESTANTS | VARIANTS


NEEDS: dict[str, tuple[str, ...]] = {
    "peer_syne": ("syne_tune",),
    "peer_neps": ("neps",),
    "peer_smac": ("smac",),
    "peer_flaml": ("flaml",),
}
"""Modules by the contestant's module."""


def needs(name: str) -> tuple[str, ...]:
    """Return the modules that a contestant needs and raybench does not."""
    place, options = REGISTRY[name]
    modules = NEEDS.get(place.partition(":")[0], ())
    # Syne Tune's quantile searchers import its repository of black boxes, which imports this.
    is_cqr = str(options.get("method", "")).endswith("CQR")
    return (*modules, "huggingface_hub") if is_cqr else modules


def make(name: str, task: Task, seed: int, folder: Path, **more: Any) -> Contestant:
    """Build a contestant of the registry."""
    place, options = REGISTRY[name]
    module, _, maker = place.partition(":")
    made: Contestant = getattr(importlib.import_module(module), maker)(
        task.space, seed, folder, **(options | more)
    )
    return made
