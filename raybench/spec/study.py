"""The study file: what a search trains, judges, searches and keeps fixed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from raybench.spec.documents import (
    OTHER_NAMES,
    Document,
    PositiveFloat,
    PositiveInt,
    Seed,
    content_of,
    validate,
    validate_key,
    with_key,
)
from raybench.spec.errors import UserError, did_you_mean
from raybench.spec.objective import BUDGET, Objective
from raybench.spec.objective import TIME as TIME
from raybench.spec.optimizer import is_librarys
from raybench.spec.own_loop import OWN_DATA, is_command, is_own_loop
from raybench.spec.run import DatasetSpec, RunSpec, flat, is_key, is_open, nested
from raybench.spec.space import SEARCHABLE, Space, parse_space, values_of

MOST = 200
"""Runs of a race at most."""


class ConfirmSpec(Document):
    """Confirmation: candidates race with new seeds, then winners run alone."""

    race: Annotated[int, Field(ge=0, le=MOST)] = 24
    """Runs with new seeds that the best few of the search share out to find the fastest, and as
    many to find the cheapest (most of them are the same runs); 0 leaves the result unconfirmed.
    Within a time budget, as many of them as there is time for."""
    fresh: PositiveInt = 3
    """Runs of each winner alone on the machine, for the time that is printed."""


AUTO = "auto"
DEFAULT_TRIALS = 200
STANDS_FOR = {
    "target": 1.0,
    "max_train_seconds": Objective.model_fields["max_train_seconds"].default,
}
"""Keys of an objective that may be `auto`, and what stands there until reference runs set them."""
COMMON = ("workload", "dataset", "objective")
"""Keys of a run spec that a study has at its top level."""
EVAL_INTERVAL = "eval_every_samples"
AutoKey = Literal["target", "max_train_seconds", "eval_every_samples"]


class SearchSpec(Document):
    """Length and way of the search."""

    trials: PositiveInt | None = None
    """Number of trials that are proposed: 200 by default, of a `grid` all its combinations; a grid
    of more than this runs the first of its order."""
    first: list[dict[str, Any]] = []
    """Configurations of your own that run before all others, in a grid and beyond the ranges too:
    `[{learning_rate: 0.02, model: {n: 2}}]`. A searched key that one does not name has its usual
    value. They run to their end; reference runs train the first of them, and the answer compares
    the winner with it."""
    seed: Seed = 0
    """Seed of the sampler, and of every trial's training."""
    time_budget_s: PositiveFloat | None = None
    """Seconds for everything, start-up and confirmation included: the search ends when what is
    left is needed to confirm."""
    trial_seconds: PositiveFloat | None = None
    """Wall-clock seconds that one run may take, from when it has its workers: set-up, evaluations
    and what never answers included. A run that takes longer has failed (`timeout`), its workers are
    replaced where they hang, and the search goes on. By default there is no limit."""
    concurrency: PositiveInt | None = None
    """Trials at the same time; by default as many as the cluster has room for."""
    sampler: Literal["model", "tpe", "gp", "cmaes", "nsga2", "random", "qmc", "grid"] = "model"
    """Sampler of configurations: `model` uses a model of all learning curves, the others are
    Optuna's; `cmaes` samples categories by TPE, `nsga2` looks for the front of seconds and
    worker-seconds, `grid` runs every combination of lists."""
    early_stopping: bool = True
    """Stop trials that the learning curves seen so far rule out as the best; false also leaves out
    the time cutoff."""
    priors: bool = True
    """Try each optimizer's typical learning rate among the first trials."""
    widen: bool = True
    """Let sampler `model` try learning rates up to a factor of four beyond their range, where it
    expects an improvement."""
    factorise: bool = True
    """Sample what decides accuracy (optimizer, rate, global batch) and predict what decides
    speed alone (workers, model of GPU, compilation, and the framework of equal networks); false
    samples all alike."""
    cap_factor: Annotated[float, Field(ge=1)] | None = 1.5
    """Stop trials whose next evaluation comes after this multiple of the best configuration's
    expected time (with `grid`, of the best time measured); none never does."""


