"""`--seed-from DIR`: what an earlier study of the same task measured, told to the sampler.

Its trials are knowledge, not results: they count neither as trials of the new study nor in its
tables, and nothing is capped by their times.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial

from raybench.core.errors import UserError
from raybench.core.objective import search_score, worst_score
from raybench.core.space import Space
from raybench.core.study import StudySpec
from raybench.results.load import StudyResults, load
from raybench.results.provenance import machine
from raybench.results.tables import ranked
from raybench.search.sampling.optuna_space import distributions, encode
from raybench.search.sampling.optuna_study import EARLIER_STUDY, NOT_RUN
from raybench.search.sampling.samplers import PARETO_SAMPLERS
from raybench.speed.factorisation import GLOBAL_BATCH

SAME = ("workload", "dataset", "objective")
"""What must be equal: scores of different tasks say nothing of each other."""


@dataclass(frozen=True)
class Told:
    """What came of it, for the user."""

    num_told: int
    num_outside: int
    """Trials whose configuration the new space does not hold."""
    is_other_machine: bool

    def sentence(self, folder: Path) -> str:
        """Return it in one sentence."""
        text = f"the sampler knows {self.num_told} trials of {folder}"
        if self.num_outside:
            text += f"; {self.num_outside} lie outside the space and were left out"
        if self.is_other_machine:
            text += "; they were timed on another machine, so their seconds are a rough guide"
        return f"{text}."


def load_earlier(folder: Path, study: StudySpec) -> StudyResults:
    """Read the earlier study; UserError where it is of another task."""
    if study.search.sampler in (*PARETO_SAMPLERS, "grid"):
        raise UserError(f"--seed-from: has no use with search.sampler: {study.search.sampler}.")
    earlier = load(folder)
    before, now = earlier.study["study"], study.document()
    if study.needs_target:  # it would be another one than the earlier study's
        raise UserError("--seed-from: cannot be used with target: auto; name the earlier target.")
    for key in SAME:
        if before.get(key) != now[key]:
            old, new = before.get(key), now[key]
            parts = old if isinstance(old, dict) else {}
            changed = [f"{key}.{k} was {v}, is {new[k]}" for k, v in parts.items() if v != new[k]]
            what = changed[0] if changed else f"{key} was {old}, is {new}"
            raise UserError(
                f"--seed-from {folder}: is a study of another task ({what}), so its scores say "
                "nothing here; leave it out, or search the same task."
            )
    return earlier


def tell_earlier(
    journal: optuna.Study, earlier: StudyResults, study: StudySpec, space: Space
) -> Told:
    """Add the earlier trials to Optuna's study, the sampler's `space` taken apart or not."""
    known = distributions(space)
    num_told = num_outside = 0
    fastest = _fastest(earlier)
    runs = ranked(earlier.trials)
    for row in [*runs.to_dict("records"), *_failed(earlier)]:
        spec = earlier.specs[str(row["trial"])]
        params = params_of(spec, study, space, known)
        if params is None:
            num_outside += 1
            continue
        journal.add_trial(
            _trial({str(k): v for k, v in row.items()}, params, known, study, fastest)
        )
        num_told += 1
    other = earlier.study.get("machine", {}).get("processor") != machine()["processor"]
    return Told(num_told, num_outside, other)


def _failed(earlier: StudyResults) -> list[dict[Any, Any]]:
    """Return the trials that failed as their configuration would again."""
    trials = earlier.trials
    chosen = (trials["phase"] == "search") & trials["failure"].isin(["oom", "nan"])
    return trials[chosen].to_dict("records")


def _fastest(earlier: StudyResults) -> dict[str, float]:
    """Return the seconds to the target of every trial, on its fastest split known."""
    times: dict[str, float] = {}
    for table in (earlier.trials, earlier.predictions):
        for trial, seconds in zip(table["trial"], table["time_to_target_s"], strict=True):
            if seconds == seconds:
                times[str(trial)] = min(float(seconds), times.get(str(trial), float("inf")))
    return times


def params_of(
    spec: dict[str, Any], study: StudySpec, space: Space, known: dict[str, BaseDistribution]
) -> dict[str, Any] | None:
    """Return a run spec as the sampler's parameters; None if it is none of the space."""
    values = {key: spec[key] for key in space if key != GLOBAL_BATCH}
    if GLOBAL_BATCH in space:
        values[GLOBAL_BATCH] = spec["num_workers"] * spec["batch_size_per_worker"]
    fixed = study.run_spec(_spec_values(values, spec)).document()
    if any(spec[key] != fixed[key] for key in spec if key != "seed"):
        return None
    params = encode(space, study.fixed, values)
    return params if all(_holds(known[name], value) for name, value in params.items()) else None


def _spec_values(values: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Return sampled values as run-spec keys: a global batch on the split it ran on."""
    rest = {key: value for key, value in values.items() if key != GLOBAL_BATCH}
    if GLOBAL_BATCH in values:
        keys = ("framework", "num_workers", "batch_size_per_worker")
        rest |= {key: spec[key] for key in keys}
    return rest


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return bool(distribution.low <= value <= distribution.high)


def _trial(
    row: dict[str, Any],
    params: dict[str, Any],
    known: dict[str, BaseDistribution],
    study: StudySpec,
    fastest: dict[str, float],
) -> optuna.trial.FrozenTrial:
    used = {name: known[name] for name in params}
    attributes = {NOT_RUN: EARLIER_STUDY}
    if row["failure"] in ("oom", "nan"):
        return create_trial(
            params=params,
            distributions=used,
            value=worst_score(study.objective),
            user_attrs=attributes,
        )
    if row["state"] == "stopped":
        return create_trial(
            params=params,
            distributions=used,
            state=TrialState.PRUNED,
            intermediate_values={int(1000 * row["train_s"]): row["score"]},
            user_attrs=attributes,
        )
    score = row["score"]
    if row["time_to_target_s"] == row["time_to_target_s"]:
        seconds = fastest[row["trial"]]
        score = search_score(
            study.objective, time_to_target_s=seconds, best_accuracy=None, chance=0.0
        )
    return create_trial(params=params, distributions=used, value=score, user_attrs=attributes)
