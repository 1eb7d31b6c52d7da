"""The search-space file: what a study trains, searches, keeps fixed and confirms."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from raybench.spec.documents import (
    Document,
    PositiveFloat,
    PositiveInt,
    Seed,
    content_of,
    validate,
    validate_key,
    with_key,
)
from raybench.spec.errors import ErrorCode, UserError, did_you_mean, removed
from raybench.spec.objective import BUDGET, Objective
from raybench.spec.objective import TIME as TIME
from raybench.spec.optimizer import is_library_class
from raybench.spec.own_loop import (
    framework_of_command,
    is_command,
    is_own_loop,
    with_own_data,
)
from raybench.spec.run import DatasetSpec, RunSpec, flat, is_key, is_open, nested
from raybench.spec.space import SEARCHABLE, Space, parse_space, values_of

MOST = 200
"""Maximum number of confirmation runs."""


class ConfirmSpec(Document):
    """Confirmation: the best candidates rerun with new seeds, then each winner runs alone."""

    race: Annotated[int, Field(ge=0, le=MOST)] = 24
    """Number of confirmation runs, with new seeds, that the best candidates of the search share to
    find the fastest, and as many to find the cheapest (most runs serve both). A time budget may
    allow fewer; 0 skips confirmation."""
    fresh: PositiveInt = 3
    """Number of runs of each winner, alone on the machine, that give the reported time."""


AUTO = "auto"
DEFAULT_TRIALS = 200
STANDS_FOR = {
    "target": 1.0,
    "max_train_seconds": Objective.model_fields["max_train_seconds"].default,
}
"""Keys of an objective that may be `auto`, with placeholders until reference runs set them."""
COMMON = ("workload", "dataset", "objective")
"""Keys of a run spec at the top level of a study."""
EVAL_INTERVAL = "eval_every_samples"
AutoKey = Literal["target", "max_train_seconds", "eval_every_samples"]


class SearchSpec(Document):
    """Length and method of the search."""

    trials: PositiveInt | None = None
    """Number of trials: by default 200, and all combinations of a `grid`; a larger grid runs its
    first combinations."""
    first: list[dict[str, Any]] = []
    """Your own configurations, which run before all others, also in a grid and outside the ranges:
    `[{learning_rate: 0.02, model: {n: 2}}]`. Searched keys that they leave out have their default
    values. They are not stopped early. Reference runs train the first of them, and the answer
    compares the winner with it."""
    seed: Seed = 0
    """Seed of the sampler and of the training of every trial."""
    time_budget_s: PositiveFloat | None = None
    """Time budget of the study in seconds, including start-up and confirmation; the search ends
    when the remaining seconds are needed for confirmation. By default, there is no budget."""
    trial_seconds: PositiveFloat | None = None
    """Maximum wall-clock seconds of a run on its workers, including setup and evaluations. A longer
    run fails (`timeout`), workers that hang are replaced, and the search continues; by default,
    there is no limit."""
    concurrency: PositiveInt | None = None
    """Maximum number of concurrent trials; by default as many as fit the cluster."""
    sampler: Literal["model", "tpe", "gp", "cmaes", "nsga2", "random", "qmc", "grid"] = "model"
    """Sampler of configurations: `model` uses a model of all learning curves, the others are those
    of Optuna. `cmaes` samples categorical keys with TPE, `nsga2` searches the Pareto front of
    seconds and worker-seconds, `grid` runs every combination of lists."""
    early_stopping: bool = True
    """Whether to stop trials that cannot be the best according to the learning curves so far; false
    also disables `cap_factor`."""
    priors: bool = True
    """Whether the first trials include the typical learning rate of each optimizer."""
    widen: bool = True
    """Whether the sampler `model` may try learning rates up to a factor of four outside their range
    where the model expects an improvement."""
    factorise: bool = True
    """Whether to sample only the keys that affect accuracy (optimizer, learning rate, global batch)
    and predict the effect of those that affect speed only (workers, GPU model, compilation, and the
    framework if both have the same network); false samples all keys."""
    cap_factor: Annotated[float, Field(ge=1)] | None = 1.5
    """Cutoff of a trial, as a multiple of the expected time of the best configuration (with `grid`,
    of the best measured time): a trial whose next evaluation comes later is stopped. null disables
    the cutoff."""


class StudySpec(Document):
    """Validated content of a search-space file."""

    workload: str = "mnist_small"
    """Model and task: a shipped name, your own `module:Class`, or your own training loop,
    `FILE.py:FUNCTION` or a command after `$ `."""
    dataset: DatasetSpec = DatasetSpec(image_size=28)
    """Training data, and how much of it to use."""
    objective: Objective
    """Metric, target and budget of the trials."""
    search: SearchSpec = SearchSpec()
    """Length and method of the search."""
    confirm: ConfirmSpec = ConfirmSpec()
    """Confirmation of the winners."""
    auto: list[AutoKey] = []
    """Keys that reference runs set before the search: the keys of the objective that are `auto`,
    and by default the evaluation interval. Not for files."""
    is_set: bool = False
    """Whether reference runs have set the keys in `auto`. Not for files."""
    price: PositiveFloat | None = None
    """Price of a worker-hour: winners are then also reported in money, and the cheapest one has the
    lowest bill."""
    space: dict[str, Any]
    """Searched run-spec keys with their lists, ranges or cases."""
    fixed: dict[str, Any] = {}
    """Run-spec keys with the same value for all trials."""

    @property
    def needs_reference(self) -> bool:
        """Whether reference runs still have to set a key."""
        return bool(self.auto) and not self.is_set

    @property
    def needs_target(self) -> bool:
        """Whether reference runs still have to set the target."""
        return "target" in self.auto and not self.is_set

    def run_spec(self, values: dict[str, Any], *, seed: int | None = None) -> RunSpec:
        """Return the run spec of a configuration: the `values` of the space and the fixed keys."""
        content = nested(self.fixed | values) | self.model_dump(include=set(COMMON))
        content["seed"] = self.search.seed if seed is None else seed
        return validate(RunSpec, content, "configuration")


def target_of(study: Mapping[str, Any]) -> float | None:
    """Return the target in the document of a study; None if it has none, or none yet."""
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
    """Return the document of a study as its file has it, with `auto` for keys of reference runs."""
    auto, objective = study["auto"], study["objective"]
    own = {key: value for key, value in study.items() if key not in ("auto", "is_set")}
    return own | {
        "objective": objective | {key: AUTO for key in auto if key in objective},
        "fixed": {key: value for key, value in study["fixed"].items() if key not in auto},
    }


def build_study(content: dict[str, Any], source: str) -> tuple[StudySpec, Space]:
    """Validate the content of a study, its space and its fixed keys.

    Args:
        content: Content of a search-space file.
        source: Name of the file, with which error messages begin.

    Raises:
        UserError: The content is invalid.
    """
    for key in ("auto", "is_set"):
        if key in content:
            raise UserError(
                f"{source}: unknown key '{key}'; write auto as a key's value.",
                ErrorCode.UNKNOWN_KEY,
            )
    if isinstance(content.get("space"), dict):
        content = content | {"space": flat(content["space"])}
    content = _of_own_loop(content)
    study = validate(StudySpec, _auto(content, source), source)
    if not study.space:
        raise UserError(
            f"{source}: 'space': is empty; name at least one key to search.", ErrorCode.MISSING
        )
    elsewhere = dict.fromkeys(COMMON, "belongs at the top level, not under fixed")
    elsewhere["seed"] = "is the search's seed; write search.seed"
    if study.fixed.get("exchange_gradients") is False:
        elsewhere["exchange_gradients"] = (
            "false is for measuring a single run, such runs are never ranked; leave it out"
        )
    for key in study.fixed:
        if key in elsewhere:
            raise UserError(f"{source}: 'fixed.{key}': {elsewhere[key]}.", ErrorCode.CONFLICT)
    named = study.fixed | {"workload": study.workload}
    for key, value in study.fixed.items():  # parse_space checks keys that exclude each other
        validate_key(RunSpec, key, value, f"{source}: fixed")
    space = parse_space(study.space, named, source)
    for number, given in enumerate(study.search.first):
        _check_first(given, f"{source}: 'search.first.{number}'")
    for one in values_of("optimizer", space, study.fixed):
        if is_library_class(one) and "learning_rate" not in (*space, *study.fixed):
            raise UserError(
                f"{source}: 'space': {one} has no default learning rate here; name its range under "
                "space.learning_rate, or one rate under fixed.",
                ErrorCode.MISSING,
            )
    return study, space


def _check_first(given: dict[str, Any], where: str) -> None:
    """Raise UserError if a configuration of `search.first` has keys of the study or bad values."""
    for key, value in flat(given).items():
        if key in (*COMMON, "seed"):
            raise UserError(
                f"{where}: '{key}' is set by the study for all runs; leave it out.",
                ErrorCode.CONFLICT,
            )
        parent, _, name = key.partition(".")
        validate_key(RunSpec, parent, {name: value} if name else value, where)
        if not is_key(key):
            raise UserError(
                f"{where}: unknown key '{key}'; {did_you_mean(key, SEARCHABLE)}",
                ErrorCode.UNKNOWN_KEY,
            )


def _of_own_loop(content: dict[str, Any]) -> dict[str, Any]:
    """Set the keys that a search of the user's own training loop implies."""
    workload, fixed = content.get("workload", ""), content.get("fixed") or {}
    is_named = any("framework" in (content.get(part) or {}) for part in ("space", "fixed"))
    if is_command(workload) and isinstance(fixed, dict) and not is_named:
        content = content | {"fixed": {"framework": framework_of_command(workload)} | fixed}
    found: dict[str, Any] = with_own_data(content)
    return found