class StudySpec(Document):
    """The content of a search-space file, validated."""

    workload: str = "mnist_small"
    """A shipped name, `module:Class` of your own, or a training loop of your own:
    `FILE.py:FUNCTION`, or a command after `$ `."""
    dataset: DatasetSpec = DatasetSpec(image_size=28)
    """Data, and how much of it."""
    objective: Objective
    """Objective of the trials."""
    search: SearchSpec = SearchSpec()
    """Length and way of the search."""
    confirm: ConfirmSpec = ConfirmSpec()
    """Confirmation of the winners."""
    auto: list[AutoKey] = []
    """Settings that reference runs make before the search: keys of the objective that the file has
    as `auto`, and the distance of evaluations where it names none. Not written by hand."""
    is_set: bool = False
    """Whether they have; not written by hand."""
    price: PositiveFloat | None = None
    """Money per worker-hour: with it, winners are given in money too, and the cheapest is what
    costs the least as billed."""
    space: dict[str, Any]
    """Run-spec keys and their lists, ranges or cases."""
    fixed: dict[str, Any] = {}
    """Run-spec keys with one value for all trials."""

    @property
    def needs_reference(self) -> bool:
        """Whether reference runs have yet to set something."""
        return bool(self.auto) and not self.is_set

    @property
    def needs_target(self) -> bool:
        """Whether reference runs have yet to set the target."""
        return "target" in self.auto and not self.is_set

    def run_spec(self, values: dict[str, Any], *, seed: int | None = None) -> RunSpec:
        """Return the run spec of one configuration: `values` of the space, and what is fixed."""
        content = nested(self.fixed | values) | self.model_dump(include=set(COMMON))
        content["seed"] = self.search.seed if seed is None else seed
        return validate(RunSpec, content, "configuration")


def target_of(study: Mapping[str, Any]) -> float | None:
    """Return the target in a study's document; None where there is none, or none yet."""
    is_placeholder = "target" in study.get("auto", ()) and not study.get("is_set")
    target: float | None = None if is_placeholder else study["objective"].get("target")
    return target


