"""`raybench transfer`: plan the few trials of a large model from searches of small models."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from raybench.commands import cli
from raybench.models.base import LayerWorkload
from raybench.models.find import load_workload_dataset
from raybench.models.layers import num_parameters
from raybench.results.store import write_out
from raybench.results.study import Study, load
from raybench.results.verdict import find_verdicts
from raybench.runs.options import TransferOptions
from raybench.scaling.measurements import NINE_OF_TEN
from raybench.scaling.over_sizes import LEAST_TRIALS, BestRate, best_rate, predict
from raybench.search.sampling.default_rates import batch_power
from raybench.spec.documents import to_yaml
from raybench.spec.errors import Ended, UserError
from raybench.spec.space import Space, values_of
from raybench.spec.study import StudySpec, build_study, load_content
from raybench.spec.text import clean, command_line

MOST_TRIALS = 100
WIDE = 30.0
"""Ratio of the ends of an interval above which it is too wide to be useful."""


def transfer(options: TransferOptions) -> Ended:
    """Predict the best learning rate of the large model, and write the space of its trials."""
    if not 1 <= options.trials <= MOST_TRIALS:
        raise UserError(f"--trials: must be from 1 to {MOST_TRIALS}.")
    if options.size is not None and not 1 <= options.size < math.inf:
        raise UserError("--size: name the parameters of the large model, as --size 25600000.")
    out = options.out or options.to.with_name(f"{options.to.stem}-transferred.yaml")
    if out.resolve() == options.to.resolve():
        raise UserError("--out: is the file that --to names; name another.")
    content = load_content(options.to, {})
    study, space = build_study(content, str(options.to))
    if not options.studies:
        raise UserError("DIR: name the searches of smaller models, as results/small.")
    batch = global_batch(study, space, str(options.to))
    small = [load(place) for place in options.studies]
    is_named = "optimizer" in {**content["space"], **(content.get("fixed") or {})}
    allowed = values_of("optimizer", space, study.fixed) if is_named else None
    optimizers = [best_optimizer(one, allowed) for one in small]
    sizes = [size_of(one) for one in small]
    optimizer = optimizers[sizes.index(max(sizes))]
    known = sorted(
        (best_rate_of(one, size, optimizer, batch) for one, size in zip(small, sizes, strict=True)),
        key=lambda one: one.size,
    )
    if len(set(sizes)) < len(sizes):
        raise UserError("Two of these studies have models of one size; name one study a size.")
    size = size_to(study) if options.size is None else options.size
    found = predict(known, size)
    words = sentences(known, found, optimizer, batch, set(optimizers))
    low, high = found.interval
    if high > WIDE * low:
        words.append("That is too wide to be advice: search all rates, or add a study of a size.")
    rest = {key: one for key, one in content["space"].items() if key not in SET}
    fixed = {key: one for key, one in (content.get("fixed") or {}).items() if key not in SET}
    content |= {
        "space": rest | {"learning_rate": found.quantiles(options.trials)},
        "fixed": fixed | {"optimizer": optimizer},
        "search": (content.get("search") or {}) | {"trials": options.trials},
    }
    build_study(content, str(out))
    write_out(out, to_yaml(content))
    print("\n".join(words))
    print(f"\nWrote {out}, {options.trials} rates of the interval:\n  {command_line('tune', out)}")
    rate = {"rate": found.rate, "low": low, "high": high}
    return Ended(cli.DONE, answer=words, details={"wrote": out, "learning_rate": rate})


SET = ("optimizer", "learning_rate")
"""Keys that are replaced in the space of the large model."""


def global_batch(study: StudySpec, space: Space, source: str) -> int:
    """Return the global batch of a space; UserError if it has several."""
    found = {1}
    for key in ("num_workers", "batch_size_per_worker", "accumulate"):
        found = {one * int(value) for one in found for value in values_of(key, space, study.fixed)}
    if len(found) > 1:
        raise UserError(
            f"{source}: a rate belongs to a batch, and this space has several; fix num_workers and "
            "batch_size_per_worker, to those of the best small study, say."
        )
    return found.pop()


def best_optimizer(study: Study, allowed: list[str] | None) -> str:
    """Return the optimizer of the winner of a study, or of its best trial with an `allowed` one.

    Raises:
        UserError: The study has no winner, or no trial with an allowed optimizer.
    """
    for verdict in find_verdicts(study, untested=True).values():
        best = study.specs[verdict.fastest].optimizer
        if allowed is None or best in allowed:
            return best
        trials = study.trials[study.trials["optimizer"].isin(allowed)].dropna(subset="score")
        if len(trials):
            return str(trials.sort_values("score")["optimizer"].iloc[0])
        names = clean(" or ".join(allowed))
        raise UserError(
            f"{study.place}: has no trials of {names}, as the large one asks for; let it have "
            f"{best}, or name a study with them."
        )
    raise UserError(f"{study.place}: has no winner to carry over; finish it, or name another.")


def size_of(study: Study) -> int:
    """Return the number of model parameters of a study; UserError if not all runs have the same."""
    counts = Counter(run.num_parameters for run in study.runs.values() if run.num_parameters)
    if len(counts) != 1:
        several = "models of several sizes" if counts else "no model whose parameters are known"
        raise UserError(f"{study.place}: has {several}; name a study of one size.")
    return counts.most_common()[0][0]


def size_to(study: StudySpec) -> int:
    """Return the number of model parameters of a file; UserError if they cannot be counted."""
    model, data = (study.fixed.get(key) or {} for key in ("model", "data"))
    workload, _ = load_workload_dataset(study.workload, study.dataset, model, data)
    if not isinstance(workload, LayerWorkload):
        raise UserError("--size: name the parameters of the large model, as --size 25600000.")
    return num_parameters(workload.layers, workload.input_shape)


def best_rate_of(study: Study, size: int, optimizer: str, batch: int) -> BestRate:
    """Return the best learning rate of an optimizer; UserError if the study has too few trials."""
    trials = study.trials[study.trials["phase"] == "search"]
    trials = trials[trials["optimizer"] == optimizer]
    costs = trials["score"].where(trials["failure"].isna()).to_numpy(dtype=float)
    if study.is_timed:  # in samples: seconds differ with workers and frameworks
        costs = costs + np.log((trials["samples"] / trials["train_s"]).to_numpy(dtype=float))
    rates, batches = (
        trials[key].to_numpy(dtype=float) for key in ("learning_rate", "global_batch_size")
    )
    power = batch_power(optimizer)
    found = best_rate(size, rates, batches, costs, batch=batch, power=power)
    if found is None:
        raise UserError(
            f"{study.place}: fewer than {LEAST_TRIALS} trials of {optimizer} have run; "
            "search it longer, or name another."
        )
    return found


def sentences(
    known: Sequence[BestRate],
    found: BestRate,
    optimizer: str,
    batch: int,
    optimizers: set[str],
) -> list[str]:
    """Return the best rates, the prediction, and a check of it, in sentences."""

    def words(one: BestRate) -> str:
        low, high = one.interval
        ends = f"{one.bound}: costs still fell at the end of the rates that were tried"
        ends = ends if one.bound else f"90 %: {low:.2g} to {high:.2g}"
        return f"{one.rate:.3g} ({ends}) at {one.size:,.0f} parameters"

    said = [
        f"Best rate of {optimizer} at a batch of {batch}: {'; '.join(map(words, known))}.",
        f"Predicted: {words(found)}.",
    ]
    if len(optimizers) > 1:
        names = clean(" and ".join(sorted(optimizers)))
        said.append(f"The sizes have different winners ({names}): {optimizer} need not be best.")
    if len(known) > 1:
        *smaller, largest = known
        before = predict(smaller, largest.size)
        apart = abs(math.log(before.rate / largest.rate))
        low, high = before.interval
        does = apart <= NINE_OF_TEN * math.hypot(before.spread, largest.spread)
        said.append(
            f"From the smaller ones the largest of these was to be at {before.rate:.3g} ({low:.2g} "
            f"to {high:.2g}): " + ("so it is." if does else "it is not, so do not count on this.")
        )
    return said
