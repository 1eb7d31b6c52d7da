"""Splits by time and by group, and the warning about time-ordered rows."""

import numpy as np
import pandas as pd
import pytest

from raybench.data.dataset import SPLITS
from raybench.data.sources.cut import group_order
from raybench.data.sources.files import open_tables
from raybench.data.sources.tables import prepare
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.documents import validate
from raybench.spec.errors import ErrorCode
from tests.data.making import content, grey, load
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")
ROWS = 400


@pytest.fixture(scope="module")
def visits():
    rng = np.random.default_rng(0)
    patient = np.sort(rng.integers(0, 80, ROWS))
    return pd.DataFrame(
        {
            "day": pd.date_range("2020-01-01", periods=ROWS // 2).repeat(2),
            "number": np.arange(ROWS),
            "patient": [f"p{number:02}" for number in patient],
            "x": rng.normal(size=ROWS),
            "ill": rng.random(ROWS) < 0.3,
        }
    )


def write(folder, frame, name="visits.csv"):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    frame.to_csv(path, index=False)
    return path


def rows_of(path, **keys):
    """Return the row numbers of each split, and the messages."""
    spec, messages = DatasetSpec(name="csv", path=str(path), label="ill", **keys), []
    _, members, _ = prepare(spec, open_tables(spec), messages.append)
    return {member.split: member.rows for member in members}, messages


@pytest.mark.parametrize("by", ["day", {"time": "day"}, {"time": "number"}])
def test_the_latest_rows_are_held_out(tmp_path, visits, by):
    path = write(tmp_path, visits.sample(frac=1, random_state=0))
    time = pd.read_csv(path)["number"].to_numpy()
    rows, _ = rows_of(path, split_by=by, validation_size=60, test_size=0.1)
    times = [np.sort(time[rows[split]]) for split in SPLITS]
    assert [len(split_times) for split_times in times] == [300, 60, 40]
    np.testing.assert_array_equal(np.concatenate(times), np.arange(ROWS))


def test_rows_of_one_time_stay_together(tmp_path, visits):
    rows, _ = rows_of(write(tmp_path, visits), split_by="day", validation_size=41, test_size=19)
    days = [visits["day"].to_numpy()[rows[split]] for split in SPLITS]
    assert [len(split_days) for split_days in days] == [342, 40, 18]
    assert days[0].max() < days[1].min()
    assert days[1].max() < days[2].min()


def test_each_group_is_in_one_split_and_sizes_are_near_the_shares(tmp_path, visits):
    path = write(tmp_path, visits)
    rows, messages = rows_of(path, split_by={"group": "patient"})
    groups = [set(visits["patient"].to_numpy()[rows[split]]) for split in SPLITS]
    assert len(set.union(*groups)) == sum(map(len, groups))
    assert [len(rows[split]) for split in SPLITS] == pytest.approx([320, 40, 40], abs=8)
    assert any("'patient'" in line for line in messages)
    other, _ = rows_of(path, split_by={"group": "patient"}, split_seed=1)
    assert set(other["test"]) != set(rows["test"])


def test_the_largest_group_is_in_the_training_split():
    codes = np.repeat(np.arange(5), [300, 10, 10, 10, 10])
    for seed in range(5):
        order = group_order(codes, seed=seed)
        assert (codes[order[-300:]] == 0).all()


def test_the_split_column_is_an_input_only_if_named(tmp_path, visits):
    path = write(tmp_path, visits)
    dataset = load(path, label="ill", columns=["x", "number"], split_by={"time": "number"})
    assert [column["name"] for column in dataset.encoding["columns"]] == ["x", "number"]
    assert dataset.train.array[:, 1].max() < dataset.validation.array[:, 1].min()
    dataset = load(path, label="ill", validation_size=20, split_by="day")
    assert "day" not in [column["name"] for column in dataset.encoding["columns"]]


def test_a_test_split_is_cut_by_time_if_only_validation_is_given(tmp_path, visits):
    write(tmp_path / "s", visits, "train.csv")
    write(tmp_path / "s", visits.tail(50), "val.csv")
    rows, _ = rows_of(tmp_path / "s", split_by="day")
    assert rows["train"].max() < rows["test"].min()
    write(tmp_path / "s", visits.tail(50), "test.csv")
    with refused(ErrorCode.CONFLICT, "dataset.split_by", tmp_path / "s"):
        rows_of(tmp_path / "s", split_by="day")


def test_images_are_split_by_groups(tmp_path):
    images = [content(grey(number)) for number in range(40)]
    groups = np.arange(40) // 4
    frame = pd.DataFrame({"image": images, "group": groups, "y": np.arange(40) % 2})
    frame.to_parquet(tmp_path / "t.parquet")
    keys = {"label": "y", "image": "image", "split_by": {"group": "group"}}
    dataset = load(tmp_path / "t.parquet", "parquet", **keys)
    groups_by_split = [set(split.array[:, 0, 0, 0] // 4) for split in dataset.splits.values()]
    assert [len(groups_of_split) for groups_of_split in groups_by_split] == [8, 1, 1]
    assert len(set.union(*groups_by_split)) == 10
    assert dataset.train.array[0, 0, 0, 0] % 2 == dataset.train.labels[0]


def test_names_of_groups_may_be_bytes(tmp_path, visits):
    """Spark and Impala write strings without a note that they are text."""
    frame = visits.assign(patient=visits["patient"].astype(str).str.encode("ascii"))
    frame.to_parquet(tmp_path / "visits.parquet")
    dataset = load(
        tmp_path / "visits.parquet", "parquet", label="ill", split_by={"group": "patient"}
    )
    assert sum(len(split.labels) for split in dataset.splits.values()) == ROWS


@pytest.mark.parametrize(
    ("by", "code", "names"),
    [
        ("patient", "INVALID_DATA", ["{time: patient}", "{group: patient}"]),
        ("number", "INVALID_DATA", ["int64", "{time: number}"]),
        ({"time": "patient"}, "INVALID_DATA", ["'patient'", "string"]),
        ("when", "UNKNOWN_NAME", ["'when'"]),
        ({"group": "same"}, "TOO_FEW", ["3", "1"]),
        ({"group": "pair"}, "INVALID_DATA", ["'pair'", "list"]),
        ({"time": "gap"}, "INVALID_DATA", ["11", "'gap'"]),
        ("ill", "CONFLICT", ["'ill'"]),
    ],
)
def test_invalid_split_columns_are_refused(tmp_path, visits, by, code, names):
    frame = visits.assign(same="a", gap=np.where(visits["number"] == 10, np.nan, 1.5))
    frame.assign(pair=[[1, 2]] * ROWS).to_parquet(tmp_path / "visits.parquet")
    with refused(ErrorCode[code], "split_by", *names):
        load(tmp_path / "visits.parquet", "parquet", label="ill", split_by=by)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"name": "digits", "split_by": "day"}, "split_by"),
        ({"name": "csv", "path": "x", "label": "y", "split_by": {}}, "split_by"),
        ({"name": "csv", "path": "x", "label": "y", "dates": "day"}, "day_first"),
    ],
)
def test_invalid_dataset_keys_are_refused(keys, name):
    with refused(ErrorCode.INVALID_VALUE, name):
        validate(DatasetSpec, keys, "t.yaml")


def test_random_splits_of_time_ordered_rows_are_reported(tmp_path, visits):
    def is_reported(frame, **keys):
        return any(
            "dataset.split_by: day" in line for line in rows_of(write(tmp_path, frame), **keys)[1]
        )

    assert is_reported(visits[::-1])
    assert is_reported(pd.concat([visits[::2], visits[1::2], visits[::4]])), "several stations"
    assert not is_reported(visits.sample(frac=1, random_state=0))
    assert not is_reported(visits, split_by="day")
    assert not is_reported(visits.head(12))
