"""Search-space file: the workload, dataset and objective of a study, its searched and fixed keys,
and the settings of search and confirmation.
"""

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
    key_in_section,
    sections_first,
    validate,
    validate_key,
    with_key,
)
from raybench.spec.errors import ErrorCode, UserError, did_you_mean, removed
from raybench.spec.objective import BUDGET, TIME, Objective
from raybench.spec.optimizer import is_library_class
from raybench.spec.own_loop import framework_of, is_own_loop, with_own_data
from raybench.spec.run import DatasetSpec, RunSpec, flat, is_key, is_open, nested
from raybench.spec.space import SEARCHABLE, Space, parse_space, values_of

DEFAULT_TRIALS = 200
NUM_REFERENCE_RUNS = 3
"""Number of reference runs if they set the target."""
NUM_FASTEST_CHECKED = 3
"""Number of configurations (the fastest ones) whose fastest placement is checked after a search."""
MOST_RACE_RUNS = 200
"""Largest value allowed for `confirm.race`, the number of confirmation runs with new seeds."""
MOST_SOLO_ROUNDS = 3
"""Largest number of rounds of solo runs. If the results of a round change the winner, the new
winner has its solo runs in the next round."""
WIDENING = 4.0
"""Largest factor by which learning rates may lie beyond their range with `search.widen`; the lower
bound of a linear range is kept."""


class ConfirmSpec(Document):
    """Confirmation: the best candidates train again with new seeds, then each winner runs alone."""

    race: Annotated[int, Field(ge=0, le=MOST_RACE_RUNS)] = 24
    """Maximum number of runs with new seeds for finding the fastest among the best configurations
    of the search. Up to as many runs find the cheapest, but most runs serve both purposes. A time
    budget may allow fewer runs; 0 skips confirmation."""
    fresh: PositiveInt = 3
    """Number of runs of each winner, alone on the machine, from which the reported time is
    computed."""


AUTO = "auto"
STANDS_FOR = {
    "target": 1.0,
    "max_train_seconds": Objective.model_fields["max_train_seconds"].default,
}
"""Objective keys that may be `auto`, and the placeholder values that they have until reference runs
set them."""
COMMON = ("workload", "dataset", "objective")
"""Run-spec keys at the top level of a search-space file; they have the same value in all runs."""
EVAL_INTERVAL = "eval_every_samples"
AutoKey = Literal["target", "max_train_seconds", "eval_every_samples"]


class SearchSpec(Document):
    """Length and method of the search."""

    trials: PositiveInt | None = None
    """Number of trials; by default 200, or all combinations of a `grid`. A grid with more
    combinations runs only the first ones."""
    first: list[dict[str, Any]] = []
    """Your own configurations, such as `[{learning_rate: 0.02, model: {n: 2}}]`, which are trained
    before all others. They may lie outside the searched ranges and are not stopped early. Searched
    keys that they leave out have typical values (the default learning rate, the first value of a
    list). Reference runs train the first configuration, and the report compares the winner with
    it."""
    seed: Seed = 0
    """Seed of the sampler and of the training of every trial."""
    time_budget_s: PositiveFloat | None = None
    """Time budget of the study in seconds, including start-up and confirmation; the search ends
    when the remaining seconds are needed for confirmation. By default, there is no budget."""
    trial_seconds: PositiveFloat | None = None
    """Maximum wall-clock seconds of a run on its workers, including setup and evaluations. A longer
    run fails (`timeout`), workers that hang are replaced, and the search continues. By default,
    there is no limit."""
    concurrency: PositiveInt | None = None
    """Maximum number of concurrent trials; by default as many as fit on the cluster."""
    sampler: Literal["model", "tpe", "gp", "cmaes", "nsga2", "random", "qmc", "grid"] = "model"
    """Sampler of configurations: `model` fits a model to all learning curves; the other samplers
    are Optuna's. `cmaes` samples categorical keys with TPE, `nsga2` searches the Pareto front of
    seconds and worker-seconds, and `grid` runs every combination of the listed values."""
    early_stopping: bool = True
    """Whether to stop trials that, judging by the learning curves so far, cannot become the best;
    false also disables `cap_factor`."""
    priors: bool = True
    """Whether the first trials include the default learning rate of each optimizer."""
    widen: bool = True
    """Whether the sampler `model` may try learning rates up to a factor of four beyond their range
    where it expects an improvement."""
    factorise: bool = True
    """Whether to sample only the keys that affect accuracy (optimizer, learning rate, global batch
    size) and to predict the effect of keys that affect only speed (workers, GPU model, compilation,
    and the framework if both have the same network); false samples all keys."""
    cap_factor: Annotated[float, Field(ge=1)] | None = 1.5
    """Cutoff factor: a trial is stopped if its next evaluation would come later than this factor
    times the expected time to target of the best configuration (with `grid`, times the best
    measured time). null disables the cutoff."""


