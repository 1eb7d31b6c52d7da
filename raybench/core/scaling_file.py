"""A scaling study from a YAML file and `--set`: what files leave out, and what they may not say."""

from pathlib import Path
from typing import Any

from raybench.core.documents import apply_settings, read_mapping, validate
from raybench.core.errors import UserError
from raybench.core.scaling_study import OWN_KEYS, ScalingStudy
from raybench.core.spec import RunSpec

BASE: dict[str, Any] = {
    "epochs": 3.0,
    "objective": {"kind": "accuracy_at_budget", "max_train_seconds": 600.0},
}
"""What `base` is where a file does not say: the first epoch, and two of the steady state; no run
ends at a target, so that all cells train as long."""


def load_scaling_content(path: Path, settings: list[str]) -> dict[str, Any]:
    """Read a study's file with `--set` applied, not validated yet."""
    return set_in_scaling(read_mapping(path), settings)


def set_in_scaling(content: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Apply `--set`: the study's own keys as they are, run-spec keys in `base` and in no axis.

    `--set epochs=5` is `--set base.epochs=5`; `--set framework=torch` ends an axis of frameworks.
    """
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key.partition(".")[0] in RunSpec.model_fields and key not in ScalingStudy.model_fields:
            axes = content.get("axes")
            if isinstance(axes, dict) and key in axes:
                content = content | {"axes": {k: v for k, v in axes.items() if k != key}}
            if key not in OWN_KEYS or content.get("cells"):
                setting = f"base.{setting.strip()}"
        content = apply_settings(content, [setting])
    return content


def build_scaling_study(content: dict[str, Any], source: str, *, name: str) -> ScalingStudy:
    """Validate a study's content; `name` is its name where the content has none."""
    base = content.get("base", {})
    if isinstance(base, dict):
        for key, own in OWN_KEYS.items():
            if key in base and not content.get("cells"):
                raise UserError(
                    f"{source}: 'base.{key}': is the grid's; write {own}: [{base[key]}] at the top "
                    "level."
                )
        validate(RunSpec, BASE | base, f"{source}: base")
        content = content | {"base": BASE | base}
    for key in OWN_KEYS:
        if key in content and key not in ScalingStudy.model_fields:
            raise UserError(f"{source}: unknown key '{key}'; write {OWN_KEYS[key]}: [...].")
    return validate(ScalingStudy, {"name": name} | content, source)
