"""What leaves the study for a tool: flat, finite, without secrets."""

import math

import pytest

from raybench.loggers.sink import curve_values, params_of, shown
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation
from tests.made_results import POINT


def test_a_spec_is_flat_and_without_what_is_not_set():
    params = params_of(RunSpec(learning_rate=0.25, step_at=[0.25, 0.5]))
    assert params["learning_rate"] == 0.25
    assert params["dataset.name"] == "digits"
    assert params["step_at"] == "[0.25, 0.5]"
    assert params["nesterov"] is False
    assert "momentum" not in params
    assert not any(isinstance(value, dict | list) for value in params.values())


def test_what_is_not_finite_is_no_point():
    point = Evaluation(**(POINT | {"train_loss": math.nan}), index=0, samples=7, train_s=1, value=1)
    values = curve_values(point, "accuracy")
    assert values["validation_accuracy"] == 1
    assert values["samples"] == 7
    assert "train_loss" not in values


@pytest.mark.parametrize(
    "path", ["https://user:hunter22@host/data.csv", "s3://key:hunter22@bucket/data.csv"]
)
def test_no_secret_leaves_the_study(monkeypatch, path):
    monkeypatch.setenv("MY_API_KEY", "tomato-soup")
    data = DatasetSpec(name="csv", path=path, label="price")
    spec = RunSpec(dataset=data, weights="/models/tomato-soup.pt")
    for value in params_of(spec).values():
        assert "hunter22" not in str(value)
        assert "tomato-soup" not in str(value)
    assert shown("token=abcdef\nin two lines") == "token=*** in two lines"