def _auto(content: dict[str, Any], source: str) -> dict[str, Any]:
    """Move `auto` values to the key `auto`, and replace them with placeholders."""
    objective = content.get("objective")
    auto: list[str] = []
    if isinstance(objective, dict):
        auto = [key for key in STANDS_FOR if objective.get(key) == AUTO]
        if auto and objective.get("kind") == BUDGET:
            advice = "leave it out" if auto[0] == "target" else "name the seconds"
            raise UserError(
                f"{source}: 'objective.{auto[0]}': auto is for {TIME}; {advice}.",
                ErrorCode.CONFLICT,
            )
        content = content | {"objective": objective | {key: STANDS_FOR[key] for key in auto}}
    is_named = any(EVAL_INTERVAL in (content.get(part) or ()) for part in ("space", "fixed"))
    if not is_named and not is_own_loop(content.get("workload", "")):
        auto.append(EVAL_INTERVAL)
    return content | {"auto": auto}


def apply_settings_to_study(content: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study's content with `settings`: study keys as they are, run-spec keys fixed.

    `optimizer: lamb` takes `optimizer` out of the space and fixes it; `space.optimizer:
    [lamb, lars]` takes it out of what is fixed.
    """
    for given, value in settings.items():
        key = given
        if key == "seed":
            key = "search.seed"
        elif is_open(key) or (key in RunSpec.model_fields and key not in StudySpec.model_fields):
            content = _without(content, "space", key)
            key = f"fixed.{key}"
        elif key.startswith("space."):
            content = _without(content, "fixed", key.removeprefix("space."))
        elif key not in StudySpec.model_fields and (whole := _deeper(key)):
            raise UserError(
                f"--set {given}: unknown key '{key}'; did you mean '{whole}'?",
                ErrorCode.UNKNOWN_KEY,
            )
        elif (top := key.partition(".")[0]) not in StudySpec.model_fields:
            if (problem := removed(f"key {top}")) is not None:
                raise UserError(f"--set {given}: '{top}' {problem}.", ErrorCode.REMOVED)
            known = {*StudySpec.model_fields, *RunSpec.model_fields} - {"auto", "is_set"}
            hint = did_you_mean(top, sorted(known), "docs/keys.md lists the keys.")
            raise UserError(f"--set {given}: unknown key '{top}'; {hint}", ErrorCode.UNKNOWN_KEY)
        content = with_key(content, key, value, f"--set {given}")
    return content


def _deeper(key: str) -> str | None:
    """Return the dotted key of a nested key: `objective.max_train_seconds`; None for others."""
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
