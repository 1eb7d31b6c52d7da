"""`dataset: mnist` is `dataset: {name: mnist}`, wherever a dataset is named."""

import pytest

from raybench.spec.documents import parse_yaml, validate
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from raybench.spec.schema import study_schema
from raybench.spec.study import apply_settings_to_study, build_study

STUDY = "objective: {target: 0.9}\nspace: {optimizer: [adam, lamb]}\n"


def study(text, *settings):
    return build_study(apply_settings_to_study(parse_yaml(text, "s"), list(settings)), "s")[0]


def test_in_a_space_file_in_a_run_spec_and_on_the_command_line():
    assert study(STUDY + "dataset: mnist\n").dataset.name == "mnist"
    assert study(STUDY, "dataset=synthetic").dataset.name == "synthetic"
    assert validate(RunSpec, {"dataset": "mnist"}, "spec").dataset.name == "mnist"
    both = study(STUDY + "dataset: mnist\n", "dataset.limit=9").dataset
    assert (both.name, both.limit) == ("mnist", 9)


def test_what_is_written_down_is_the_whole_dataset():
    assert study(STUDY + "dataset: mnist\n").document()["dataset"]["name"] == "mnist"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cifar", r"'dataset\.name': input should be 'digits', 'mnist'.*found 'cifar'"),
        ("3", r"'dataset': must hold keys of its own .found 3"),
        ("[mnist]", r"'dataset': must hold keys of its own"),
    ],
)
def test_what_is_no_name_is_refused(text, words):
    with pytest.raises(UserError, match=words):
        study(STUDY + f"dataset: {text}\n")


def test_editors_know_it_too():
    dataset = study_schema()["properties"]["dataset"]
    assert {"mnist", "digits"} <= set(dataset["anyOf"][1]["enum"])
    assert dataset["anyOf"][0] == {"$ref": "#/$defs/DatasetSpec"}
