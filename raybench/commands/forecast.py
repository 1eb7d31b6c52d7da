"""`raybench forecast`: predict the best learning rate and batch size, and the loss, of a large run
from small runs."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from raybench.models.base import LayerWorkload, OwnLoop, Workload
from raybench.models.find import load_workload_dataset
from raybench.models.layers import num_parameters
from raybench.models.user_code import user_code_errors
from raybench.report.figures.predictions import forecast_figure
from raybench.report.words import duration
from raybench.results.store import write_out
from raybench.results.study import Study, load
from raybench.runs.options import Budget, ForecastOptions
from raybench.scaling.forecast import Forecast, LargeRunModel, OptimumModel, Planned, SmallRun
from raybench.scaling.loss_law import FLOPS_PER_SAMPLE, LossLaw
from raybench.scaling.measurements import Predicted, read_table
from raybench.spec.documents import to_yaml
from raybench.spec.errors import DONE, Ended, ErrorCode, UserError
from raybench.spec.objective import BUDGET
from raybench.spec.run import DatasetSpec, RunSpec, flat, nested, value_of
from raybench.spec.space import Space, values_of
from raybench.spec.study import StudySpec, build_study, load_content
from raybench.spec.text import clean, command_line, counted
from raybench.stats.record import Phase, Purpose, RunRecord
from raybench.training.base import find_part

OTHER_NAMES = {"tokens": "samples", "lr": "learning_rate"}
"""Usual names of table columns, keyed by alternative name."""
CANDIDATE_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors by which the expected best learning rate and batch size are multiplied, to get candidates
for the next small runs."""
LARGEST_SHARE = 0.1
"""Largest compute of a planned small run, as a fraction of the large run's compute."""
SAME_LENGTH = 0.05
"""Largest relative difference in the number of samples at which runs with a decaying learning-rate
schedule are still compared."""
NUM_RATES = 6
"""Number of learning rates in the search space that is written for the large model."""
YAML = (".yaml", ".yml")
LIMIT_FACTOR, UNKNOWN_S = 5.0, 200_000.0
"""Time limit of planned runs, as a multiple of the expected seconds of the longest of them, and the
seconds that are expected if a model's speed is unknown. The limit is only a safeguard: planned runs
end after their epochs."""


@dataclass(frozen=True)
class LargeRun:
    """The large run to predict.

    Args:
        parameters: Number of parameters of the model.
        samples: Number of training samples.
        batch: Global batch size in samples; None if it is not fixed.
        optimizers: Optimizers that may be used; None for any.
        per_worker: Largest batch size per worker in the search space given by `--to`; None without
            `--to`.
    """

    parameters: float
    samples: float
    batch: float | None = None
    optimizers: list[str] | None = None
    per_worker: int | None = None

    @property
    def compute(self) -> float:
        """Total floating-point operations of the run."""
        return FLOPS_PER_SAMPLE * self.parameters * self.samples


class StudyRun(NamedTuple):
    """Study and run spec of a small run."""

    study: Study
    spec: RunSpec
    samples_per_epoch: int


@dataclass(frozen=True)
class MeasuredRun:
    """A small run that was measured.

    Args:
        run: The run.
        train_s: Training seconds; NaN if unknown.
        study_run: Study and run spec of the run; None if the run comes from a table.
    """

    run: SmallRun
    train_s: float = math.nan
    study_run: StudyRun | None = None


def seconds_of(run: SmallRun, small: Sequence[MeasuredRun]) -> float:
    """Return the expected training seconds of a run.

    They are computed from the median seconds per sample of the measured runs with the same model
    size. The result is NaN if there are no such runs.
    """
    seconds_per_sample = [
        measured.train_s / measured.run.samples
        for measured in small
        if measured.run.parameters == run.parameters and measured.train_s > 0
    ]
    return run.samples * statistics.median(seconds_per_sample) if seconds_per_sample else math.nan


