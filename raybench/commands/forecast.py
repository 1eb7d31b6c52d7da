"""`raybench forecast`: predict learning rate, batch and loss of a large run from small runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raybench.commands import cli
from raybench.models.base import LayerWorkload
from raybench.models.find import load_workload_dataset
from raybench.models.layers import num_parameters
from raybench.report.figures.forecast import forecast_figure
from raybench.results.store import write_out
from raybench.results.study import Study, load
from raybench.runs.options import ForecastOptions
from raybench.scaling.forecast import Forecast, LargeRunModel, OptimumModel, SmallRun
from raybench.scaling.loss_law import FLOPS_PER_SAMPLE, LossLaw
from raybench.scaling.measurements import Predicted
from raybench.spec.documents import to_yaml
from raybench.spec.errors import Ended, ErrorCode, UserError
from raybench.spec.space import Space, values_of
from raybench.spec.study import StudySpec, build_study, load_content
from raybench.spec.text import clean, command_line, counted

OTHER_NAMES = {
    "tokens": "samples",
    "params": "parameters",
    "batch_tokens": "batch",
    "global_batch_size": "batch",
    "lr": "learning_rate",
}
"""Names of columns in other tools, and the columns they stand for."""
STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors on rate and batch of the best run of a size, for the runs that could be made next."""
LARGEST_SHARE = 0.1
"""Largest compute of a run to make next, relative to the large run."""
SAME_LENGTH = 0.05
"""Relative difference of lengths at which runs with a decaying schedule are comparable."""
NUM_RATES = 6
"""Learning rates of the space that is written for the large model."""


@dataclass(frozen=True)
class LargeRun:
    """The run to predict.

    Args:
        parameters: Parameters of the model.
        samples: Training samples.
        batch: Global batch, if it is fixed.
        optimizers: Optimizers that may be used; None for any.
        content: Content of the space; None if there is none.
        per_worker: Largest batch per worker of the space; None if there is none.
    """

    parameters: float
    samples: float
    batch: float | None = None
    optimizers: list[str] | None = None
    content: dict[str, Any] | None = None
    per_worker: int | None = None

    @property
    def compute(self) -> float:
        """Floating-point operations of the run."""
        return FLOPS_PER_SAMPLE * self.parameters * self.samples


def forecast(options: ForecastOptions) -> Ended:
    """Read the small runs, and print what they predict for the large run."""
    if options.loss:
        return predict_loss(options)
    large = large_run(options)
    runs, optimizer = read_runs(options.runs, large.optimizers)
    if options.plan is not None:
        return plan_runs(options, runs, large)
    model = LargeRunModel(runs)
    found = model.predict(large.parameters, large.samples, large.batch)
    nearest = choose_runs(runs, large, LARGEST_SHARE)[:1]
    words = sentences(found, large, nearest)
    if optimizer is not None:
        words.insert(0, f"Optimizer: {optimizer}.")
    details: dict[str, Any] = {
        "learning_rate": found.learning_rate._asdict(),
        "batch": found.batch._asdict(),
        "loss": found.loss._asdict(),
        "off_by_two": found.off_by_two,
        "doubts": list(found.doubts),
        "next_run": nearest[0]._asdict() | {"loss": None} if nearest else None,
    }
    print("\n".join(words))
    if options.figure is not None:
        figure = forecast_figure(model, found, large.parameters, large.samples)
        try:
            figure.savefig(options.figure)
        except (OSError, ValueError) as error:
            raise UserError(
                f"--figure {options.figure}: cannot be written ({clean(str(error))}); name "
                "another, such as forecast.png.",
                ErrorCode.NOT_WRITABLE,
            ) from None
        details["figure"] = options.figure
        print(f"\nWrote {options.figure}.")
    if options.to is not None:
        out = options.out or options.to.with_name(f"{options.to.stem}-forecast.yaml")
        write_space(options.to, out, large, found.learning_rate, optimizer)
        details["wrote"] = out
        print(f"\nWrote {out}, {NUM_RATES} rates of the interval:\n  {command_line('tune', out)}")
    return Ended(cli.DONE, answer=words, details=details)


