"""The Optuna study of a search: its parameters, its sampler, and its trials.

`propose` and `encode` translate between configurations and Optuna's parameters. `open_study`
creates the study in its journal file, and `restore` fills it from the records of earlier sessions;
each session writes the file anew.
"""

import importlib.util
import json
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna import samplers
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic_core import to_json

from raybench.search.factorisation import GLOBAL_BATCH, speed_values
from raybench.search.sampling.feedback import Answer, Feedback, shown_attributes
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import BUDGET
from raybench.spec.run import RunSpec, label_keys, value_of
from raybench.spec.space import (
    Cases,
    Choices,
    Dimension,
    Powers,
    Range,
    Simple,
    Space,
    known_values,
    lies_in,
    possible_values,
    resolve,
)
from raybench.spec.study import EVAL_INTERVAL, StudySpec
from raybench.stats.record import Role, RunRecord


def propose(trial: optuna.trial.BaseTrial, space: Space, fixed: dict[str, Any]) -> dict[str, Any]:
    """Ask an Optuna trial for one value per key of the space.

    Keys are encoded as Optuna parameters:

    - A range that depends on another key (such as a learning rate range per optimizer) is a single
      parameter in [0, 1]: the position within the range. The sampler can then model it jointly with
      the other key.
    - Any other key that depends on another key has one parameter per case
      (`weight_decay [optimizer=lars]`).
    - A power of two is encoded as its exponent, so that the sampler knows that 64 lies between 32
      and 128.
    """
    values: dict[str, Any] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Cases) and _are_ranges(dimension):
            share = trial.suggest_float(_share_name(key), 0.0, 1.0)
            values[key] = _value_at(dimension.choose(known_values(fixed, values)).dimension, share)
            continue
        name, simple = _resolve(key, dimension, known_values(fixed, values))
        values[key] = _ask(trial, name, simple)
    return values


def values_of_params(
    params: dict[str, Any], space: Space, fixed: dict[str, Any]
) -> dict[str, Any] | None:
    """Decode Optuna parameters to a configuration; None if a parameter is missing."""
    try:
        return propose(optuna.trial.FixedTrial(params), space, fixed)
    except ValueError:  # raised by Optuna for a missing parameter
        return None


