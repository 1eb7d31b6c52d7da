"""Splits by time and by group, and what is said of rows in order of time."""

import numpy as np
import pandas as pd
import pytest

from raybench.data.dataset import SPLITS
from raybench.data.sources.cut import group_order
from raybench.data.sources.files import open_tables
from raybench.data.sources.table_set import prepare
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
            "patient": [f"p{one:02}" for one in patient],
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
    """Return the rows of each split, by the table's order, and what is said."""
    spec, said = DatasetSpec(name="csv", path=str(path), label="ill", **keys), []
    _, members, _ = prepare(spec, open_tables(spec), said.append)
    return {one.split: one.rows for one in members}, said


@pytest.mark.parametrize("by", ["day", {"time": "day"}, {"time": "number"}])
def test_the_latest_rows_are_held_out(tmp_path, visits, by):
    path = write(tmp_path, visits.sample(frac=1, random_state=0))
    time = pd.read_csv(path)["number"].to_numpy()
    rows, _ = rows_of(path, split_by=by, validation_size=60, test_size=0.1)
    times = [np.sort(time[rows[split]]) for split in SPLITS]
    assert [len(one) for one in times] == [300, 60, 40]
    np.testing.assert_array_equal(np.concatenate(times), np.arange(ROWS))


def test_rows_of_one_time_stay_together(tmp_path, visits):
    rows, _ = rows_of(write(tmp_path, visits), split_by="day", validation_size=41, test_size=19)
    days = [visits["day"].to_numpy()[rows[split]] for split in SPLITS]
    assert [len(one) for one in days] == [342, 40, 18]
    assert days[0].max() < days[1].min()
    assert days[1].max() < days[2].min()


def test_groups_are_in_one_split_each_and_sizes_near_the_shares(tmp_path, visits):
    path = write(tmp_path, visits)
    rows, said = rows_of(path, split_by={"group": "patient"})
    groups = [set(visits["patient"].to_numpy()[rows[split]]) for split in SPLITS]
    assert len(set.union(*groups)) == sum(map(len, groups))
    assert [len(rows[split]) for split in SPLITS] == pytest.approx([320, 40, 40], abs=8)
    assert any("'patient'" in one for one in said)
    other, _ = rows_of(path, split_by={"group": "patient"}, split_seed=1)
    assert set(other["test"]) != set(rows["test"])


def test_a_large_group_is_trained_on():
    codes = np.repeat(np.arange(5), [300, 10, 10, 10, 10])
    for seed in range(5):
        order = group_order(codes, seed=seed)
        assert (codes[order[-300:]] == 0).all()


def test_the_column_is_an_input_where_it_is_named(tmp_path, visits):
    path = write(tmp_path, visits)
    found = load(path, label="ill", columns=["x", "number"], split_by={"time": "number"})
    assert [one["name"] for one in found.encoding["columns"]] == ["x", "number"]
    assert found.train.array[:, 1].max() < found.validation.array[:, 1].min()
    found = load(path, label="ill", validation_size=20, split_by="day")
    assert "day" not in [one["name"] for one in found.encoding["columns"]]


def test_a_test_split_is_cut_by_time_beside_a_validation_split_of_its_own(tmp_path, visits):
    write(tmp_path / "s", visits, "train.csv")
    write(tmp_path / "s", visits.tail(50), "val.csv")
    rows, _ = rows_of(tmp_path / "s", split_by="day")
    assert rows["train"].max() < rows["test"].min()
    write(tmp_path / "s", visits.tail(50), "test.csv")
    with refused(ErrorCode.CONFLICT, "dataset.split_by", tmp_path / "s"):
        rows_of(tmp_path / "s", split_by="day")


def test_images_are_split_by_groups_too(tmp_path):
    images = [content(grey(number)) for number in range(40)]
    groups = np.arange(40) // 4
    frame = pd.DataFrame({"image": images, "group": groups, "y": np.arange(40) % 2})
    frame.to_parquet(tmp_path / "t.parquet")
    keys = {"label": "y", "image": "image", "split_by": {"group": "group"}}
    found = load(tmp_path / "t.parquet", "parquet", **keys)
    own = [set(split.array[:, 0, 0, 0] // 4) for split in found.splits.values()]
    assert [len(one) for one in own] == [8, 1, 1]
    assert len(set.union(*own)) == 10
    assert found.train.array[0, 0, 0, 0] % 2 == found.train.labels[0]


@pytest.mark.parametrize(
    ("by", "code", "names"),
    [
        ("patient", "INVALID_DATA", ["{time: patient}", "{group: patient}"]),
        ("number", "INVALID_DATA", ["int64", "{time: number}"]),
        ({"time": "patient"}, "INVALID_DATA", ["'patient'", "string"]),
        ("when", "UNKNOWN_NAME", ["'when'"]),
        ({"group": "same"}, "TOO_FEW", ["3", "1"]),
        ({"time": "gap"}, "INVALID_DATA", ["12", "'gap'"]),
        ("ill", "CONFLICT", ["'ill'"]),
    ],
)
def test_what_splits_cannot_be_cut_by(tmp_path, visits, by, code, names):
    frame = visits.assign(same="a", gap=np.where(visits["number"] == 10, np.nan, 1.5))
    with refused(ErrorCode[code], "split_by", *names):
        rows_of(write(tmp_path, frame), split_by=by)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"name": "digits", "split_by": "day"}, "split_by"),
        ({"name": "csv", "path": "x", "label": "y", "split_by": {}}, "split_by"),
        ({"name": "csv", "path": "x", "label": "y", "dates": "day"}, "day_first"),
    ],
)
def test_keys_that_cannot_be(keys, name):
    with refused(ErrorCode.INVALID_VALUE, name):
        validate(DatasetSpec, keys, "t.yaml")


def test_rows_in_order_of_time_that_are_split_at_random_are_said(tmp_path, visits):
    def is_said(frame, **keys):
        return any(
            "dataset.split_by: day" in one for one in rows_of(write(tmp_path, frame), **keys)[1]
        )

    assert is_said(visits[::-1])
    assert is_said(pd.concat([visits[::2], visits[1::2], visits[::4]])), "several stations"
    assert not is_said(visits.sample(frac=1, random_state=0))
    assert not is_said(visits, split_by="day")
    assert not is_said(visits.head(12))