def predict_loss(options: ForecastOptions) -> Ended:
    """Print the loss of the large run, and the compute-optimal model of the same compute."""
    runs, _ = read_runs(options.runs, None, needed=("parameters", "samples", "loss"))
    columns, words = np.array(runs), list[str]()
    law = LossLaw(columns[:, 0], columns[:, 1], columns[:, 4])
    details: dict[str, Any] = {}
    compute = options.compute
    if compute is None:
        large = large_run(options)
        compute = large.compute
        loss = law.predict(large.parameters, large.samples)
        words.append(f"Loss: {_interval(loss)}.")
        details["loss"] = loss._asdict()
    best, least = law.optimum(compute)
    samples = compute / FLOPS_PER_SAMPLE / best.value
    words.append(
        f"With {compute:.3g} floating-point operations, a model of {_interval(best)} parameters "
        f"is best, trained on {samples:.4g} samples; its loss: {_interval(least)}."
    )
    details |= {"compute": compute, "parameters": best._asdict(), "least_loss": least._asdict()}
    print("\n".join(words))
    return Ended(cli.DONE, answer=words, details=details)


def plan_runs(options: ForecastOptions, runs: list[SmallRun], large: LargeRun) -> Ended:
    """Print the small runs to make within a budget, and write them to a file."""
    chosen = choose_runs(runs, large, options.plan or 0.0)
    if not chosen:
        raise UserError(
            f"--plan: no run of a measured size costs {options.plan:.2%} of the large run or less; "
            "name a larger share.",
            ErrorCode.TOO_FEW,
        )
    table = pd.DataFrame(chosen).drop(columns="loss")
    table["share_of_large_run"] = [run.compute / large.compute for run in chosen]
    words = [
        f"Make {counted(len(chosen), 'run')}, {table['share_of_large_run'].sum():.3g} of the "
        "compute of the large run together; the first ones tell most:"
    ]
    print(words[0], table.to_string(index=False, float_format="{:.4g}".format), sep="\n")
    details: dict[str, Any] = {"runs": table.to_dict("records")}
    if options.out is not None:
        write_out(options.out, table.to_csv(index=False))
        details["wrote"] = options.out
        print(f"\nWrote {options.out}; add their losses, and name it beside the other runs.")
    return Ended(cli.DONE, answer=words, details=details)


def read_runs(
    places: Sequence[str],
    optimizers: list[str] | None,
    needed: Sequence[str] = SmallRun._fields,
) -> tuple[list[SmallRun], str | None]:
    """Read the small runs.

    Args:
        places: CSV files and results folders.
        optimizers: Optimizers that may be used; None for any.
        needed: Columns that a CSV file must have; others are 1.

    Returns:
        The runs, and the optimizer of those of studies; None if there are no studies.

    Raises:
        UserError: A file or folder cannot be read or used.
    """
    if not places:
        raise UserError(
            "RUNS: name CSV files of runs, or results folders of small models.", ErrorCode.MISSING
        )
    found, studies = list[SmallRun](), list[Study]()
    for place in places:
        if Path(place).is_file() and Path(place).suffix.lower() == ".csv":
            found += runs_of_table(Path(place), needed)
        else:
            studies.append(load(place))
    if not studies:
        return found, None
    optimizer = common_optimizer(studies, optimizers)
    for study in studies:
        found += runs_of_study(study, optimizer)
    return found, optimizer


def runs_of_table(path: Path, needed: Sequence[str]) -> list[SmallRun]:
    """Return the runs of a CSV file, one per row.

    Args:
        path: File with the columns of `SmallRun`; other columns are ignored.
        needed: Columns that it must have; others are 1.

    Raises:
        UserError: The file cannot be read, or a column is missing.
    """
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        reason = clean(str(error)).rstrip(".")
        raise UserError(
            f"{path}: cannot be read as a CSV file ({reason}).", ErrorCode.INVALID_FILE
        ) from None
    names = {name: own for name, own in OTHER_NAMES.items() if own not in table}
    table = table.rename(columns=names)
    if missing := [name for name in needed if name not in table]:
        raise UserError(
            f"{path}: has no column {', '.join(missing)}; it needs {', '.join(needed)}, "
            "one row per finished run.",
            ErrorCode.INVALID_FILE,
        )
    numbers = table[list(needed)].apply(pd.to_numeric, errors="coerce")
    numbers = numbers.reindex(columns=list(SmallRun._fields), fill_value=1.0)
    # A run that diverged has no loss, and says nothing about the optimum.
    numbers = numbers[numbers["loss"].notna()]
    return [SmallRun(*map(float, row)) for row in numbers.itertuples(index=False)]


