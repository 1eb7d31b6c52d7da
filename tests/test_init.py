"""`raybench init`: what it says of data, and that its file is a space file as it stands."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from raybench.commands import cli
from raybench.models.shipped import WORKLOADS
from raybench.spec.documents import read_mapping
from raybench.spec.study import build_study

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


def made(*arguments, path="space.yaml"):
    """Run the command, which must end well; return the study that its file holds."""
    assert cli.main(["init", *map(str, arguments)]) == cli.DONE
    study, space = build_study(read_mapping(Path(path)), path)
    assert study.workload in WORKLOADS or ":" in study.workload
    assert {"framework", "num_workers", "batch_size_per_worker", "learning_rate"} <= set(space)
    return study


def test_a_table(table, capsys):
    study = made(table, "--label", "sold")
    out, notes = capsys.readouterr()
    assert all(part in out for part in ("t.csv: 240 samples", "3 columns"))
    assert re.search(r"true \d+ \(9\d\.\d %\)", out)
    assert "'row'" in notes
    assert out.endswith("raybench.tune space.yaml\n")
    assert (study.workload, study.objective.metric, study.auto[0]) == ("mlp", "accuracy", "target")
    assert (study.dataset.label, study.dataset.path) == ("sold", str(table))
    assert "raybench.tune space.yaml --dry-run" in Path("space.yaml").read_text()


def test_the_label_is_asked_for_and_files_are_kept(table, capsys):
    assert cli.main(["init", str(table)]) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert all(name in error for name in ("--label", "row", "size", "colour"))
    made(table, "--label", "sold")
    kept = Path("space.yaml").read_text()
    assert cli.main(["init", str(table), "--label", "price"]) == cli.WRONG_INPUT
    assert "space.yaml" in capsys.readouterr().err
    assert Path("space.yaml").read_text() == kept
    study = made(table, "--label", "price", "--force", "--framework", "torch")
    assert (study.dataset.label, study.objective.metric) == ("price", "rmse")
    assert study.space["framework"] == ["torch"]


@pytest.mark.parametrize("kind", ["csv", "npz", "numbers", "images", "text"])
def test_one_class_alone_is_refused(tmp_path, capsys, kind):
    path = tmp_path / "d"
    if kind in ("csv", "numbers"):
        label = 5 if kind == "csv" else 0.5
        pd.DataFrame({"x": np.arange(60) ** 2, "y": [label] * 60}).to_csv("d.csv", index=False)
        path = tmp_path / "d.csv"
    elif kind == "npz":
        np.savez("d.npz", x=np.arange(60.0).reshape(30, 2), y=np.full(30, 5))
        path = tmp_path / "d.npz"
    else:
        (path / "only").mkdir(parents=True)
        for number in range(20):
            if kind == "images":
                Image.new("L", (4, 4), number).save(path / "only" / f"{number}.png")
            else:
                (path / "only" / f"{number}.txt").write_text(f"text {number}")
    assert cli.main(["init", str(path), *(["--label", "y"] if path.suffix == ".csv" else [])]) == 2
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "space.yaml").exists()


def test_the_label_and_task_that_are_asked_for_are_written(tmp_path):
    np.savez("d.npz", x=np.ones((50, 3)), y=np.arange(50) % 2, z=np.arange(50))
    dataset = made("d.npz", "--label", "z", "--task", "regression").dataset
    assert (dataset.label, dataset.task) == ("z", "regression")
    lines = [f"{row}.png,{20 + row}" for row in range(20)]
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/metadata.csv").write_text("\n".join(["file_name,age", *lines]))
    for row in range(20):
        Image.new("L", (6, 4), row).save(tmp_path / f"pictures/{row}.png")
    dataset = made("pictures", "--task", "regression", "--force").dataset
    assert (dataset.image, dataset.label, dataset.task) == ("file_name", "age", "regression")


@pytest.mark.parametrize("given", [["--label", "size", "--label", "price"], ["--label=size,price"]])
def test_several_labels_are_a_vector(table, given):
    pd.read_csv(table).fillna({"size": 0}).to_csv(table, index=False)
    study = made(table, *given)
    assert (study.dataset.label, study.objective.metric) == (["size", "price"], "rmse")


def test_a_column_called_like_two_is_one():
    frame = pd.DataFrame({"a,b": ["u", "v"] * 30, "a": np.arange(60) % 7, "b": np.arange(60) % 5})
    frame.to_csv("t.csv", index=False)
    assert made("t.csv", "--label", "a,b").dataset.label == "a,b"


def test_what_stands_beside_a_text_or_images_is_said(tmp_path, capsys):
    frame = pd.DataFrame(
        {
            "review": [
                f"this is a rather long review number {row} of a thing" for row in range(60)
            ],
            "price": np.arange(60) / 7,
            "reply": [f"somebody answered at some length, for time {row}" for row in range(60)],
            "label": ["bad", "good"] * 30,
        }
    )
    frame.to_csv("t.csv", index=False)
    made("t.csv")
    assert "price, reply" in capsys.readouterr().err
    for row in range(60):
        Image.new("L", (4, 4), row).save(f"{row}.png")
    frame[["price", "label"]].assign(file=[f"{row}.png" for row in range(60)]).to_csv("i.csv")
    made("i.csv", "--label", "label", "--force")
    assert "price" in capsys.readouterr().err


def test_running_text(tmp_path):
    (tmp_path / "book.txt").write_text("Call me Ishmael. " * 500)
    study = made("book.txt")
    assert (study.workload, study.dataset.tokens) == ("char_lm", "characters")
    assert study.objective.metric == "loss"


def test_a_folder_of_images_of_several_sizes(tmp_path, capsys):
    for name, count in (("it's #1", 12), ("dog", 24)):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(count):
            image = Image.new("RGB", (40 + number, 35))
            image.save(tmp_path / "pets" / name / f"{number}.jpg")
    (tmp_path / "pets" / "notes.txt").write_text("taken in May")
    study = made("pets")
    out = capsys.readouterr().out
    assert re.search(r"dog \d+ \(6\d\.\d %\)", out)
    assert (study.workload, study.dataset.image_size) == ("small_resnet", 32)


def test_images_in_a_table(tmp_path, capsys):
    paths = []
    for number in range(40):
        paths.append(f"{number}.png")
        Image.new("L", (20 + number, 30), number).save(tmp_path / paths[-1])
    pd.DataFrame({"file": paths, "kind": ["a", "a", "a", "b"] * 10}).to_csv("t.csv", index=False)
    study = made("t.csv", "--label", "kind")
    out = capsys.readouterr().out
    assert "a 24 (75.0 %)" in out
    assert (study.dataset.image, study.dataset.image_size) == ("file", 32)
    assert study.workload == "mnist_small"


def test_a_class_of_ones_own(tmp_path):
    (tmp_path / "my_init_workload.py").write_text(OWN)
    study = made("my_init_workload:Mine")
    assert (study.workload, study.dataset.name) == ("my_init_workload:Mine", "workload")


@pytest.mark.parametrize(
    ("name", "content"),
    [("none", None), ("data.json", b"{}"), ("pets/cat/1.png", b"\x89PNG no more")],
)
def test_what_is_no_data_is_named(tmp_path, capsys, name, content):
    if content is not None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        (tmp_path / "pets" / "dog").mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "pets" / "dog" / "1.png")
    assert cli.main(["init", name.split("/")[0]]) == 2
    assert name in capsys.readouterr().err
    assert not (tmp_path / "space.yaml").exists()
