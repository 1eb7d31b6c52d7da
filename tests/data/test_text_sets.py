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


def words_of(tokens, vocabulary):
    return [vocabulary[number] for number in tokens if number != PADDING]


def of_texts(folder, texts, **keys):
    """Load a table with ten rows of each text and one class per text."""
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
def test_a_text_is_tokenized(tmp_path, kind, pieces):
    dataset = of_texts(tmp_path, ["Don't panic, Ärger!", "no"], tokens=kind)
    (ids,) = dataset.validation.inputs[dataset.validation.labels == 0]
    assert ids.dtype == np.int32
    assert words_of(ids, dataset.vocabulary) == pieces


def test_the_most_frequent_tokens_are_kept_and_others_become_unknown(tmp_path):
    dataset = of_texts(tmp_path, ["b c a", "a a b"], vocabulary_size=4, sequence_length=4)
    assert dataset.vocabulary == ("<padding>", "<unknown>", "a", "b")
    assert dataset.train.inputs[dataset.train.labels == 0][0].tolist() == [3, UNKNOWN, 2, PADDING]
    unseen = texts_as_inputs(["abz"], "characters", (*SPECIAL, "a", "b"), 3)
    assert unseen.tolist() == [[2, 3, UNKNOWN]]


def test_the_vocabulary_comes_only_from_training_rows(tmp_path):
    frame = pd.DataFrame(
        {"text": [f"word{number} common text" for number in range(50)], "y": ["n", "p"] * 25}
    )
    frame.loc[0, "text"] = None
    frame.to_csv(tmp_path / "t.csv", index=False)
    dataset = load(tmp_path / "t.csv", name="csv", text="text", label="y", sequence_length=4)
    train, validation = dataset.train.inputs, dataset.validation.inputs
    assert (train.dtype, train.shape, dataset.num_classes) == (np.int32, (40, 4), 2)
    assert set(train.ravel()) | {UNKNOWN} == set(range(len(dataset.vocabulary)))
    assert (validation[:, 0] == UNKNOWN).all(), "their first words are in no training row"
    assert {dataset.vocabulary[number] for number in validation[0, 1:3]} == {"common", "text"}
    assert (train[:, 3] == PADDING).all()
    assert (train != PADDING).any(axis=1).all(), "an empty text is one unknown token"


def test_a_folder_of_texts_by_class_is_read(tmp_path):
    for name, text in (("50 %", "buy now"), ("20 %", "see you tomorrow")):
        (tmp_path / name).mkdir()
        for number in range(10):
            (tmp_path / name / f"{number}.txt").write_text(text)
    dataset = load(tmp_path, sequence_length=3)
    assert (dataset.task, dataset.class_names) == ("classification", ("20 %", "50 %"))
    spam = dataset.test.inputs[dataset.test.labels == 1][0]
    assert words_of(spam, dataset.vocabulary) == ["buy", "now"]


def test_running_text_becomes_windows_and_its_end_is_held_out(tmp_path):
    text = "".join(chr(97 + number // 200) for number in range(2000))  # aaa...bbb...
    (tmp_path / "book.txt").write_text(text)
    dataset = load(tmp_path / "book.txt", tokens="characters", sequence_length=10)
    assert dataset.task == "language_modelling"
    assert dataset.num_classes == len(dataset.vocabulary)
    for split in dataset.splits.values():
        assert (split.inputs.dtype, split.labels.dtype) == (np.int32, np.int64)
        np.testing.assert_array_equal(split.inputs[:, 1:], split.labels[:, :-1])
    first_tokens = [split.inputs[0, 0] for split in dataset.splits.values()]
    assert [dataset.vocabulary[number] for number in first_tokens[:1]] == ["a"]
    assert first_tokens[2] == UNKNOWN, "the last letters are in no training text"
    assert len(dataset.validation) == len(dataset.test) == 20


def test_the_size_of_a_split_that_texts_already_have_is_refused(tmp_path):
    for name in ("train", "val"):
        (tmp_path / f"{name}.txt").write_text("a b c d e " * 20)
    assert len(load(tmp_path, sequence_length=9).validation) == 11
    with refused(ErrorCode.CONFLICT, "validation_size 3", tmp_path):
        load(tmp_path, sequence_length=9, validation_size=3)


@pytest.mark.parametrize(
    ("content", "keys", "code", "names"),
    [
        (b"short", {}, "TOO_FEW", ["5", "dataset.sequence_length 128"]),
        (b"a" * 45, {"test_size": 7, "sequence_length": 10}, "TOO_FEW", ["45"]),
        (b"ok\nna\xefve", {}, "INVALID_FILE", ["line 2", "naïve"]),
    ],
)
def test_invalid_texts_are_refused(tmp_path, content, keys, code, names):
    (tmp_path / "t.txt").write_bytes(content)
    with refused(ErrorCode[code], tmp_path / "t.txt", *names):
        load(tmp_path / "t.txt", tokens="characters", **keys)