def encode(space: Space, fixed: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Encode a configuration as Optuna parameters, as `propose` does.

    A key without a value has no parameter, so that the sampler chooses it.
    """
    params: dict[str, Any] = {}
    for key, value in values.items():
        dimension = space[key]
        if isinstance(dimension, Cases) and _are_ranges(dimension):
            case = dimension.choose(known_values(fixed, values))
            params[_share_name(key)] = _position_of(case.dimension, value)
            continue
        name, simple = _resolve(key, space[key], known_values(fixed, values))
        params[name] = _parameter(simple, value)
    return params


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the distribution of every parameter that `propose` may ask for."""
    all_distributions: dict[str, BaseDistribution] = {}
    for key, dimension in space.items():
        if isinstance(dimension, Cases) and _are_ranges(dimension):
            all_distributions[_share_name(key)] = FloatDistribution(0.0, 1.0)
        elif isinstance(dimension, Cases):
            for case in dimension.cases:
                name = _name(f"{key} [{case.label()}]", case.dimension)
                all_distributions[name] = _distribution(case.dimension)
        else:
            all_distributions[_name(key, dimension)] = _distribution(dimension)
    return all_distributions


def params_of(
    spec: RunSpec, study: StudySpec, space: Space, *, widen: bool = False
) -> dict[str, Any] | None:
    """Return the configuration of a run spec as Optuna parameters; None if it lies outside the
    space.

    Args:
        spec: The run spec.
        study: The study.
        space: The sampled space; with GLOBAL_BATCH if it is factorized.
        widen: Whether the learning rate may lie outside its range (`search.widen`). A list of
            learning rates is never widened.
    """
    values = {key: value_of(spec, key) for key in space if key != GLOBAL_BATCH}
    # A global batch size has several placements; `spec` has the one on which it ran.
    placement = speed_values(spec.placement) if GLOBAL_BATCH in space else {}
    batch = {GLOBAL_BATCH: spec.global_batch_size} if placement else {}
    all_values = known_values(study.fixed, values)
    for key, value in (values | batch).items():
        if lies_in(key, space[key], value, all_values):
            continue
        is_rate = key == "learning_rate" and isinstance(resolve(space[key], all_values), Range)
        if not (widen and is_rate):
            return None
    expected = study.run_spec(values | placement, seed=spec.seed)
    # Runs that differ only in the evaluation interval have the same configuration.
    if expected.model_copy(update={EVAL_INTERVAL: spec.eval_every_samples}) != spec:
        return None
    return encode(space, study.fixed, values | batch)


def _are_ranges(dimension: Cases) -> bool:
    ranges = [case.dimension for case in dimension.cases]
    return all(isinstance(dimension, Range) and not dimension.is_integer for dimension in ranges)


def _share_name(key: str) -> str:
    return f"{key} [share of its range]"


def _value_at(dimension: Simple, share: float) -> float:
    """Return the value at a position in [0, 1] of a range, on its linear or log scale."""
    assert isinstance(dimension, Range)
    low, high = dimension.low, dimension.high
    value = low * (high / low) ** share if dimension.log else low + share * (high - low)
    value = float(f"{value:.12g}")  # 0.003, not 0.003000000000000001
    return min(max(value, low), high) if 0 <= share <= 1 else value


def _position_of(dimension: Simple, value: float) -> float:
    """Return the position of a value in a range, as the inverse of `_value_at`.

    The position lies outside [0, 1] if the value lies outside the range.
    """
    assert isinstance(dimension, Range)
    low, high = dimension.low, dimension.high
    if dimension.log:
        share = math.log(value / low) / math.log(high / low)
    else:
        share = (value - low) / (high - low)
    is_bound = value in (low, high)
    return float(round(share)) if is_bound else share


def _resolve(key: str, dimension: Dimension, all_values: dict[str, Any]) -> tuple[str, Simple]:
    """Return the Optuna parameter name of a key, and its dimension for given values of the other
    keys."""
    if isinstance(dimension, Cases):
        case = dimension.choose(all_values)
        key, dimension = f"{key} [{case.label()}]", case.dimension
    return _name(key, dimension), dimension


def _name(key: str, dimension: Simple) -> str:
    return f"log2 {key}" if isinstance(dimension, Powers) else key


def _distribution(dimension: Simple) -> BaseDistribution:
    if isinstance(dimension, Choices):
        return CategoricalDistribution([_parameter(dimension, value) for value in dimension.values])
    if isinstance(dimension, Powers):
        exponents = [value.bit_length() - 1 for value in dimension.values()]
        return IntDistribution(exponents[0], exponents[-1])
    if isinstance(dimension, Range) and dimension.is_integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _parameter(dimension: Simple, value: Any) -> Any:
    """Return a value in the form that Optuna stores.

    A power of two becomes its exponent. Choices become JSON strings if Optuna cannot store one of
    them (list, mapping) or would confuse two of them (1 and true).
    """
    if isinstance(dimension, Powers):
        return int(value).bit_length() - 1
    if isinstance(dimension, Choices) and not _are_distinct(dimension.values):
        return to_json(value).decode()
    return value


def _are_distinct(values: tuple[Any, ...]) -> bool:
    is_held = all(value is None or isinstance(value, bool | int | float | str) for value in values)
    return is_held and len({*values}) == len(values)


def _ask(trial: optuna.trial.BaseTrial, name: str, dimension: Simple) -> Any:
    distribution = _distribution(dimension)
    if isinstance(distribution, CategoricalDistribution):
        chosen = distribution.to_internal_repr(
            trial.suggest_categorical(name, distribution.choices)
        )
        return possible_values(dimension)[int(chosen)]
    if isinstance(distribution, IntDistribution):
        value = trial.suggest_int(name, distribution.low, distribution.high, log=distribution.log)
        return 2**value if isinstance(dimension, Powers) else value
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)


REQUIRED_PACKAGES = {
    "gp": ("torch", "gp needs PyTorch; run: pip install 'raybench[torch]'."),
    "cmaes": ("cmaes", "cmaes needs its package; run: pip install cmaes."),
}
PARETO_SAMPLERS = ("nsga2",)
"""Samplers that search for the Pareto front of seconds and worker-seconds."""
STARTUP_TRIALS = 10
"""Number of random trials before an Optuna sampler fits its model."""
POPULATION = 16
"""Population size of NSGA-II; it suits searches of tens to hundreds of trials."""


