"""Texts as token ids, and running text as windows of tokens."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from raybench.data.sources.texts import PADDING, SPECIAL, UNKNOWN, texts_as_inputs
from raybench.spec.errors import ErrorCode
from tests.data import making
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("own_store")


load = partial(making.load, name="text")


def words_of(tokens, made):
    return [made[number] for number in tokens if number != PADDING]


def of_texts(folder, texts, **keys):
    """Load a table of ten rows of each text, which is a class of its own."""
    frame = pd.DataFrame({"text": texts * 10, "y": [*range(len(texts))] * 10})
    frame.to_csv(folder / "t.csv", index=False)
    return load(folder / "t.csv", name="csv", text="text", label="y", **keys)


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("words", ["don't", "panic", ",", "ärger", "!"]),
        ("characters", list("Don't panic, Ärger!")),
        ("bytes", [f"<{byte:02x}>" for byte in "Don't panic, Ärger!".encode()]),
    ],
)
def test_a_text_is_cut_and_numbered(tmp_path, kind, pieces):
    found = of_texts(tmp_path, ["Don't panic, Ärger!", "no"], tokens=kind)
    (ids,) = found.validation.inputs[found.validation.labels == 0]
    assert ids.dtype == np.int32
    assert words_of(ids, found.vocabulary) == pieces


def test_the_most_frequent_tokens_are_kept_and_others_unknown(tmp_path):
    found = of_texts(tmp_path, ["b c a", "a a b"], vocabulary_size=4, sequence_length=4)
    assert found.vocabulary == ("<padding>", "<unknown>", "a", "b")
    assert found.train.inputs[found.train.labels == 0][0].tolist() == [3, UNKNOWN, 2, PADDING]
    unseen = texts_as_inputs(["abz"], "characters", (*SPECIAL, "a", "b"), 3)
    assert unseen.tolist() == [[2, 3, UNKNOWN]]


def test_a_column_of_texts_is_numbered_by_the_training_rows_alone(tmp_path):
    frame = pd.DataFrame(
        {"text": [f"word{number} common text" for number in range(50)], "y": ["n", "p"] * 25}
    )
    frame.loc[0, "text"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = load(tmp_path / "t.csv", name="csv", text="text", label="y", sequence_length=4)
    train, validation = found.train.inputs, found.validation.inputs
    assert (train.dtype, train.shape, found.num_classes) == (np.int32, (40, 4), 2)
    assert set(train.ravel()) | {UNKNOWN} == set(range(len(found.vocabulary)))
    assert (validation[:, 0] == UNKNOWN).all(), "their own words are in no training row"
    assert {found.vocabulary[number] for number in validation[0, 1:3]} == {"common", "text"}
    assert (train[:, 3] == PADDING).all()
    assert (train != PADDING).any(axis=1).all(), "an empty text is one unknown token"


def test_a_folder_of_texts_by_class(tmp_path):
    for name, text in (("50 %", "buy now"), ("20 %", "see you tomorrow")):
        (tmp_path / name).mkdir()
        for number in range(10):
            (tmp_path / name / f"{number}.txt").write_text(text)
    found = load(tmp_path, sequence_length=3)
    assert (found.task, found.class_names) == ("classification", ("20 %", "50 %"))
    spam = found.test.inputs[found.test.labels == 1][0]
    assert words_of(spam, found.vocabulary) == ["buy", "now"]


def test_running_text_is_cut_into_windows_and_its_end_held_out(tmp_path):
    text = "".join(chr(97 + number // 200) for number in range(2000))  # aaa...bbb...
    (tmp_path / "book.txt").write_text(text)
    found = load(tmp_path / "book.txt", tokens="characters", sequence_length=10)
    assert found.task == "language_modelling"
    assert found.num_classes == len(found.vocabulary)
    for split in found.splits.values():
        assert (split.inputs.dtype, split.labels.dtype) == (np.int32, np.int64)
        np.testing.assert_array_equal(split.inputs[:, 1:], split.labels[:, :-1])
    whole = [split.inputs[0, 0] for split in found.splits.values()]
    assert [found.vocabulary[number] for number in whole[:1]] == ["a"]
    assert whole[2] == UNKNOWN, "the last letters are in no training text"
    assert len(found.validation) == len(found.test) == 20


@pytest.mark.parametrize(
    ("content", "code", "names"),
    [
        (b"short", "TOO_FEW", ["5", "dataset.sequence_length 128"]),
        (b"ok\nna\xefve", "INVALID_FILE", ["line 2", "naïve"]),
    ],
)
def test_text_that_cannot_be_learnt(tmp_path, content, code, names):
    (tmp_path / "t.txt").write_bytes(content)
    with refused(ErrorCode[code], tmp_path / "t.txt", *names):
        load(tmp_path / "t.txt", tokens="characters")
