"""What the models of a scaling study have said, as `python -m raybench.scale` leaves it in files.

The models are fitted above this layer; pictures, page and notebooks read what they said.
"""

from pathlib import Path

import pandas as pd

from raybench.core.errors import UserError
from raybench.results.load import StudyResults

MODEL_FILE, PLAN_FILE = "model.csv", "plan.csv"
MODEL_COLUMNS = (
    *("kind", "series", "num_workers", "batch_size_per_worker", "samples_per_s"),
    *("low", "high", "extrapolated"),
)
"""Of MODEL_FILE; `kind` is `measured` (a row a repeat; without the last three) or `predicted`."""
PLAN_COLUMNS = (
    *("series", "gpu_type", "num_workers", "num_nodes", "global_batch_size"),
    *("seconds", "low_s", "high_s", "worker_seconds", "measured_s"),
)
NUMBERS = (
    *("num_workers", "num_nodes", "batch_size_per_worker", "global_batch_size"),
    *("samples_per_s", "low", "high", "seconds", "low_s", "high_s", "worker_seconds"),
    "measured_s",
)


def model_frame(measured: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return the content of MODEL_FILE."""
    both = [measured.assign(kind="measured"), predicted.assign(kind="predicted")]
    return pd.concat(both, ignore_index=True).reindex(columns=list(MODEL_COLUMNS))


def read_model(results: StudyResults) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what was measured and what the model says of it, as `predicted_figure` takes them."""
    table = _read(results.folder / MODEL_FILE, MODEL_COLUMNS)
    is_measured = table["kind"] == "measured"
    predicted = table[~is_measured].reset_index(drop=True)
    is_beyond = predicted["extrapolated"].astype(str).str.lower() == "true"
    measured = table[is_measured].drop(columns=["low", "high", "extrapolated"])
    return measured.reset_index(drop=True), predicted.assign(extrapolated=is_beyond)


def read_plan(results: StudyResults) -> pd.DataFrame:
    """Return the plan, as `plan_figure` takes it."""
    return _read(results.folder / PLAN_FILE, PLAN_COLUMNS)


def has_file(results: StudyResults, name: str) -> bool:
    """Return whether the folder holds such a file."""
    return (results.folder / name).is_file()


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    again = "delete it, and python -m raybench.report writes it anew"
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: cannot be read ({reason}); {again}.") from None
    missing = [name for name in columns if name not in table]
    if missing:
        raise UserError(f"{path}: has no column '{missing[0]}'; {again}.")
    for name in set(columns) & set(NUMBERS):
        found = pd.to_numeric(table[name], errors="coerce")
        wrong = found.isna() & table[name].notna()
        if wrong.any():
            row = wrong.to_numpy().argmax() + 2
            raise UserError(f"{path}, row {row}: {name} is no number; {again}.")
        table[name] = found
    return table