def forecast(options: ForecastOptions) -> Ended:
    """Run the `forecast` command: read small runs, and print the prediction for the large run.

    With `--loss`, only the loss is predicted; with `--plan`, the next small runs are chosen.
    """
    if options.loss:
        return predict_loss(options)
    large = large_run(options)
    small = read_runs(options.runs, large.optimizers)
    if options.plan is not None:
        return plan_runs(options, small, large, options.plan)
    optimizer = next(
        (measured.study_run.spec.optimizer for measured in small if measured.study_run is not None),
        None,
    )
    model = LargeRunModel(measured.run for measured in small)
    prediction = model.predict(large.parameters, large.samples, large.batch)
    lines = sentences(prediction, large)
    if optimizer is not None:
        lines.insert(0, f"Optimizer: {optimizer}.")
    details: dict[str, Any] = {
        "learning_rate": prediction.learning_rate._asdict(),
        "batch": prediction.batch._asdict(),
        "loss": prediction.loss._asdict(),
        "off_by_two": prediction.off_by_two,
        "doubts": list(prediction.doubts),
    }
    print("\n".join(lines))
    if options.figure is not None:
        figure = forecast_figure(model, prediction, large.parameters, large.samples)
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
        write_space(options.to, out, prediction.learning_rate, optimizer)
        details["wrote"] = out
        print(
            f"\nWrote {out}, with {NUM_RATES} learning rates of the interval:\n"
            f"  {command_line('tune', out)}"
        )
    return Ended(DONE, answer=lines, details=details)


def predict_loss(options: ForecastOptions) -> Ended:
    """Print the predicted loss of the large run, and the model with the lowest predicted loss for
    the same compute.

    With `--compute`, only the latter is printed.
    """
    small = read_runs(options.runs, None, columns=("parameters", "samples", "loss"))
    columns, lines = np.array([measured.run for measured in small]), list[str]()
    law = LossLaw(columns[:, 0], columns[:, 1], columns[:, 4])
    details: dict[str, Any] = {}
    compute = options.compute
    if compute is None:
        large = large_run(options)
        compute = large.compute
        loss = law.predict(large.parameters, large.samples)
        lines.append(f"Loss: {_interval(loss)}.")
        details["loss"] = loss._asdict()
    best, least_loss = law.optimum(compute)
    samples = compute / FLOPS_PER_SAMPLE / best.value
    lines.append(
        f"With {compute:.3g} floating-point operations, a model of {_interval(best)} parameters "
        f"is best, trained on {samples:.4g} samples; its loss is {_interval(least_loss)}."
    )
    details |= {
        "compute": compute,
        "parameters": best._asdict(),
        "least_loss": least_loss._asdict(),
    }
    print("\n".join(lines))
    return Ended(DONE, answer=lines, details=details)


def plan_runs(
    options: ForecastOptions, small: Sequence[MeasuredRun], large: LargeRun, budget: Budget
) -> Ended:
    """Choose the small runs to train next within a budget, print them, and write them to the file
    of `--out`.

    If its suffix is .yaml or .yml, one search space for `raybench tune` is written for each study
    of small models; otherwise, a CSV table is written.
    """
    planned = choose_runs(small, large, budget, options.within)
    if not planned.runs:
        raise UserError(
            f"--plan {budget}: every candidate run costs more than that; increase the budget.",
            ErrorCode.TOO_FEW,
        )
    table = pd.DataFrame(planned.runs).drop(columns="loss")
    table["share_of_large_run"] = [run.compute / large.compute for run in planned.runs]
    seconds, cost = [seconds_of(run, small) for run in planned.runs], ""
    if not math.isnan(sum(seconds)):
        table["train_s"] = seconds
        cost = f" and train for about {duration(sum(seconds))}"
    lines = [
        f"Train {counted(len(table), 'run')}, most informative first; together they need "
        f"{table['share_of_large_run'].sum():.3g} of the compute of the large run{cost}:",
        f"After these runs, the best learning rate is expected to be known within a factor of "
        f"{planned.rate_factor:.2f}, and the best batch within {planned.batch_factor:.2f} (90 %).",
    ]
    print(lines[0], table.to_string(index=False, float_format="{:.4g}".format), lines[1], sep="\n")
    details: dict[str, Any] = {
        "runs": table.to_dict("records"),
        "expected": {"rate_factor": planned.rate_factor, "batch_factor": planned.batch_factor},
    }
    if options.out is not None and options.out.suffix.lower() in YAML:
        details["wrote"] = write_plans(options.out, planned.runs, small)
        print(
            "\nWrote the runs:",
            *(command_line("tune", file) for file in details["wrote"]),
            sep="\n  ",
        )
        print("Then pass their results folders together with the other runs.")
    elif options.out is not None:
        write_out(options.out, table.to_csv(index=False))
        details["wrote"] = options.out
        print(f"\nWrote {options.out}; add the losses, and pass it together with the other runs.")
    return Ended(DONE, answer=lines, details=details)


