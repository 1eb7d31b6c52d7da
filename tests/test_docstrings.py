"""The example in the docstring of every public name runs and prints what it shows."""

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import raybench
from raybench.models.find import load_workload_dataset
from raybench.models.model_data import ModelData
from raybench.spec.objective import Objective
from raybench.spec.run import DatasetSpec
from raybench.training.saved import DATA_FILE, MODEL_FILES
from tests.made_results import readers_folder, results_folder, run_line

ROOT = Path(__file__).parents[1]
NAMES = [name for name in raybench.__all__ if name != "__version__"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the studies, data and loop that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    studies = {"digits": "digits_race", "batch_size_vs_workers": "batch_size_vs_workers"}
    with readers_folder(folder, studies, columns=120):
        yield folder


def save_training(folder: Path) -> None:
    """Write `results/train` as `raybench train` does, with weights that are not trained."""
    torch = pytest.importorskip("torch")
    from raybench.training.torch.model import build_model

    data = DatasetSpec(name="csv", path=str(folder / "my_data.csv"), label="price")
    objective = Objective(kind="best_at_budget", metric="rmse", direction="min")
    place = folder / "results/train"
    run = run_line("0000", workload="mlp", dataset=data, objective=objective)
    results_folder(place, [run], objective=objective)
    workload, dataset = load_workload_dataset("mlp", data)
    (place / DATA_FILE).write_text(ModelData.of(dataset, data).model_dump_json())
    torch.save(build_model(workload, 0).state_dict(), place / MODEL_FILES["torch"])


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_every_public_name_runs(name, folder):
    if name == "load_model":
        save_training(folder)
    names = {"raybench": raybench, "np": np}
    text = inspect.getdoc(getattr(raybench, name)) or ""
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert example.examples, "has no example"
    printed = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=printed.append)
    assert not printed, "".join(printed)