def build_sampler(name: str, *, seed: int, num_earlier: int) -> BaseSampler:
    """Create an Optuna sampler.

    Args:
        name: Value of `search.sampler`.
        seed: Seed of the study.
        num_earlier: Number of trials that the study already has. It changes the random numbers of a
            resumed study.

    Raises:
        UserError: A package that the sampler needs is not installed.
    """
    module, advice = REQUIRED_PACKAGES.get(name, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        raise UserError(f"search.sampler: {advice}", ErrorCode.NOT_INSTALLED)
    # Optuna marks some samplers and the `group` option of TPE as experimental.
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    # Learning rates outside their range are intended (`search.widen`).
    warnings.filterwarnings("ignore", message="Fixed parameter .* is out of range")
    seed = (seed + 1_000_003 * num_earlier) % 2**32
    at_random = samplers.RandomSampler(seed=seed)
    # `group` models the ranges of different optimizers separately.
    tpe = samplers.TPESampler(
        seed=seed,
        n_startup_trials=STARTUP_TRIALS,
        multivariate=True,
        group=True,
        constant_liar=True,
    )
    match name:
        case "tpe":
            return tpe
        case "gp":
            return samplers.GPSampler(
                seed=seed, n_startup_trials=STARTUP_TRIALS, independent_sampler=at_random
            )
        case "cmaes":
            return samplers.CmaEsSampler(
                seed=seed, independent_sampler=tpe, warn_independent_sampling=False
            )
        case "qmc":
            return samplers.QMCSampler(
                seed=seed,
                scramble=True,
                independent_sampler=at_random,
                warn_independent_sampling=False,
                warn_asynchronous_seeding=False,
            )
        case "nsga2":
            return samplers.NSGAIISampler(seed=seed, population_size=POPULATION)
    return at_random  # with `grid` and `model`, trials are enqueued instead of sampled


class JournalFile(JournalFileBackend):
    """Backend for Optuna's journal file that uses no lock and no fsync.

    Neither is needed, because the results folder is already locked and each session rebuilds the
    file (`restore`).
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append log entries; other processes can read them when this returns."""
        text = "".join(f"{json.dumps(log, separators=(',', ':'))}\n" for log in logs)
        with self._path.open("ab") as file:
            file.write(text.encode())


JOURNAL_FILE, STUDY_NAME = "optuna.log", "raybench"
NOT_RUN = "not_run"
"""User attribute that marks an Optuna trial that never ran; its value is the reason."""
INFEASIBLE = "infeasible"
DUPLICATE = "duplicate"
EARLIER_STUDY = "of an earlier study"
TRIAL, PLACEMENT, SEED = "trial", "placement", "seed"
"""User attributes that an interrupted trial keeps when it is suggested again: name, placement and
seed. The seed distinguishes repeats of a configuration."""
FIRST = "first"
"""User attribute of a trial whose configuration comes from `search.first`; its value is the key of
the configuration in `first_specs`."""


def open_study(study: StudySpec, folder: Path, *, num_earlier: int = 0) -> optuna.Study:
    """Create a new, empty Optuna study in a results folder.

    Args:
        study: The study.
        folder: The results folder; the caller must have locked it.
        num_earlier: Number of runs in earlier sessions. It changes the random numbers of a resumed
            study.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search, path = study.search, folder / JOURNAL_FILE
    path.unlink(missing_ok=True)
    journal = optuna.create_study(
        study_name=STUDY_NAME,
        sampler=build_sampler(search.sampler, seed=search.seed, num_earlier=num_earlier),
        storage=JournalStorage(JournalFile(path)),
        directions=["minimize"] * (2 if search.sampler in PARETO_SAMPLERS else 1),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        journal.set_metric_names(_metric_names(study)[: len(journal.directions)])
    return journal


def _metric_names(study: StudySpec) -> list[str]:
    """Return one name per objective value, which Optuna's own tools show."""
    objective, metric = study.objective, study.objective.judged_by
    if objective.kind != BUDGET:
        return [
            "log seconds to target, on the fastest placement",
            "log worker-seconds to target, on the cheapest placement",
        ]
    name = f"1 - {metric.name}" if metric.is_share else f"score by {metric.name}"
    return [name, f"{name}, weighted by workers"]


def real_trials(journal: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that ran or are running, without rejected proposals."""
    return [
        trial
        for trial in journal.get_trials(deepcopy=False)
        if NOT_RUN not in trial.user_attrs and trial.state != TrialState.WAITING
    ]


def key_of(params: dict[str, Any]) -> str:
    """Return a string that identifies a set of Optuna parameters.

    Values are rounded, since parameters computed from a recorded learning rate are not exact.
    """
    rounded = {k: f"{v:.9g}" if isinstance(v, float) else v for k, v in params.items()}
    return repr(sorted(rounded.items()))


def restore(
    journal: optuna.Study,
    runs: Mapping[str, RunRecord],
    unfinished: Mapping[str, RunSpec],
    study: StudySpec,
    space: Space,
    feedback: Feedback,
    firsts: Mapping[str, RunSpec],
) -> None:
    """Add the trials of earlier sessions to an empty Optuna study.

    Finished trials are added with their results. Interrupted trials are enqueued, except those of
    `search.first`, which the proposer suggests again.

    Args:
        journal: The Optuna study.
        runs: Records of earlier sessions by run name.
        unfinished: Run specs by name of trials that have no record, because their driver was
            killed.
        study: The study.
        space: The sampled space.
        feedback: Converts records to the states and values reported to Optuna.
        firsts: Run specs of `search.first` by key.
    """
    distribution_of, widen = distributions(space), study.search.widen
    trials = {name: record for name, record in runs.items() if record.role == Role.TRIAL}
    specs = {name: record.spec for name, record in trials.items()} | dict(unfinished)
    for name, spec in specs.items():
        record = trials.get(name)
        params = params_of(spec, study, space, widen=widen)
        first = _matching_first(name, spec, record, firsts)
        if record is None or name in unfinished or record.runs_again:
            if first is None and params:
                queued = {TRIAL: name, PLACEMENT: speed_values(spec.placement), SEED: spec.seed}
                journal.enqueue_trial(params, user_attrs=queued)
        elif first is not None or params:
            answer = feedback.answer(record) if params else Answer(TrialState.FAIL)
            attributes = {TRIAL: name, "spec": spec.document()}
            attributes |= {} if first is None else {FIRST: first}
            attributes |= shown_attributes(record, label_keys(study.space))
            add_answer(journal, answer, params or {}, distribution_of, attributes)


def _matching_first(
    name: str, spec: RunSpec, record: RunRecord | None, firsts: Mapping[str, RunSpec]
) -> str | None:
    """Return which configuration of `search.first` a trial ran, as its key in `firsts`; None if it
    ran none of them.

    A reference run that counts as a trial matches too, if it reached the target.
    """
    judged = {"objective": spec.objective, EVAL_INTERVAL: spec.eval_every_samples}
    if name.startswith("reference") and record is not None and record.time_to_target_s is not None:
        judged["seed"] = spec.seed
    for given, first in firsts.items():
        if first.model_copy(update=judged) == spec:
            return given
    return None


def add_answer(
    journal: optuna.Study,
    answer: Answer,
    params: dict[str, Any],
    distribution_of: Mapping[str, BaseDistribution],
    attributes: dict[str, Any],
) -> None:
    """Add a finished trial to an Optuna study.

    Args:
        journal: The Optuna study.
        answer: State and values of the trial.
        params: Parameters of the trial.
        distribution_of: Distribution by parameter; it is widened if the value lies outside.
        attributes: User attributes of the trial.
    """
    reports = None
    if answer.step is not None and answer.values is not None:
        reports = {answer.step: answer.values[0]}
    journal.add_trial(
        create_trial(
            state=answer.state,
            params=params,
            distributions={
                name: _wide_enough(distribution_of[name], at) for name, at in params.items()
            },
            values=answer.values,
            intermediate_values=reports,
            user_attrs=attributes,
        )
    )


def _wide_enough(distribution: BaseDistribution, value: Any) -> BaseDistribution:
    if not isinstance(distribution, FloatDistribution):
        return distribution
    low, high = min(distribution.low, value), max(distribution.high, value)
    return FloatDistribution(low, high, log=distribution.log)