class StudySpec(Document):
    """Validated content of a search-space file."""

    workload: str = "mnist_small"
    """Model and task: the name of a workload shipped with raybench, your own class
    (`module:Class`), or your own training loop (`FILE.py:FUNCTION`, or a command after `$ `)."""
    dataset: DatasetSpec = DatasetSpec(image_size=28)
    """Training data, and how much of it to use."""
    objective: Objective
    """Metric, target and budget of the trials."""
    search: SearchSpec = SearchSpec()
    """Length and method of the search."""
    confirm: ConfirmSpec = ConfirmSpec()
    """Confirmation of the winners by runs with new seeds."""
    auto: list[AutoKey] = []
    """Keys that reference runs set before the search: objective keys with the value `auto`, and
    `eval_every_samples` unless the file sets it. Not for files."""
    is_set: bool = False
    """Whether reference runs have set the keys in `auto`. Not for files."""
    price: PositiveFloat | None = None
    """Price of a worker-hour. If given, winners are also reported in money, and the cheapest one
    has the lowest bill."""
    space: dict[str, Any]
    """Run-spec keys to search, each with a list of values, a range, or cases that depend on other
    keys."""
    fixed: dict[str, Any] = {}
    """Run-spec keys that have the same value in all trials."""

    @property
    def needs_reference(self) -> bool:
        """Whether reference runs still have to set a key."""
        return bool(self.auto) and not self.is_set

    @property
    def needs_target(self) -> bool:
        """Whether reference runs still have to set the target."""
        return "target" in self.auto and not self.is_set

    def with_auto_values(self, values: Mapping[str, Any]) -> "StudySpec":
        """Return the study with the given values for its `auto` keys, which then count as set."""
        objective = {key: value for key, value in values.items() if key != EVAL_INTERVAL}
        fixed = {key: value for key, value in values.items() if key == EVAL_INTERVAL}
        return self.model_copy(
            update={
                "objective": self.objective.model_copy(update=objective),
                "fixed": self.fixed | fixed,
                "is_set": True,
            }
        )

    def run_spec(self, values: dict[str, Any], *, seed: int | None = None) -> RunSpec:
        """Return the run spec of a configuration.

        Args:
            values: Values of the searched keys.
            seed: Seed of the run; by default the seed of the search.
        """
        content = nested(self.fixed | values) | self.model_dump(include=set(COMMON))
        content["seed"] = self.search.seed if seed is None else seed
        return validate(RunSpec, content, "configuration")


def target_of(study: Mapping[str, Any]) -> float | None:
    """Return the target of a study given as plain data.

    The result is None if the study has no target, or if reference runs have not set it yet.
    """
    is_placeholder = "target" in study.get("auto", ()) and not study.get("is_set")
    target: float | None = None if is_placeholder else study["objective"].get("target")
    return target