def write_plans(out: Path, runs: Sequence[SmallRun], small: Sequence[MeasuredRun]) -> list[Path]:
    """Write the planned runs as search spaces for `raybench tune`, one file per study of small
    models.

    Args:
        out: File to write. If there are several studies, a number is added before the suffix.
        runs: Planned runs.
        small: Small runs so far.

    Returns:
        The files.

    Raises:
        UserError: A model is known only from a table, or a file cannot be written.
    """
    by_study: dict[str, list[tuple[SmallRun, StudyRun]]] = {}
    for run in runs:
        alike = [measured for measured in small if measured.run.parameters == run.parameters]
        alike.sort(key=lambda measured: measured.run.loss)
        alike_runs = [measured.study_run for measured in alike if measured.study_run]
        if not alike_runs:
            raise UserError(
                f"--out {out}: the model of {run.parameters:.4g} parameters is known from a table "
                "only; name a .csv file.",
                ErrorCode.CONFLICT,
            )
        by_study.setdefault(alike_runs[0].study.place, []).append((run, alike_runs[0]))
    files = [out.with_stem(f"{out.stem}-{n}") for n in range(1, len(by_study) + 1)]
    files = files if len(files) > 1 else [out]
    for file, study_runs in zip(files, by_study.values(), strict=True):
        seconds = [seconds_of(run, small) for run, _ in study_runs]
        longest_s = max(UNKNOWN_S if math.isnan(run_s) else run_s for run_s in seconds)
        content = planned_space(study_runs, math.ceil(LIMIT_FACTOR * longest_s))
        build_study(content, str(file))
        write_out(file, to_yaml(content))
    return files


def planned_space(planned: Sequence[tuple[SmallRun, StudyRun]], limit_s: int) -> dict[str, Any]:
    """Return the content of a search space whose configurations are exactly the planned runs.

    The runs train for the planned number of samples, and are neither stopped early nor repeated.
    All other keys that the study searched have their value in the best run of the same model.

    Args:
        planned: Planned runs of one study, each with the best run of the same model.
        limit_s: Training seconds after which a run is ended.
    """
    configurations, study = list[dict[str, Any]](), planned[0][1].study
    for run, (_, spec, samples_per_epoch) in planned:
        # A run rounds its number of samples up.
        samples = run.samples if run.samples % samples_per_epoch == 0 else run.samples - 0.5
        configuration = {key: value_of(spec, key) for key in study.searched} | {
            "learning_rate": run.learning_rate,
            "batch_size_per_worker": max(1, round(run.batch / spec.num_workers / spec.accumulate)),
            "epochs": samples / samples_per_epoch,
            "eval_every_samples": spec.eval_every_samples or samples_per_epoch,
        }
        configurations += [configuration] * (configuration not in configurations)
    content = load_content(study.study, {})
    objective = {key: content["objective"][key] for key in ("metric", "direction", "is_share")}
    dataset = DatasetSpec.model_validate(content["dataset"])
    values = {key: [values[key] for values in configurations] for key in configurations[0]}
    return content | {
        "dataset": {"name": dataset.name} | dataset.model_dump(mode="json", exclude_defaults=True),
        "objective": objective | {"kind": BUDGET, "max_train_seconds": limit_s},
        "search": {
            "first": [nested(configuration) for configuration in configurations],
            "trials": len(configurations),
            "sampler": "random",
            "factorise": False,
            "early_stopping": False,
        },
        "confirm": {"race": 0},
        "space": {
            key: [value for number, value in enumerate(column) if value not in column[:number]]
            for key, column in values.items()
        },
        "fixed": nested(
            {key: value for key, value in flat(content["fixed"]).items() if key not in values}
        ),
    }