def runs_of_study(study: Study, optimizer: str) -> list[SmallRun]:
    """Return the runs of a study with an optimizer, all of one length.

    What is needed: models whose parameters are known, and a metric to minimize, or a share, such as
    an accuracy, of which 1 minus the value is minimized. The length is that of the shortest run
    that ran to its end (to its target or its last epoch); the value of longer runs is that of
    their learning curve at this length. A run with a decaying schedule counts only if it is as
    long, because its curve depends on where the schedule ends.

    Raises:
        UserError: The study does not have what is needed.
    """
    metric = study.metric
    if metric.direction == "max" and not metric.is_share:
        raise UserError(
            f"{study.place}: {metric.name} is neither minimized nor a share; name studies of a "
            "loss, an error or an accuracy.",
            ErrorCode.UNSUPPORTED,
        )
    records = [
        record
        for record in study.runs.values()
        if record.phase == "search" and record.spec.optimizer == optimizer
        if record.failure is None and study.evaluations.get(record.trial)
    ]
    whole = [one.samples for one in records if one.counts_for("measurement")]
    if not whole:
        raise UserError(
            f"{study.place}: no run of {optimizer} ran to its end; search longer, or name another "
            "study.",
            ErrorCode.NO_RESULT,
        )
    sizes = {record.num_parameters for record in records}
    if None in sizes:
        raise UserError(
            f"{study.place}: the number of model parameters is not known; name a table of runs.",
            ErrorCode.NO_RESULT,
        )
    length, found = min(whole), list[SmallRun]()
    for record in records:
        curve = study.evaluations[record.trial]
        samples = [point.samples for point in curve]
        is_as_long = samples[-1] <= (1 + SAME_LENGTH) * length
        if samples[-1] < length or not (record.spec.schedule == "constant" or is_as_long):
            continue
        value = float(np.interp(length, samples, [point.value for point in curve]))
        found.append(
            SmallRun(
                parameters=float(record.num_parameters or 0),
                samples=float(length),
                batch=float(record.spec.global_batch_size),
                learning_rate=record.spec.learning_rate,
                loss=value if metric.direction == "min" else 1 - value,
            )
        )
    return found


def common_optimizer(studies: Sequence[Study], allowed: list[str] | None) -> str:
    """Return the optimizer that the runs of all studies are compared with: of those that all have,
    the one of the best run of the study with the largest model."""
    used = [{spec.optimizer for spec in study.specs.values()} for study in studies]
    names = set.intersection(*used) if allowed is None else set(allowed).intersection(*used)
    if not names:
        asked = "" if allowed is None else f" {' or '.join(allowed)},"
        raise UserError(
            f"forecast: the studies have no optimizer in common{asked or ''}; search one with all "
            "sizes.",
            ErrorCode.TOO_FEW,
        )
    largest = max(
        studies, key=lambda one: max(run.num_parameters or 0 for run in one.runs.values())
    )
    trials = largest.trials[largest.trials["optimizer"].isin(names)].sort_values("score")
    return str(trials["optimizer"].iloc[0])


def large_run(options: ForecastOptions) -> LargeRun:
    """Return the run to predict: that of `--to`, or of `--parameters` and `--samples`.

    Raises:
        UserError: Parameters or samples are not given and cannot be counted.
    """
    parameters, samples = options.parameters, options.samples
    if options.to is None:
        if parameters is None or samples is None:
            raise UserError(
                "--parameters, --samples: name both, or the space of the large model with --to.",
                ErrorCode.MISSING,
            )
        return LargeRun(parameters, samples)
    content = load_content(options.to, {})
    study, space = build_study(content, str(options.to))
    if parameters is None or samples is None:
        model, data = (study.fixed.get(key) or {} for key in ("model", "data"))
        workload, dataset = load_workload_dataset(study.workload, study.dataset, model, data)
        if parameters is None:
            if not isinstance(workload, LayerWorkload):
                raise UserError(
                    f"--parameters: name those of the model of {options.to}, as --parameters 3e8.",
                    ErrorCode.MISSING,
                )
            parameters = float(num_parameters(workload.layers, workload.input_shape))
        if samples is None:
            epochs = values_of("epochs", space, study.fixed)
            if len(epochs) > 1 or not {"epochs"} & {*study.fixed, *space}:
                raise UserError(
                    f"--samples: {options.to} does not fix epochs; name the training samples of "
                    "the large run.",
                    ErrorCode.MISSING,
                )
            samples = float(epochs[0]) * dataset.num_train_samples
    is_named = "optimizer" in {**content["space"], **(content.get("fixed") or {})}
    optimizers = values_of("optimizer", space, study.fixed) if is_named else None
    per_worker = max(values_of("batch_size_per_worker", space, study.fixed))
    batch = global_batch(study, space)
    return LargeRun(parameters, samples, batch, optimizers, content, per_worker)


