"""`raybench init`: its summary of data, and its file, which is a valid space."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from raybench.commands import cli
from raybench.models.shipped import WORKLOADS
from raybench.spec.documents import read_mapping
from raybench.spec.study import build_study
from tests.data.making import write, write_grey

pytestmark = pytest.mark.usefixtures("own_store")
OWN = """
import numpy as np
from raybench import Workload
from raybench.data.dataset import Dataset, Split

class Mine(Workload):
    name, input_shape, num_classes = "mine", (3,), 2

    def load_dataset(self, spec):
        split = Split(np.zeros((40, 3), np.float32), np.arange(40) % 2)
        return Dataset("mine", 2, train=split, validation=split, test=split)
"""


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBENCH_CACHE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "row": np.arange(300),
            "size": np.where(rng.random(300) < 0.2, np.nan, rng.normal(size=300)),
            "colour": rng.choice(["red", "blue"], 300),
            "price": rng.normal(size=300).round(4),
            "sold": rng.random(300) < 0.9,
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def init_study(*arguments, path="space.yaml"):
    """Run the command successfully; return the study of its file."""
    assert cli.main(["init", *map(str, arguments)]) == cli.DONE
    study, space = build_study(read_mapping(Path(path)), path)
    assert study.workload in WORKLOADS or ":" in study.workload
    assert {"framework", "num_workers", "batch_size_per_worker", "learning_rate"} <= set(space)
    return study


def test_init_reads_a_table(table, capsys):
    study = init_study(table, "--label", "sold")
    out, notes = capsys.readouterr()
    assert all(part in out for part in ("t.csv: 240 samples", "3 columns"))
    assert re.search(r"true \d+ \(9\d\.\d %\)", out)
    assert "'row'" in notes
    assert out.endswith("raybench.tune space.yaml\n")
    assert (study.workload, study.objective.metric, study.auto[0]) == ("mlp", "accuracy", "target")
    assert (study.dataset.label, study.dataset.path) == ("sold", str(table))
    assert "raybench.tune space.yaml --dry-run" in Path("space.yaml").read_text()


def test_a_missing_label_and_an_existing_file_are_refused(table, capsys):
    assert cli.main(["init", str(table)]) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert all(name in error for name in ("--label", "row", "size", "colour"))
    init_study(table, "--label", "sold")
    content = Path("space.yaml").read_text()
    assert cli.main(["init", str(table), "--label", "price"]) == cli.WRONG_INPUT
    assert "space.yaml" in capsys.readouterr().err
    assert Path("space.yaml").read_text() == content
    study = init_study(table, "--label", "price", "--force", "--framework", "torch")
    assert (study.dataset.label, study.objective.metric) == ("price", "rmse")
    assert study.space["framework"] == ["torch"]


def test_the_given_label_and_task_are_written(tmp_path):
    np.savez("d.npz", x=np.ones((50, 3)), y=np.arange(50) % 2, z=np.arange(50))
    dataset = init_study("d.npz", "--label", "z", "--task", "regression").dataset
    assert (dataset.label, dataset.task) == ("z", "regression")
    lines = [f"{row}.png,{20 + row}" for row in range(20)]
    write(tmp_path / "pictures/metadata.csv", ["file_name,age", *lines])
    for row in range(20):
        write_grey(tmp_path / f"pictures/{row}.png", row)
    dataset = init_study("pictures", "--task", "regression", "--force").dataset
    assert (dataset.image, dataset.label, dataset.task) == ("file_name", "age", "regression")


@pytest.mark.parametrize(
    "arguments", [["--label", "size", "--label", "price"], ["--label=size,price"]]
)
def test_several_labels_are_a_list_unless_a_column_has_that_name(table, arguments):
    frame = pd.read_csv(table).fillna({"size": 0})
    frame.to_csv(table, index=False)
    study = init_study(table, *arguments)
    assert (study.dataset.label, study.objective.metric) == (["size", "price"], "rmse")
    frame.rename(columns={"colour": "size,price"}).to_csv(table, index=False)
    assert init_study(table, "--label=size,price", "--force").dataset.label == "size,price"


def test_columns_beside_a_text_are_reported(tmp_path, capsys):
    words = [f"this is a rather long review or reply number {row} of a thing" for row in range(60)]
    frame = {"review": words, "price": np.arange(60) / 7, "reply": words, "label": [1, 2] * 30}
    pd.DataFrame(frame).to_csv("t.csv", index=False)
    assert init_study("t.csv").dataset.text == "review"
    assert "price, reply" in capsys.readouterr().err


def test_init_reads_running_text(tmp_path):
    write(tmp_path / "book.txt", ["Call me Ishmael. " * 500])
    study = init_study("book.txt")
    assert (study.workload, study.dataset.tokens) == ("char_lm", "characters")
    assert study.objective.metric == "loss"


def test_init_reads_a_folder_of_images_of_several_sizes(tmp_path, capsys):
    for number in range(36):
        name = "dog" if number % 3 else "it's #1"
        write_grey(tmp_path / "pets" / name / f"{number}.jpg", number, (70 + number, 75))
    write(tmp_path / "pets" / "notes.txt", ["taken in May"])
    study = init_study("pets")
    out = capsys.readouterr().out
    assert re.search(r"dog \d+ \(6\d\.\d %\)", out)
    assert (study.workload, study.dataset.image_size) == ("small_resnet", 64)


def test_init_reads_images_in_a_table(tmp_path, capsys):
    for number in range(40):
        write_grey(tmp_path / f"{number}.png", number, (20 + number, 30))
    kinds = ["a", "a", "a", "b"] * 10
    frame = pd.DataFrame({"file": [f"{number}.png" for number in range(40)], "kind": kinds})
    frame.assign(price=1.5).to_csv("t.csv", index=False)
    study = init_study("t.csv", "--label", "kind")
    out, notes = capsys.readouterr()
    assert "a 24 (75.0 %)" in out
    assert "price" in notes
    assert (study.dataset.image, study.dataset.image_size) == ("file", 32)
    assert study.workload == "mnist_small"


def test_init_reads_a_workload_class(tmp_path):
    write(tmp_path / "my_init_workload.py", [OWN])
    study = init_study("my_init_workload:Mine")
    assert (study.workload, study.dataset.name) == ("my_init_workload:Mine", "workload")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["none"], "none"),
        (["data.json"], "data.json"),
        (["pets"], "pets/cat/1.png"),
        (["one.csv", "--label", "y"], "one.csv"),
        (["one.npz"], "one.npz"),
        (["one_pngs"], "one_pngs"),
        (["one_texts"], "one_texts"),
    ],
)
def test_invalid_data_and_data_of_one_class_are_refused(tmp_path, capsys, words, named):
    write(tmp_path / "data.json", ["{}"])
    write_grey(tmp_path / "pets/dog/1.png")
    write(tmp_path / "pets/cat/1.png", ["PNG no more"])
    pd.DataFrame({"x": np.arange(60) ** 2, "y": [0.5] * 60}).to_csv("one.csv", index=False)
    np.savez("one.npz", x=np.arange(60.0).reshape(30, 2), y=np.full(30, 5))
    for number in range(20):
        write_grey(tmp_path / f"one_pngs/only/{number}.png", number)
        write(tmp_path / f"one_texts/only/{number}.txt", [f"text {number}"])
    assert cli.main(["init", *words]) == cli.WRONG_INPUT
    assert str(tmp_path / named) in capsys.readouterr().err
    assert not (tmp_path / "space.yaml").exists()
