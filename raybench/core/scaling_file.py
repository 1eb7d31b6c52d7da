"""A scaling study from a YAML file and `--set`: what files leave out, and what they may not say."""

import difflib
from pathlib import Path
from typing import Any

from raybench.core.documents import (
    OTHER_NAMES,
    SHORT_FORMS,
    apply_settings,
    parse_yaml,
    read_mapping,
    validate,
    with_key,
)
from raybench.core.errors import UserError
from raybench.core.scaling_study import ALWAYS, OWN_KEYS, ScalingStudy
from raybench.core.spec import RunSpec

BASE: dict[str, Any] = {
    "epochs": 3.0,
    "objective": {"kind": "best_at_budget", "max_train_seconds": 600.0},
}
"""What `base` is where a file does not say: the first epoch, and two of the steady state; no run
ends at a target, so that all cells train as long."""


def load_scaling_content(path: Path, settings: list[str]) -> dict[str, Any]:
    """Read a study's file with `--set` applied, not validated yet."""
    return set_in_scaling(read_mapping(path), settings)


def set_in_scaling(content: dict[str, Any], settings: list[str]) -> dict[str, Any]:
    """Apply `--set`: the study's own keys as they are, run-spec keys in `base` and in all cells.

    `--set epochs=5` is `--set base.epochs=5`; `--set framework=torch` ends an axis of frameworks,
    and what written-out cells say of them.
    """
    for setting in settings:
        key, is_set, text = setting.partition("=")
        key = key.strip()
        _check_key(key)
        first = OTHER_NAMES.get(key, key.partition(".")[0])
        is_of_base = first in RunSpec.model_fields and key not in ScalingStudy.model_fields
        if is_of_base and (key not in OWN_KEYS or content.get("cells")):
            setting, key = f"base.{setting.strip()}", f"base.{key}"
        if is_set and key.partition(".")[0] == "base":
            value = parse_yaml(text, f"--set {key}")
            whole = value.items() if key == "base" and isinstance(value, dict) else ()
            for name, said in whole or [(key.removeprefix("base."), value)]:
                if ALWAYS.get(str(name), said) != said:
                    raise UserError(f"--set {name}: a study's runs all have it; leave it out.")
                content = _everywhere(content, str(name), said)
        content = apply_settings(content, [setting])
    return content


def _everywhere(content: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Give a run-spec key its value in axes and cells too, which would overrule the base."""
    axes, cells = content.get("axes"), content.get("cells")
    if key in OWN_KEYS and not cells:
        raise UserError(f"--set {key}: is the grid's; write --set '{OWN_KEYS[key]}=[{value}]'.")
    if isinstance(axes, dict):
        kept = {name: each for name, each in axes.items() if not _is_said(name, key, value)}
        kept = {
            name: _once([_with(name, one, key, value) for one in each])
            if isinstance(each, list)
            else each
            for name, each in kept.items()
        }
        content = content | {"axes": kept}
    if isinstance(cells, list):
        content = content | {"cells": _once([_in_cell(cell, key, value) for cell in cells])}
    return content


def _in_cell(cell: Any, key: str, value: Any) -> Any:
    changes = cell.get("changes") if isinstance(cell, dict) else None
    if not isinstance(changes, dict):
        return cell  # refused where the study is validated
    if key in OWN_KEYS and key in changes:
        raise UserError(
            f"--set {key}: the cells of this study are written out, each with its own {key}; leave "
            "it out, or write cells of your own into a file."
        )
    kept = {
        name: _with(name, one, key, value)
        for name, one in changes.items()
        if not _is_said(name, key, value)
    }
    return cell | {"changes": kept}


def _is_said(name: str, key: str, value: Any) -> bool:
    """Say whether `key: value` says all that key `name` does: the same, or a deeper one of it."""
    names, keys = _own_names(name), _own_names(key)
    if names[: len(keys)] != keys:
        return False
    for part in names[len(keys) :]:
        if isinstance(value, str):
            return SHORT_FORMS.get(key) == part
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return True


def _with(name: str, found: Any, key: str, value: Any) -> Any:
    """Return what is found at key `name`, with `key: value` in it where that lies deeper."""
    if not key.startswith(f"{name}."):
        return found
    return with_key({name: found}, key, value, f"--set {key}")[name]


def _own_names(key: str) -> list[str]:
    return [OTHER_NAMES.get(part, part) for part in key.split(".")]


def _once(values: list[Any]) -> list[Any]:
    return [one for index, one in enumerate(values) if one not in values[:index]]


def _check_key(key: str) -> None:
    """Refuse a key that neither a study nor a run spec has."""
    known = [*ScalingStudy.model_fields, *RunSpec.model_fields]
    first = key.partition(".")[0]
    if first in (*known, *OTHER_NAMES, ""):
        return
    close = difflib.get_close_matches(first, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(known)}."
    raise UserError(f"--set {key}: unknown key; {hint}")


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
        asked = base.get("objective")
        if isinstance(asked, dict) and not {"kind", "target"} & asked.keys():
            base = base | {"objective": BASE["objective"] | asked}  # a metric alone, say
        validate(RunSpec, BASE | base, f"{source}: base")
        content = content | {"base": BASE | base}
    for key in OWN_KEYS:
        if key in content and key not in ScalingStudy.model_fields:
            raise UserError(f"{source}: unknown key '{key}'; write {OWN_KEYS[key]}: [...].")
    return validate(ScalingStudy, {"name": name} | content, source)