def global_batch(study: StudySpec, space: Space) -> float | None:
    """Return the global batch of a space; None if it has several."""
    found = {1.0}
    for key in ("num_workers", "batch_size_per_worker", "accumulate"):
        found = {one * value for one in found for value in values_of(key, space, study.fixed)}
    return found.pop() if len(found) == 1 else None


def write_space(
    source: Path, out: Path, large: LargeRun, rate: Predicted, optimizer: str | None
) -> None:
    """Write the space of the large model with learning rates of the interval, the best one first,
    and the optimizer of the small runs.

    Raises:
        UserError: `out` is `source`, or cannot be written.
    """
    if out.resolve() == source.resolve():
        raise UserError("--out: is the file that --to names; name another.", ErrorCode.CONFLICT)
    content = dict(large.content or {})
    known = {} if optimizer is None else {"optimizer": optimizer}
    replaced = {"learning_rate", *known}
    space, fixed = (
        {key: one for key, one in (content.get(part) or {}).items() if key not in replaced}
        for part in ("space", "fixed")
    )
    content |= {
        "space": space | {"learning_rate": quantiles(rate, NUM_RATES)},
        "fixed": fixed | known,
        "search": (content.get("search") or {}) | {"trials": NUM_RATES},
    }
    build_study(content, str(out))
    write_out(out, to_yaml(content))


def quantiles(rate: Predicted, number: int) -> list[float]:
    """Return values that share the 90 % interval of a prediction evenly, its middle first."""
    odd = number | 1
    shares = (np.arange(odd) + 0.5) / odd
    values = np.exp(np.log(rate.low) + shares * math.log(rate.high / rate.low))
    values = sorted(values, key=lambda one: abs(math.log(one / rate.value)))
    return [float(f"{one:.3g}") for one in values[:number]]


def choose_runs(runs: list[SmallRun], large: LargeRun, share: float) -> list[SmallRun]:
    """Return the runs to make next, the one that tells most per compute first.

    The sizes and lengths are those of the small runs in all combinations, as far as one run costs
    no more than LARGEST_SHARE of the large run.

    Args:
        runs: Small runs.
        large: The large run.
        share: Compute of all chosen runs together, relative to the large run.
    """
    largest = LARGEST_SHARE * large.compute / FLOPS_PER_SAMPLE
    sizes = {
        (one.parameters, other.samples)
        for one in runs
        for other in runs
        if one.parameters * other.samples <= largest
    }
    model = OptimumModel(runs, sorted(sizes))
    candidates = [
        SmallRun(*size, max(1.0, round(float(f"{batch * b:.3g}"))), float(f"{rate * r:.3g}"), 1.0)
        for size in sorted(sizes)
        for rate, batch in [model.position(size)]
        for r in STEPS
        for b in STEPS
    ]
    return model.choose(candidates, (large.parameters, large.samples), share * large.compute)


def sentences(found: Forecast, large: LargeRun, nearest: Sequence[SmallRun]) -> list[str]:
    """Return the prediction in sentences."""
    rate, batch = (100 * found.off_by_two[name] for name in ("rate", "batch"))
    at = "" if large.batch is None else f" at a global batch of {large.batch:.4g}"
    said = [
        f"Learning rate{at}: {_interval(found.learning_rate)}.",
        f"Best global batch: {_interval(found.batch)} samples.{_workers(found.batch, large)}",
        f"Loss: {_interval(found.loss)}.",
        f"Off by a factor of two, the learning rate costs {rate:.2g} % of the loss and the batch "
        f"{batch:.2g} %.",
    ]
    said += [
        f"The run that narrows this most per compute: {one.parameters:.4g} parameters, "
        f"{one.samples:.4g} samples, learning rate {one.learning_rate:.3g}, batch {one.batch:.4g} "
        f"({one.compute / large.compute:.2%} of the large run)."
        for one in nearest
    ]
    return said + [f"Do not rely on it: {one}." for one in found.doubts]


def _workers(batch: Predicted, large: LargeRun) -> str:
    """Return a sentence on the workers that the best batch feeds; empty if the batch per worker is
    not known."""
    if large.per_worker is None:
        return ""
    least, most = (max(1, round(one / large.per_worker)) for one in (batch.low, batch.high))
    number = max(1, round(batch.value / large.per_worker))
    return (
        f" With {large.per_worker} samples per worker it feeds {counted(number, 'worker')} "
        f"({least} to {most}); more workers need a larger batch, and with it more samples."
    )


def _interval(one: Predicted) -> str:
    return f"{one.value:.4g} (90 % interval: {one.low:.4g} to {one.high:.4g})"
