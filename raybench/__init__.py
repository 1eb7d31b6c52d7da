"""raybench finds, on Ray, the training configuration that reaches your target accuracy fastest.

Importing this package imports neither Ray nor PyTorch or TensorFlow.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from raybench.spec.errors import StudyError as StudyError
from raybench.spec.errors import UserError as UserError

if TYPE_CHECKING:
    from pandas import DataFrame

    from raybench.api import compare as compare
    from raybench.api import diagnose as diagnose
    from raybench.api import plan as plan
    from raybench.api import scale as scale
    from raybench.api import train as train
    from raybench.api import tune as tune
    from raybench.data.dataset import Dataset as Dataset
    from raybench.data.dataset import Split as Split
    from raybench.models.base import Workload as Workload
    from raybench.report.study import Studies, StudyResults
    from raybench.spec.metric import Metric as Metric
    from raybench.training.own import Run as Run

    __version__: str

HOMES = {
    **dict.fromkeys(("tune", "train", "scale", "plan", "diagnose", "compare"), "raybench.api"),
    "Workload": "raybench.models.base",
    "Dataset": "raybench.data.dataset",
    "Split": "raybench.data.dataset",
    "Metric": "raybench.spec.metric",
    "Run": "raybench.training.own",
}
"""Module that defines each public name; a name is imported when it is first used."""
__all__ = [
    "StudyError",
    "UserError",
    "__version__",
    "load",
    "load_model",
    "published_claims",
    *HOMES,
]


def __getattr__(name: str) -> Any:
    """Import a public name (see HOMES), or look up `__version__`, on first use."""
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("raybench")
        except metadata.PackageNotFoundError:  # imported from a checkout
            return "(not installed)"
    raise AttributeError(f"module 'raybench' has no attribute '{name}'")


@overload
def load(place: "str | Path") -> "StudyResults": ...


@overload
def load(
    place: "list[str] | list[Path] | list[str | Path] | tuple[str | Path, ...]",
) -> "Studies": ...


def load(place: "str | Path | Sequence[str | Path]") -> "StudyResults | Studies":
    """Read the results of a study, which may still be running.

    Reading needs neither Ray nor PyTorch or TensorFlow.

    Args:
        place: Results folder or URL, or a list of them.

    Returns:
        The study, or all studies if `place` is a list. A study has DataFrames (`trials`, `curves`,
        `confirmed` and `configurations`; in a scaling study also `scaling`), the configurations
        `best` (`.spec`, `.command`, `.train()`) and `winners`, analyses (`importance`,
        `best_at_every_budget()`, ...) and figures (`plot.curves()`, ...).

    Raises:
        UserError: The folder or URL contains no readable study.

    Example:
        >>> study = raybench.load("results/digits")
        >>> study.best.spec.num_workers, round(study.best.spec.learning_rate, 4)
        (1, 0.0145)
        >>> print(study.trials["time_to_target_s"].min())
        0.39...
    """
    from raybench.report.study import load_any  # pandas is only imported when needed

    return load_any(place)


def load_model(folder: str | Path) -> Any:
    """Load the model that `raybench train` saved.

    Args:
        folder: Results folder of the training, or its URL.

    Returns:
        An `nn.Module` or a `keras.Model`. `model.raybench.predict(rows)` takes raw samples and
        returns class names, or numbers in the unit of the labels.

    Raises:
        UserError: There is no saved model in the folder.

    Example:
        >>> model = raybench.load_model("results/train")
        >>> model.raybench.predict([{"rooms": 3, "side": "north"}]).shape
        (1,)
    """
    from raybench.results.study import load as read_study
    from raybench.training.saved import DATA_FILE, MODEL_FILES, STATE_FILES
    from raybench.training.saved import load_model as read

    results = read_study(folder, files=(*MODEL_FILES.values(), *STATE_FILES.values(), DATA_FILE))
    return read(results.folder, next(iter(results.specs.values())))


def published_claims() -> "dict[str, DataFrame]":
    """Return the published claims that the shipped studies (`raybench scale NAME`) reproduce.

    Returns:
        DataFrames keyed by study name, with the columns `claim`, `published`, `here` and `holds`.
        The last two are filled only in `load(...).claims` of a study that has run.

    Example:
        >>> sorted(raybench.published_claims())[:2]
        ['batch_size_vs_workers', 'bottleneck_probe']
    """
    from raybench.report.scaling_report import published_claims as read

    return read()
