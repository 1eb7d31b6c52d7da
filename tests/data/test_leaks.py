"""What leaks or is alone in data is said in a sentence each."""

import re

import numpy as np
import pytest

from raybench.data.dataset import Dataset, Split
from raybench.data.digits import load_digits
from raybench.data.leaks import leak_lines
from raybench.data.load import build_dataset
from raybench.data.summary import summarize
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode
from tests.refusals import refused

RNG = np.random.default_rng(0)
ROWS = 600


def write_table(folder, **changed):
    """A table of noise whose label is a coin's, but for columns that are given."""
    content = {"a": RNG.normal(size=ROWS), "b": RNG.normal(size=ROWS)}
    content |= {"label": RNG.choice(["no", "yes"], ROWS)} | changed
    lines = [
        ",".join(content),
        *(",".join(map(str, row)) for row in zip(*content.values(), strict=True)),
    ]
    (folder / "table.csv").write_text("\n".join(lines))
    return folder / "table.csv"


def said(path):
    """What init and tune say."""
    dataset = build_dataset(DatasetSpec(name="csv", path=str(path), label="label"))
    lines = leak_lines(dataset)
    seen = summarize(path, labels=["label"]).lines
    assert all(f"{line[0].upper()}{line[1:]}" in seen for line in lines)
    return lines


LABELS = RNG.choice(["no", "yes"], ROWS)
CASES = {
    "copy": (
        {"label": LABELS, "leak": np.where(LABELS == "no", "x", "y")},
        "'leak'.*100 %",
    ),
    "alone": ({"label": ["maybe", *LABELS[1:]]}, "'maybe'"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_leaks_is_said_once_with_its_name(tmp_path, own_store, name):
    changed, words = CASES[name]
    lines = said(write_table(tmp_path, **changed))
    assert len(lines) == 1
    assert re.search(words, lines[0]), lines


def test_nothing_is_said_of_what_is_sound(tmp_path, own_store):
    assert said(write_table(tmp_path)) == []
    assert leak_lines(load_digits(DatasetSpec(name="digits"))) == []


def of_classes(train, validation, test):
    splits = [np.array(one) for one in (train, validation, test)]
    made = [Split(RNG.normal(size=(len(one), 4)).astype(np.float32), one) for one in splits]
    return Dataset("made up", 3, *made, class_names=("a", "b", "c"))


@pytest.mark.parametrize(
    ("splits", "names"),
    [
        (([0, 1, 2] * 9, [1] * 5, [0, 1, 2]), ["5 validation", "'b'"]),
        (([0, 1, 2] * 9, [0, 1, 2], [2] * 4), ["4 test", "'c'"]),
        (([0, 1] * 9, [0, 2, 1], [2, 1]), ["train", "'c'", "2 "]),
    ],
)
def test_classes_that_a_split_lacks_are_said(splits, names):
    (line,) = leak_lines(of_classes(*splits))
    assert all(name in line for name in names)


def test_training_samples_that_are_all_the_same_are_said():
    inputs, labels = np.zeros((40, 4, 4, 1), np.uint8), np.arange(40) % 2
    one = Split(inputs, labels)
    found = leak_lines(Dataset("made up", 2, one, one, one))
    assert "40 of 40" in found[0]


@pytest.mark.parametrize("kind", ["numbers", "pictures"])
def test_rows_that_stand_in_two_splits_are_counted_for_each_pair(kind):
    shape = (3,) if kind == "numbers" else (40, 40, 3)
    inputs = RNG.integers(0, 255, (300, *shape))
    inputs = inputs.astype(np.float32 if kind == "numbers" else np.uint8)
    labels = RNG.integers(0, 2, 300)
    parts = {"train": (0, 200), "validation": (190, 250), "test": (245, 300)}
    splits = {name: Split(inputs[a:b], labels[a:b]) for name, (a, b) in parts.items()}
    first, second = leak_lines(Dataset("made up", 2, **splits))
    for part in ("10 of 60 validation", "validation sample 0", "training sample 190"):
        assert part in first
    for part in ("5 of 55 test", "test sample 0", "validation sample 55"):
        assert part in second


@pytest.mark.parametrize("value", ["1e308", "-inf"])
@pytest.mark.parametrize("column", ["a", "label"])
def test_numbers_beyond_numbers_count_as_missing(tmp_path, own_store, value, column):
    numbers = [*map(str, RNG.normal(size=ROWS)), value][1:]
    path = write_table(tmp_path, **{column: numbers})
    spec = DatasetSpec(name="csv", path=str(path), label="label", test_size=60)
    if column == "label":
        with refused(ErrorCode.INVALID_DATA, "601", "'label'"):
            build_dataset(spec)  # warnings are errors
        return
    found = build_dataset(spec)
    splits = found.splits.values()
    assert max(np.abs(split.array).max() for split in splits) < 10
