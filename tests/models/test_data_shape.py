import numpy as np
import pytest

from raybench.data.dataset import Dataset, Split
from raybench.models.base import DataShape


def dataset(inputs: np.ndarray, labels: np.ndarray, **content: object) -> Dataset:
    """The same six samples in all splits; a vocabulary is told or not."""
    split = Split(inputs, labels)
    return Dataset("own", train=split, validation=split, test=split, **content)  # type: ignore[arg-type]


IDS = np.arange(24).reshape(6, 4)
CLASSES = np.arange(6) % 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            dataset(np.zeros((6, 8, 8, 3), np.uint8), CLASSES, num_classes=3),
            DataShape(input_shape=(8, 8, 3), num_outputs=3, kind="pixels"),
        ),
        (
            dataset(
                np.zeros((6, 5), np.float32),
                np.zeros((6, 2), np.float32),
                num_classes=None,
                task="regression",
            ),
            DataShape(input_shape=(5,), num_outputs=2, task="regression", kind="numbers"),
        ),
        (
            dataset(IDS, CLASSES, num_classes=3),
            DataShape(input_shape=(4,), num_outputs=3, kind="tokens", vocabulary_size=24),
        ),
        (
            dataset(IDS, CLASSES, num_classes=3, vocabulary=tuple(map(str, range(30)))),
            DataShape(input_shape=(4,), num_outputs=3, kind="tokens", vocabulary_size=30),
        ),
        (
            dataset(IDS, IDS, num_classes=40, task="language_modelling"),
            DataShape(
                input_shape=(4,),
                num_outputs=40,
                task="language_modelling",
                kind="tokens",
                vocabulary_size=40,
            ),
        ),
        (
            dataset({"ids": IDS, "age": np.zeros((6, 1), np.float32)}, CLASSES, num_classes=3),
            DataShape(input_shape={"ids": (4,), "age": (1,)}, num_outputs=3),
        ),
    ],
    ids=["pictures", "table", "texts", "texts of a vocabulary", "language", "by name"],
)
def test_the_shape_of_a_dataset(given, expected):
    assert DataShape.of(given) == expected
