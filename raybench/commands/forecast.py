"""`raybench forecast`: predict learning rate, batch and loss of a large run from small runs."""

from pathlib import Path

import pandas as pd

from raybench.commands import cli
from raybench.runs.options import ForecastOptions
from raybench.scaling.forecast import Forecast, LargeRunModel, Predicted, SmallRun
from raybench.spec.errors import Ended, ErrorCode, UserError
from raybench.spec.text import clean

OTHER_NAMES = {
    "tokens": "samples",
    "batch_tokens": "batch",
    "global_batch_size": "batch",
    "lr": "learning_rate",
}
"""Names of columns in other tools, and the columns they stand for."""
STEPS = (0.5, 1.0, 2.0)
"""Factors on rate and batch of the best run of a cell, for the runs that could be made next."""
CHEAP = 0.1
"""Largest compute of a run to make next, relative to the large run."""


def forecast(options: ForecastOptions) -> Ended:
    """Read the small runs, and print what they predict for the large run."""
    runs = read_runs(options.runs)
    model = LargeRunModel(runs)
    found = model.predict(options.parameters, options.samples)
    large = SmallRun(options.parameters, options.samples, 1.0, 1.0, 1.0)
    nearest = next_run(model, runs, large)
    words = sentences(found, nearest, large)
    print("\n".join(words))
    details = {
        "learning_rate": found.learning_rate._asdict(),
        "batch": found.batch._asdict(),
        "loss": found.loss._asdict(),
        "off_by_two": found.off_by_two,
        "doubts": list(found.doubts),
        "next_run": None if nearest is None else nearest._asdict() | {"loss": None},
    }
    return Ended(cli.DONE, answer=words, details=details)


def read_runs(path: Path) -> list[SmallRun]:
    """Return the runs of a CSV file, one per row.

    Args:
        path: File with the columns of `SmallRun`; other columns are ignored.

    Raises:
        UserError: The file cannot be read, or a column is missing or not numeric.
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
    if missing := [name for name in SmallRun._fields if name not in table]:
        raise UserError(
            f"{path}: has no column {', '.join(missing)}; it needs {', '.join(SmallRun._fields)}, "
            "one row per finished run.",
            ErrorCode.INVALID_FILE,
        )
    numbers = table[list(SmallRun._fields)].apply(pd.to_numeric, errors="coerce")
    # A run that diverged has no loss, and says nothing about the optimum.
    numbers = numbers[numbers["loss"].notna()]
    return [SmallRun(*map(float, row)) for row in numbers.itertuples(index=False)]


def next_run(model: LargeRunModel, runs: list[SmallRun], large: SmallRun) -> SmallRun | None:
    """Return the run that would narrow the prediction most per compute; None if all small runs are
    expensive beside the large one."""
    best: dict[tuple[float, float], SmallRun] = {}
    for run in sorted(runs, key=lambda one: one.loss):
        if run.compute <= CHEAP * large.compute:
            best.setdefault((run.parameters, run.samples), run)
    candidates = [
        run._replace(learning_rate=rate * run.learning_rate, batch=batch * run.batch)
        for run in best.values()
        for rate in STEPS
        for batch in STEPS
    ]
    gains = model.gains(candidates, large.parameters, large.samples)
    worth = [gain / run.compute for gain, run in zip(gains, candidates, strict=True)]
    return candidates[worth.index(max(worth))] if worth else None


def sentences(found: Forecast, nearest: SmallRun | None, large: SmallRun) -> list[str]:
    """Return the prediction in sentences."""

    def interval(one: Predicted) -> str:
        return f"{one.value:.4g} (90 % interval: {one.low:.4g} to {one.high:.4g})"

    rate, batch = (100 * found.off_by_two[name] for name in ("rate", "batch"))
    said = [
        f"Learning rate: {interval(found.learning_rate)}.",
        f"Global batch: {interval(found.batch)} samples.",
        f"Loss: {interval(found.loss)}.",
        f"Off by a factor of two, the learning rate costs {rate:.2g} % of the loss and the batch "
        f"{batch:.2g} %.",
    ]
    if nearest is not None:
        share = 100 * nearest.compute / large.compute
        said.append(
            f"The run that narrows this most per compute: {nearest.parameters:.4g} parameters, "
            f"{nearest.samples:.4g} samples, learning rate {nearest.learning_rate:.3g}, batch "
            f"{nearest.batch:.4g} ({share:.2g} % of the large run)."
        )
    said += [f"Do not rely on it: {one}." for one in found.doubts]
    return said
