"""Texts as token ids, and running text as windows of tokens."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from raybench.data.load import build_dataset
from raybench.data.sources.texts import (
    PADDING,
    UNKNOWN,
    Tokenizer,
    count_tokens,
    cut_text,
    number_tokens,
)
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

pytestmark = pytest.mark.usefixtures("own_store")


def load(path, name="text", **keys):
    return build_dataset(DatasetSpec(name=name, path=str(path), **keys))


def tokenizer(kind, text, size=100):
    counts = Counter()
    count_tokens(cut_text(text, kind), counts)
    return Tokenizer(kind, number_tokens(counts, kind, size))


def words_of(tokens, made):
    return [made[number] for number in tokens if number != PADDING]


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("words", ["don't", "panic", ",", "ärger", "!"]),
        ("characters", list("Don't panic, Ärger!")),
        ("bytes", [f"<{byte:02x}>" for byte in "Don't panic, Ärger!".encode()]),
    ],
)
def test_a_text_is_cut_and_numbered(kind, pieces):
    text = "Don't panic, Ärger!"
    made = tokenizer(kind, text)
    ids = made.ids(cut_text(text, kind))
    assert ids.dtype == np.int32
    assert words_of(ids, made.vocabulary) == pieces


def test_the_most_frequent_tokens_are_kept_and_others_unknown():
    made = tokenizer("words", "a a a b b c", size=4)
    assert made.vocabulary == ("<padding>", "<unknown>", "a", "b")
    assert made.ids(cut_text("b c never a", "words")).tolist() == [3, UNKNOWN, UNKNOWN, 2]
    letters = tokenizer("characters", "aab")
    assert letters.ids(cut_text("abz", "characters")).tolist() == [2, 3, UNKNOWN]


def test_a_column_of_texts_is_numbered_by_the_training_rows_alone(tmp_path):
    frame = pd.DataFrame(
        {"text": [f"word{number} common text" for number in range(50)], "y": ["n", "p"] * 25}
    )
    frame.loc[0, "text"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = load(tmp_path / "t.csv", "csv", text="text", label="y", sequence_length=4)
    train, validation = found.train.inputs, found.validation.inputs
    assert (train.dtype, train.shape, found.num_classes) == (np.int32, (40, 4), 2)
    assert set(train.ravel()) | {UNKNOWN} == set(range(len(found.vocabulary)))
    assert (validation[:, 0] == UNKNOWN).all(), "their own words are in no training row"
    assert {found.vocabulary[number] for number in validation[0, 1:3]} == {"common", "text"}
    assert (train[:, 3] == PADDING).all()
    assert (train != PADDING).any(axis=1).all(), "an empty text is one unknown token"


def test_a_folder_of_texts_by_class(tmp_path):
    for name, text in (("spam", "buy now"), ("ham", "see you tomorrow")):
        (tmp_path / name).mkdir()
        for number in range(10):
            (tmp_path / name / f"{number}.txt").write_text(text)
    found = load(tmp_path, sequence_length=3)
    assert (found.task, found.class_names) == ("classification", ("ham", "spam"))
    spam = found.test.inputs[found.test.labels == 1][0]
    assert words_of(spam, found.vocabulary) == ["buy", "now"]


def test_running_text_is_cut_into_windows_and_its_end_held_out(tmp_path, capsys):
    text = "".join(chr(97 + number // 200) for number in range(2000))  # aaa...bbb...
    (tmp_path / "book.txt").write_text(text)
    found = load(tmp_path / "book.txt", tokens="characters", sequence_length=10)
    assert found.task == "language_modelling"
    assert found.num_classes == len(found.vocabulary)
    for split in (found.train, found.validation, found.test):
        assert (split.inputs.dtype, split.labels.dtype) == (np.int32, np.int64)
        np.testing.assert_array_equal(split.inputs[:, 1:], split.labels[:, :-1])
    whole = [split.inputs[0, 0] for split in (found.train, found.validation, found.test)]
    assert [found.vocabulary[number] for number in whole[:1]] == ["a"]
    assert whole[2] == UNKNOWN, "the last letters are in no training text"
    assert len(found.validation) == len(found.test) == 20
    said = capsys.readouterr().err
    assert "from its end: the 201 characters of the test split, and before" in said


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"short", "5 characters, 0 windows of dataset.sequence_length 128"),
        (b"ok\nna\xefve", "line 2 is not UTF-8 .'naïve' if it is Latin-1.; save the file"),
    ],
)
def test_text_that_cannot_be_learnt(tmp_path, content, sentence):
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        load(tmp_path / "t.txt", tokens="characters")
