"""Zeus's traces as cases: a task on a GPU, its runs, and the batch size that a method chooses.

`PEERS` are the methods with which raybench's prediction of samples to target is compared. See
`samples_to_target.py`, and the data's own notes: seconds to target are epochs to target times the
seconds of an epoch, both measured.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from raybench.scaling import samples_to_target
from raybench.scaling.measurements import Predicted
from raybench.scaling.plan import answers, plan
from raybench.scaling.samples_to_target import Convergence, read

Predict = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Maps known batch sizes, their samples, and requested batch sizes to predicted samples."""


def nearest(known: np.ndarray, samples: np.ndarray, asked: np.ndarray) -> np.ndarray:
    away = np.abs(np.log(asked[:, None] / known[None, :]))
    return samples[away.argmin(axis=1)]


def interpolated(known: np.ndarray, samples: np.ndarray, asked: np.ndarray) -> np.ndarray:
    return np.exp(np.interp(np.log(asked), np.log(known), np.log(samples)))


def constant(known: np.ndarray, samples: np.ndarray, asked: np.ndarray) -> np.ndarray:
    return np.full(len(asked), float(np.median(samples)))


PEERS: dict[str, Predict] = {
    "nearest size": nearest,
    "interpolated": interpolated,
    "constant": constant,
}
OURS, MEASURED = "raybench", "best measured"
NAMES = (OURS, MEASURED, *PEERS)


def known_medians(runs: Convergence) -> tuple[np.ndarray, np.ndarray]:
    """Return the batch sizes that reached the target, and their median samples."""
    known = runs.medians
    return np.array([size.batch_size for size in known], dtype=float), np.array([*known.values()])


@dataclass(frozen=True)
class Profile:
    """Step time by batch size: linear between measured ones and beyond the ends."""

    batch: np.ndarray
    seconds: np.ndarray

    def __call__(self, num_workers: int, num_nodes: int, batch_size: int) -> Predicted:
        """Predict the step time on the GPU."""
        del num_workers, num_nodes
        found = float(np.interp(batch_size, self.batch, self.seconds))
        if len(self.batch) > 1 and not self.batch[0] <= batch_size <= self.batch[-1]:
            end = slice(0, 2) if batch_size < self.batch[0] else slice(-2, None)
            (left, right), (start, stop) = self.batch[end], self.seconds[end]
            slope = max((stop - start) / (right - left), 0.0)
            beyond = start + slope * (batch_size - left)
            found = max(float(beyond), 0.1 * float(self.seconds[0]))
        return Predicted(found, found, found)


@dataclass(frozen=True)
class Case:
    """A task on a GPU: its runs, and the seconds of an epoch at each profiled batch size."""

    task: str
    gpu: str
    runs: pd.DataFrame
    epoch_s: pd.Series
    true_s: pd.Series
    """Median seconds to target of batch sizes that have both; infinite if most runs missed."""

    @property
    def best(self) -> int:
        """Batch size with the lowest true time."""
        return int(self.true_s.idxmin())


def cases_of(folder: Path, task: str, target: float) -> list[Case]:
    epochs = pd.read_csv(folder / "zeus" / "epochs_to_target.csv")
    epochs = epochs[(epochs["task"] == task) & np.isclose(epochs["target"], target)]
    epochs = epochs.rename(columns={"epochs": "samples_to_target"})
    profiles = pd.read_csv(folder / "zeus" / "epoch_seconds.csv")
    profiles = profiles[
        (profiles["task"] == task) & profiles["optimizer"].isin(set(epochs["optimizer"]))
    ]
    median = epochs.fillna({"samples_to_target": np.inf}).groupby("batch_size")["samples_to_target"]
    cases = []
    for gpu, rows in profiles.groupby("gpu"):
        full = rows[rows["power_limit_w"] == rows["power_limit_w"].max()]
        epoch_s = full.set_index("batch_size")["seconds_per_epoch"].sort_index()
        true_s = (median.median() * epoch_s).dropna()
        if np.isfinite(true_s).any():
            cases.append(Case(task, str(gpu), epochs, epoch_s, true_s))
    return cases


def every_other(values: list[int]) -> list[int]:
    return sorted({*values[::2], values[-1]})


def seen(case: Case, what: str) -> tuple[pd.DataFrame, pd.Series]:
    """Return the runs and the profile that the methods know."""
    if what == "half":
        trained = every_other(sorted(case.runs["batch_size"].unique()))
        profiled = every_other(sorted(case.true_s.index))
    elif what == "hidden":
        trained = [b for b in case.runs["batch_size"].unique() if b != case.best]
        profiled = [b for b in case.true_s.index if b != case.best]
    else:
        return case.runs, case.epoch_s[case.true_s.index]
    return case.runs[case.runs["batch_size"].isin(trained)], case.epoch_s[profiled]


def buy(case: Case, runs: pd.DataFrame, epoch_s: pd.Series) -> dict[str, int | None]:
    """Return the batch size that each method chooses; None if it cannot predict."""
    table = read(runs)
    batch, samples = known_medians(table)
    medians = pd.Series(samples, index=batch.astype(int)) * epoch_s
    bought: dict[str, int | None] = {
        MEASURED: int(medians.idxmin()) if medians.notna().any() else None
    }
    if len(batch) < 2:
        return bought | dict.fromkeys((OURS, *PEERS))
    # The number of steps of an epoch cancels out: "samples" are epochs, and the "step time" is that
    # of an epoch times the batch size.
    known = epoch_s.index.to_numpy(dtype=float)
    profile = Profile(known, epoch_s.to_numpy() * known)
    curve = samples_to_target.fit(table)
    asked = [int(b) for b in case.true_s.index if curve.reaches(int(b))]
    if not asked:
        return bought | dict.fromkeys((OURS, *PEERS))
    kinds = {case.gpu: lambda cells: [profile(*cell) for cell in cells]}
    predicted = plan(curve, kinds, layouts=[(1, 1)], batch_sizes=asked)
    bought[OURS] = int(answers(predicted)["global_batch_size"].iloc[0])
    rest = predicted["global_batch_size"].to_numpy(dtype=float)
    for name, predict in PEERS.items():
        seconds = predict(batch, samples, rest) * predicted["step_s"] / rest
        bought[name] = int(rest[int(np.argmin(seconds))])
    return bought


def losses(case: Case, what: str) -> dict[str, tuple[int | None, float]]:
    """Return the batch size that each method chooses, and its extra time over the best one."""
    bought = buy(case, *seen(case, what))
    return {name: (bought[name], loss(case, bought[name])) for name in NAMES}


def loss(case: Case, batch: int | None) -> float:
    return float(case.true_s[batch] / case.true_s.min() - 1) if batch else np.inf