def load_content(
    given: str | Path | dict[str, Any] | StudySpec, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of a search space with `settings` applied, not validated yet.

    `given` is a file (the `study.yaml` of a results folder too), its content, or a study.
    """
    content, source = content_of(given, "space")
    whole = content if isinstance(given, StudySpec) else content.get("study")
    if isinstance(whole, dict):
        content = as_written(validate(StudySpec, whole, source).document())
    return apply_settings_to_study(content, settings)


def as_written(study: dict[str, Any]) -> dict[str, Any]:
    """Return a study's document as its file has it: `auto` where reference runs set a key."""
    auto, objective = study["auto"], study["objective"]
    own = {key: value for key, value in study.items() if key not in ("auto", "is_set")}
    return own | {
        "objective": objective | {key: AUTO for key in auto if key in objective},
        "fixed": {key: value for key, value in study["fixed"].items() if key not in auto},
    }


def build_study(content: dict[str, Any], source: str) -> tuple[StudySpec, Space]:
    """Validate a study's content, its space and its fixed keys."""
    for key in ("auto", "is_set"):
        if key in content:
            raise UserError(f"{source}: unknown key '{key}'; write auto as a key's value.")
    if isinstance(content.get("space"), dict):
        content = content | {"space": flat(content["space"])}
    content = _of_own_loop(content)
    study = validate(StudySpec, _auto(content, source), source)
    if not study.space:
        raise UserError(f"{source}: 'space': is empty; name at least one key to search.")
    elsewhere = dict.fromkeys(COMMON, "stands at the top level, not under fixed")
    elsewhere["seed"] = "is the search's seed; write search.seed"
    if study.fixed.get("exchange_gradients") is False:
        elsewhere["exchange_gradients"] = (
            "false is for measuring a single run, such runs are never ranked; leave it out"
        )
    for key in study.fixed:
        if key in elsewhere:
            raise UserError(f"{source}: 'fixed.{key}': {elsewhere[key]}.")
    named = study.fixed | {"workload": study.workload}
    for key, value in study.fixed.items():  # what excludes each other depends on the space too
        validate_key(RunSpec, key, value, f"{source}: fixed")
    space = parse_space(study.space, named, source)
    for number, given in enumerate(study.search.first):
        _check_first(given, f"{source}: 'search.first.{number}'")
    for one in values_of("optimizer", space, study.fixed):
        if is_librarys(one) and "learning_rate" not in (*space, *study.fixed):
            raise UserError(
                f"{source}: 'space': {one} has no default learning rate here; name its range under "
                "space.learning_rate, or one rate under fixed."
            )
    return study, space


def _check_first(given: dict[str, Any], where: str) -> None:
    """Raise UserError where a configuration of the user's own has keys that are the study's, or
    values that no run has."""
    for key, value in flat(given).items():
        if key in (*COMMON, "seed"):
            raise UserError(f"{where}: '{key}' is the study's, for all its runs; leave it out.")
        parent, _, name = key.partition(".")
        validate_key(RunSpec, parent, {name: value} if name else value, where)
        if not is_key(key):
            raise UserError(f"{where}: unknown key '{key}'; {did_you_mean(key, SEARCHABLE)}")


def _of_own_loop(content: dict[str, Any]) -> dict[str, Any]:
    """Name what follows where a training loop of the user's own is searched."""
    workload, fixed = content.get("workload", ""), content.get("fixed") or {}
    if not is_own_loop(workload):
        return content
    is_named = any("framework" in (content.get(part) or {}) for part in ("space", "fixed"))
    if is_command(workload) and isinstance(fixed, dict) and not is_named:
        content = content | {"fixed": {"framework": "python"} | fixed}
    return content | {"dataset": OWN_DATA}


def _auto(content: dict[str, Any], source: str) -> dict[str, Any]:
    """Note what is `auto`, and put a number there that stands for it until it is set."""
    objective = content.get("objective")
    auto: list[str] = []
    if isinstance(objective, dict):
        auto = [key for key in STANDS_FOR if objective.get(key) == AUTO]
        if auto and objective.get("kind") == BUDGET:
            advice = "leave it out" if auto[0] == "target" else "name the seconds"
            raise UserError(f"{source}: 'objective.{auto[0]}': auto is for {TIME}; {advice}.")
        content = content | {"objective": objective | {key: STANDS_FOR[key] for key in auto}}
    is_named = any(EVAL_INTERVAL in (content.get(part) or ()) for part in ("space", "fixed"))
    if not is_named and not is_own_loop(content.get("workload", "")):  # which evaluates as it likes
        auto.append(EVAL_INTERVAL)
    return content | {"auto": auto}


def apply_settings_to_study(content: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study's content with `settings`: study keys as they are, run-spec keys fixed.

    `optimizer: lamb` takes `optimizer` out of the space and fixes it; `space.optimizer:
    [lamb, lars]` takes it out of what is fixed.
    """
    for given, value in settings.items():
        *parents, last = given.split(".")
        key = ".".join([*parents, OTHER_NAMES.get(last, last)])
        if key == "seed":
            key = "search.seed"
        elif is_open(key) or (key in RunSpec.model_fields and key not in StudySpec.model_fields):
            content = _without(content, "space", key)
            key = f"fixed.{key}"
        elif key.startswith("space."):
            content = _without(content, "fixed", key.removeprefix("space."))
        elif key not in StudySpec.model_fields and (whole := _deeper(key)):
            raise UserError(f"--set {given}: unknown key '{key}'; did you mean '{whole}'?")
        content = with_key(content, key, value, f"--set {given}")
    return content


def _deeper(key: str) -> str | None:
    """Return the key with what it lies below: `objective.max_train_seconds`."""
    for name, field in StudySpec.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, Document) and key in model.model_fields:
            return f"{name}.{key}"
    return None


def _without(content: dict[str, Any], part: str, key: str) -> dict[str, Any]:
    entries = content.get(part)
    if not isinstance(entries, dict):
        return content
    kept = {name: item for name, item in flat(entries).items() if name != key}
    return content | {part: kept if part == "space" else nested(kept)}