def read_runs(
    places: Sequence[str],
    optimizers: list[str] | None,
    columns: Sequence[str] = SmallRun._fields,
) -> list[MeasuredRun]:
    """Read small runs from CSV files and results folders.

    Args:
        places: CSV files and results folders.
        optimizers: Optimizers that may be used; None for any.
        columns: Columns that a CSV file must have; the other fields of `SmallRun` are set to 1.

    Raises:
        UserError: A file or folder cannot be read or used.
    """
    if not places:
        raise UserError(
            "RUNS: name CSV files of runs, or results folders of small models.", ErrorCode.MISSING
        )
    tables = [
        place for place in places if Path(place).is_file() and Path(place).suffix.lower() == ".csv"
    ]
    runs = [run for place in tables for run in runs_of_table(Path(place), columns)]
    if studies := [load(place) for place in places if place not in tables]:
        optimizer = common_optimizer(studies, optimizers)
        runs += [run for study in studies for run in runs_of_study(study, optimizer)]
    return runs


def runs_of_table(path: Path, columns: Sequence[str]) -> list[MeasuredRun]:
    """Read small runs from a CSV file with one row per run.

    Args:
        path: CSV file whose columns are named like fields of `SmallRun`, and optionally `train_s`
            (training seconds).
        columns: Columns that the file must have. All other fields of `SmallRun` are set to 1, and
            other columns are ignored.

    Raises:
        UserError: The file cannot be read, or a column is missing.
    """
    table = read_table(path, columns, OTHER_NAMES)
    numbers = table.reindex(columns=[*columns, "train_s"]).apply(pd.to_numeric, errors="coerce")
    # A run without a loss has diverged, and gives no information about the optimum.
    numbers = numbers[numbers["loss"].notna()]
    seconds = numbers.pop("train_s")
    numbers = numbers.reindex(columns=list(SmallRun._fields), fill_value=1.0)
    return [
        MeasuredRun(SmallRun(*map(float, row)), float(train_s))
        for row, train_s in zip(numbers.itertuples(index=False), seconds, strict=True)
    ]


def runs_of_study(study: Study, optimizer: str) -> list[MeasuredRun]:
    """Return the runs of a study with the given optimizer, reduced to comparable losses.

    Only runs of the search are used. Runs with the same model and the same `epochs` are compared at
    the number of samples of the shortest run that reached its target or its last epoch. The loss of
    a longer run is taken from its learning curve at that point. A run with a decaying learning rate
    schedule is left out if it is clearly longer, because its curve depends on where the schedule
    ends.

    A metric that is maximized must be a proportion, such as accuracy; the loss is then 1 - value.

    Raises:
        UserError: The metric cannot be used, the number of parameters is unknown, or no run reached
            its target or its last epoch.
    """
    metric = study.metric
    if metric.direction == "max" and not metric.is_share:
        raise UserError(
            f"{study.place}: {metric.name} is neither minimized nor a share; name studies of a "
            "loss, an error or an accuracy.",
            ErrorCode.UNSUPPORTED,
        )
    groups: dict[tuple[int | None, float], list[RunRecord]] = {}
    for record in study.runs.values():
        is_usable = record.phase == Phase.SEARCH and record.spec.optimizer == optimizer
        if is_usable and record.failure is None and study.evaluations.get(record.trial):
            group = record.num_parameters, record.spec.epochs
            groups.setdefault(group, []).append(record)
    if not any(
        record.counts_for(Purpose.MEASUREMENT) for records in groups.values() for record in records
    ):
        raise UserError(
            f"{study.place}: no run of {optimizer} ran to its end; search longer, or name another "
            "study.",
            ErrorCode.NO_RESULT,
        )
    if any(parameters is None for parameters, _ in groups):
        raise UserError(
            f"{study.place}: the number of model parameters is not known; name a table of runs.",
            ErrorCode.NO_RESULT,
        )
    measured_runs = list[MeasuredRun]()
    for (_, epochs), records in groups.items():
        last_point = study.evaluations[records[0].trial][-1]
        samples_per_epoch = round(last_point.samples / last_point.epoch)
        full_lengths = [
            record.samples for record in records if record.counts_for(Purpose.MEASUREMENT)
        ]
        # The last batch of a run may extend beyond its last epoch.
        longest = math.ceil(epochs * samples_per_epoch)
        length = min([*full_lengths, longest]) if full_lengths else math.inf
        for record in records:
            curve = study.evaluations[record.trial]
            samples = [point.samples for point in curve]
            is_as_long = samples[-1] <= (1 + SAME_LENGTH) * length
            if samples[-1] < length or not (record.spec.schedule == "constant" or is_as_long):
                continue
            value = float(np.interp(length, samples, [point.value for point in curve]))
            run = SmallRun(
                parameters=float(record.num_parameters or 0),
                samples=float(length),
                batch=float(record.spec.global_batch_size),
                learning_rate=record.spec.learning_rate,
                loss=value if metric.direction == "min" else 1 - value,
            )
            train_s = float(np.interp(length, samples, [point.train_s for point in curve]))
            measured_runs.append(
                MeasuredRun(run, train_s, StudyRun(study, record.spec, samples_per_epoch))
            )
    return measured_runs