def load_content(
    space: str | Path | dict[str, Any] | StudySpec, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of a search-space file with `settings` applied, before validation.

    Args:
        space: Path of a search-space file or of the `study.yaml` of a results folder, the content
            of such a file, or a validated study.
        settings: Values by dotted key, such as those of the option `--set`.
    """
    content, source = content_of(space, "space")
    study = content if isinstance(space, StudySpec) else content.get("study")
    if isinstance(study, dict):
        content = as_written(validate(StudySpec, study, source).document())
    return apply_settings_to_study(content, settings)


def as_written(study: dict[str, Any]) -> dict[str, Any]:
    """Return the search-space file of a study, as plain data.

    Keys that reference runs have set are `auto` again, or are left out.

    Args:
        study: Validated study as plain data.
    """
    auto, objective = study["auto"], study["objective"]
    content = {key: value for key, value in study.items() if key not in ("auto", "is_set")}
    return content | {
        "objective": objective | {key: AUTO for key in auto if key in objective},
        "fixed": {key: value for key, value in study["fixed"].items() if key not in auto},
    }


def build_study(content: dict[str, Any], source: str) -> tuple[StudySpec, Space]:
    """Validate the content of a study, its space and its fixed keys.

    Args:
        content: Content of a search-space file.
        source: Name of the file, for error messages.

    Returns:
        The study and its parsed search space.

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
    content = _with_own_loop_defaults(content)
    study = validate(StudySpec, _with_placeholders(content, source), source)
    if not study.space:
        raise UserError(
            f"{source}: 'space': is empty; name at least one key to search.", ErrorCode.MISSING
        )
    elsewhere = dict.fromkeys(COMMON, "belongs at the top level, not under fixed")
    elsewhere["seed"] = "is the search's seed; write search.seed"
    if study.fixed.get("exchange_gradients") is False:
        elsewhere["exchange_gradients"] = (
            "false is only for measurements of a single run, since such runs are not ranked; leave "
            "it out"
        )
    for key in study.fixed:
        if key in elsewhere:
            raise UserError(f"{source}: 'fixed.{key}': {elsewhere[key]}.", ErrorCode.CONFLICT)
    named = study.fixed | {"workload": study.workload}
    for key, value in study.fixed.items():  # parse_space checks combinations of keys
        validate_key(RunSpec, key, value, f"{source}: fixed")
    space = parse_space(study.space, named, source)
    for number, configuration in enumerate(study.search.first):
        _check_first(configuration, f"{source}: 'search.first.{number}'")
    for optimizer in values_of("optimizer", space, study.fixed):
        if is_library_class(optimizer) and "learning_rate" not in (*space, *study.fixed):
            raise UserError(
                f"{source}: 'space': {optimizer} has no default learning rate; set a range in "
                "space.learning_rate, or a single rate in fixed.learning_rate.",
                ErrorCode.MISSING,
            )
    return study, space


def _check_first(configuration: dict[str, Any], where: str) -> None:
    """Raise UserError if a configuration of `search.first` has an invalid value, an unknown key, or
    a key that the study sets for all runs."""
    for key, value in flat(configuration).items():
        if key in (*COMMON, "seed"):
            raise UserError(
                f"{where}: '{key}' is set by the study for all runs; leave it out.",
                ErrorCode.CONFLICT,
            )
        validate_key(RunSpec, key, value, where)
        if not is_key(key):
            raise UserError(
                f"{where}: unknown key '{key}'; {did_you_mean(key, SEARCHABLE)}",
                ErrorCode.UNKNOWN_KEY,
            )


def _has_key(content: dict[str, Any], key: str) -> bool:
    """Return whether a run-spec key is under `space` or `fixed` in a study's content."""
    sections = (content.get("space"), content.get("fixed"))
    return any(isinstance(section, dict) and key in section for section in sections)


def _with_own_loop_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """Return a study's content with the values that follow from the user's own training loop:
    `dataset`, and if possible `framework`."""
    framework, fixed = framework_of(str(content.get("workload", ""))), content.get("fixed") or {}
    if framework is not None and isinstance(fixed, dict) and not _has_key(content, "framework"):
        content = content | {"fixed": {"framework": framework} | fixed}
    result: dict[str, Any] = with_own_data(content)
    return result


def _with_placeholders(content: dict[str, Any], source: str) -> dict[str, Any]:
    """Return a study's content with placeholders in place of the value `auto`, and with the keys
    that reference runs will set listed under the key `auto`."""
    objective = content.get("objective")
    auto: list[str] = []
    if isinstance(objective, dict):
        auto = [key for key in STANDS_FOR if objective.get(key) == AUTO]
        if auto and objective.get("kind") == BUDGET:
            advice = "leave it out" if auto[0] == "target" else "set a number of seconds"
            raise UserError(
                f"{source}: 'objective.{auto[0]}': auto is for {TIME}; {advice}.",
                ErrorCode.CONFLICT,
            )
        content = content | {"objective": objective | {key: STANDS_FOR[key] for key in auto}}
    if not _has_key(content, EVAL_INTERVAL) and not is_own_loop(content.get("workload", "")):
        auto.append(EVAL_INTERVAL)
    return content | {"auto": auto}


def apply_settings_to_study(content: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study's content with `settings` applied.

    Keys of a study are set directly; run-spec keys become fixed keys. For example, setting
    `optimizer` to `lamb` moves this key from the space to the fixed keys, and setting
    `space.optimizer` to `[lamb, lars]` moves it from the fixed keys to the space.

    Args:
        content: Content of a search-space file.
        settings: Values by dotted key.

    Raises:
        UserError: A key is unknown.
    """
    for name, value in sections_first(settings):
        key = name
        if key == "seed":
            key = "search.seed"
        elif is_open(key) or (key in RunSpec.model_fields and key not in StudySpec.model_fields):
            content = _without_key(content, "space", key)
            key = f"fixed.{key}"
        elif key.startswith("space."):
            content = _without_key(content, "fixed", key.removeprefix("space."))
        elif key not in StudySpec.model_fields and (full_key := key_in_section(StudySpec, key)):
            raise UserError(
                f"--set {name}: unknown key '{key}'; did you mean '{full_key}'?",
                ErrorCode.UNKNOWN_KEY,
            )
        elif (top := key.partition(".")[0]) not in StudySpec.model_fields:
            if (problem := removed(f"key {top}")) is not None:
                raise UserError(f"--set {name}: '{top}' {problem}.", ErrorCode.REMOVED)
            known_keys = {*StudySpec.model_fields, *RunSpec.model_fields} - {"auto", "is_set"}
            hint = did_you_mean(top, sorted(known_keys), "docs/keys.md lists the keys.")
            raise UserError(f"--set {name}: unknown key '{top}'; {hint}", ErrorCode.UNKNOWN_KEY)
        content = with_key(content, key, value, f"--set {name}")
    return content


def _without_key(content: dict[str, Any], section: str, key: str) -> dict[str, Any]:
    entries = content.get(section)
    if not isinstance(entries, dict):
        return content
    remaining = {name: item for name, item in flat(entries).items() if name != key}
    return content | {section: remaining if section == "space" else nested(remaining)}