def common_optimizer(studies: Sequence[Study], allowed: list[str] | None) -> str:
    """Return the optimizer whose runs are used for the prediction; all studies must have tried it.

    If there are several such optimizers, the one in the best run of the study with the largest
    model is returned.

    Args:
        studies: Studies of small models.
        allowed: Optimizers that may be used; None for any.

    Raises:
        UserError: The studies have no such optimizer in common.
    """
    used = [{spec.optimizer for spec in study.specs.values()} for study in studies]
    names = set.intersection(*used) if allowed is None else set(allowed).intersection(*used)
    if not names:
        allowed_text = "" if allowed is None else f" {' or '.join(allowed)},"
        raise UserError(
            f"forecast: the studies have no optimizer in common{allowed_text}; search one with "
            "all sizes.",
            ErrorCode.TOO_FEW,
        )
    largest = max(
        studies, key=lambda study: max(run.num_parameters or 0 for run in study.runs.values())
    )
    trials = largest.trials[largest.trials["optimizer"].isin(names)].sort_values("score")
    return str(trials["optimizer"].iloc[0])


def large_run(options: ForecastOptions) -> LargeRun:
    """Return the large run to predict, as described by `--to`, or by `--parameters` and
    `--samples`.

    Raises:
        UserError: The number of parameters or samples is neither given nor can be computed.
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
            framework = values_of("framework", space, study.fixed)[0]
            parameters = float(num_parameters_of(workload, framework, options.to))
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
    return LargeRun(parameters, samples, global_batch(study, space), optimizers, per_worker)


def num_parameters_of(workload: Workload, framework: str, space: Path) -> int:
    """Return the number of parameters of a model.

    Args:
        workload: Workload that defines the model.
        framework: Framework in which to build the model.
        space: Search-space file, for error messages.

    Raises:
        UserError: The model has no list of layers and is not a PyTorch model, or it cannot be
            built.
    """
    if isinstance(workload, LayerWorkload):
        return num_parameters(workload.layers, workload.input_shape)
    if framework != "torch" or isinstance(workload, OwnLoop):
        raise UserError(
            f"--parameters: name those of the model of {space}, as --parameters 3e8.",
            ErrorCode.MISSING,
        )
    advice = "; name its number of parameters, as --parameters 3e8"
    with user_code_errors(f"{space}: the model cannot be built to count its parameters", advice):
        return int(find_part(framework, "model").num_parameters_of(workload))


def global_batch(study: StudySpec, space: Space) -> float | None:
    """Return the global batch size in a search space, in samples; None if the space has several."""
    sizes = {1.0}
    for key in ("num_workers", "batch_size_per_worker", "accumulate"):
        sizes = {size * value for size in sizes for value in values_of(key, space, study.fixed)}
    return sizes.pop() if len(sizes) == 1 else None


def write_space(source: Path, out: Path, rate: Predicted, optimizer: str | None) -> None:
    """Write a copy of the large model's search space with the predicted learning rates.

    The copy has the optimizer of the small runs and NUM_RATES learning rates from the predicted
    interval; the predicted learning rate itself runs first.

    Args:
        source: File of the search space.
        out: File to write.
        rate: Predicted learning rate.
        optimizer: Optimizer of the small runs; None keeps that of the search space.

    Raises:
        UserError: `out` is `source`, or cannot be written.
    """
    if out.resolve() == source.resolve():
        raise UserError("--out: is the same file as --to; name another.", ErrorCode.CONFLICT)
    rates = quantiles(rate, NUM_RATES)
    first_configurations = (load_content(source, {}).get("search") or {}).get("first") or []
    settings: dict[str, Any] = {
        "space.learning_rate": rates,
        "search.trials": NUM_RATES,
        "search.first": [{"learning_rate": rates[0]}, *first_configurations],
    }
    content = load_content(source, settings | ({"optimizer": optimizer} if optimizer else {}))
    build_study(content, str(out))
    write_out(out, to_yaml(content))


def quantiles(rate: Predicted, number: int) -> list[float]:
    """Divide a prediction's 90 % interval into equal parts on a log scale; return their midpoints.

    The values are sorted by their distance from the prediction, nearest first.

    Args:
        rate: The prediction with its interval.
        number: Number of values. If it is even, the interval has one part more, and the value
            farthest from the prediction is left out.
    """
    odd = number | 1
    shares = (np.arange(odd) + 0.5) / odd
    values = np.exp(np.log(rate.low) + shares * math.log(rate.high / rate.low))
    values = sorted(values, key=lambda value: abs(math.log(value / rate.value)))
    return [float(f"{value:.3g}") for value in values[:number]]


def choose_runs(
    small: Sequence[MeasuredRun], large: LargeRun, budget: Budget, factor: float | None = None
) -> Planned:
    """Choose the small runs to train next, in descending order of information per cost.

    Candidates combine the model sizes of the given runs with their numbers of samples. Each may
    need at most the fraction LARGEST_SHARE of the large run's compute.

    Args:
        small: Small runs so far.
        large: The large run.
        budget: Maximum total cost of the chosen runs.
        factor: Stop choosing once the best learning rate and batch size are expected to be known
            within this factor; None uses the whole budget.

    Raises:
        UserError: The budget is in seconds, and a model's seconds per sample are unknown.
    """
    runs = [measured.run for measured in small]
    largest = LARGEST_SHARE * large.compute / FLOPS_PER_SAMPLE
    sizes = {
        (run.parameters, other_run.samples)
        for run in runs
        for other_run in runs
        if run.parameters * other_run.samples <= largest
    }
    model = OptimumModel(runs, sorted(sizes))
    candidates = [
        SmallRun(*size, max(1.0, round(float(f"{batch * b:.3g}"))), float(f"{rate * r:.3g}"), 1.0)
        for size in sorted(sizes)
        for rate, batch in [model.position(size)]
        for r in CANDIDATE_FACTORS
        for b in CANDIDATE_FACTORS
    ]
    costs = [run.compute / large.compute for run in candidates]
    if budget.unit == "s":
        costs = [seconds_of(run, small) for run in candidates]
        if math.isnan(sum(costs)):
            raise UserError(
                f"--plan {budget}: the training seconds of a model are not known; add a column "
                "train_s to its table, or name a share of the large run.",
                ErrorCode.MISSING,
            )
    target = large.parameters, large.samples
    return model.choose(candidates, target, costs, budget.amount, factor)


def sentences(prediction: Forecast, large: LargeRun) -> list[str]:
    """Return the prediction as sentences."""
    rate, batch = (100 * prediction.off_by_two[name] for name in ("rate", "batch"))
    batch_text = "" if large.batch is None else f" at a global batch of {large.batch:.4g}"
    lines = [
        f"Learning rate{batch_text}: {_interval(prediction.learning_rate)}.",
        f"Best global batch: {_interval(prediction.batch)} samples."
        f"{_workers(prediction.batch, large)}",
        f"Loss: {_interval(prediction.loss)}.",
        f"Being off by a factor of two raises the loss by {rate:.2g} % for the learning rate and "
        f"by {batch:.2g} % for the batch.",
    ]
    return lines + [f"Do not rely on this prediction: {doubt}." for doubt in prediction.doubts]


def _workers(batch: Predicted, large: LargeRun) -> str:
    """Return a sentence about how many workers the best global batch size can occupy.

    Empty if the batch size per worker is unknown.
    """
    if large.per_worker is None:
        return ""
    fewest, most = (max(1, round(size / large.per_worker)) for size in (batch.low, batch.high))
    number = max(1, round(batch.value / large.per_worker))
    return (
        f" With {large.per_worker} samples per worker, this batch feeds "
        f"{counted(number, 'worker')} ({fewest} to {most}); more workers need a larger "
        "batch, and with it more samples."
    )


def _interval(prediction: Predicted) -> str:
    return f"{prediction.value:.4g} (90 % interval: {prediction.low:.4g} to {prediction.high:.4g})"
