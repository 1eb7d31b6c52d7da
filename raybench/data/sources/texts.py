"""Conversion of texts to token ids.

Texts are the values of a text column, or running text: files on which a language model is trained.
The vocabulary is built only from the training texts.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybench.data.dataset import SPLITS, Array, Dataset, Split
from raybench.data.memory import require_memory
from raybench.data.sources.cut import held_out_sizes
from raybench.data.sources.files import (
    SPLIT_NAMES,
    TEXT_ENDINGS,
    encoding_of,
    find_files,
    not_utf8,
    split_of,
)
from raybench.data.sources.table import Note, Table
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import ErrorCode, UserError

Pieces = npt.NDArray[Any] | list[str]
"""Tokens of a text: a list of its words, an array with the code points of its characters, or an
array with its bytes."""
Ids = npt.NDArray[np.int32]
TokenKind = Literal["words", "characters", "bytes"]

PADDING, UNKNOWN = 0, 1
"""Id with which short texts are padded, and id of all tokens that are not in the vocabulary."""
SPECIAL = ("<padding>", "<unknown>")
"""Entries of the vocabulary at the ids PADDING and UNKNOWN."""
WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")  # a word, or a punctuation mark
_NUM_CODES = 0x110000


def cut_text(text: str, kind: TokenKind) -> Pieces:
    """Split a text into tokens; words are converted to lower case."""
    if kind == "words":
        return WORD.findall(text.lower())
    if kind == "characters":
        return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


def build_vocabulary(texts: Iterable[Pieces], kind: TokenKind, size: int) -> tuple[str, ...]:
    """Return the vocabulary: SPECIAL, then the most frequent tokens of the training texts.

    The position of a token in the vocabulary is its id. If tokens are bytes, the vocabulary
    contains all 256 bytes, with the ids 2 to 257.

    Args:
        texts: Tokens of each training text.
        kind: Kind of tokens.
        size: Maximum size of the vocabulary; not used for bytes.
    """
    counts = Counter[str]()
    for pieces in texts:
        if isinstance(pieces, list):
            counts.update(pieces)
        else:
            codes, numbers = np.unique(pieces, return_counts=True)
            counts.update(dict(zip(map(chr, codes.tolist()), numbers.tolist(), strict=True)))
    if kind == "bytes":
        return (*SPECIAL, *(f"<{number:02x}>" for number in range(256)))
    # Ties are broken by name, so that every process builds the same vocabulary.
    kept = sorted(counts, key=lambda token: (-counts[token], token))
    return (*SPECIAL, *kept[: size - len(SPECIAL)])


class Tokenizer:
    """Converts tokens to their ids in a vocabulary (see `build_vocabulary`)."""

    def __init__(self, kind: TokenKind, vocabulary: Sequence[str]) -> None:
        self.kind, self.vocabulary = kind, tuple(vocabulary)
        self._ids = {token: number for number, token in enumerate(self.vocabulary)}
        if kind == "characters":
            self._id_of_code = np.full(_NUM_CODES, UNKNOWN, np.int32)
            for number, token in enumerate(self.vocabulary[len(SPECIAL) :], len(SPECIAL)):
                self._id_of_code[ord(token)] = number

    def ids(self, pieces: Pieces) -> Ids:
        """Return the token ids of a text, shape (tokens,), int32."""
        if isinstance(pieces, list):
            return np.array([self._ids.get(word, UNKNOWN) for word in pieces], np.int32)
        if self.kind == "characters":
            return self._id_of_code[pieces]
        return pieces.astype(np.int32) + len(SPECIAL)


MANY_SHORTENED = 0.25  # fraction of truncated texts above which a note is shown


def require_text(table: Table, column: str) -> None:
    """Raise UserError if a column does not contain strings."""
    if not table.is_text(column):
        kind = table.kind(column)
        raise UserError(
            f"dataset.text: column '{column}' contains {kind}, not text; name another column.",
            ErrorCode.INVALID_DATA,
        )


class Tokens:
    """Encodes a column of texts as inputs: `sequence_length` int32 token ids per text.

    Longer texts are truncated, and shorter texts are padded with 0 at the end.
    """

    dtype = np.int32

    def __init__(self, spec: DatasetSpec, source: str, texts: Iterable[str], note: Note) -> None:
        """Build the vocabulary from the training texts.

        Args:
            spec: The dataset spec.
            source: Name of the table in error messages.
            texts: The training texts.
            note: Function that shows a sentence if texts are empty, or if many are truncated.
        """
        assert spec.text is not None
        column, most, kind = spec.text, spec.sequence_length, spec.tokens
        self.columns, self.encoding = [column], {"tokens": kind}
        self.shape: tuple[int, ...] = (most,)
        lengths: list[int] = []

        def with_lengths() -> Iterator[Pieces]:
            """Yield the tokens of each text, and append their number to `lengths`."""
            for text in texts:
                pieces = cut_text(text, kind)
                lengths.append(len(pieces))
                yield pieces

        self.vocabulary = build_vocabulary(with_lengths(), kind, spec.vocabulary_size)
        self._tokenizer = Tokenizer(kind, self.vocabulary)
        if not any(lengths):
            raise UserError(
                f"{source}: column '{column}' has no text; name another column.",
                ErrorCode.INVALID_DATA,
            )
        if empty := lengths.count(0):
            note(f"column '{column}' is empty in {empty:,} of {len(lengths):,} training rows.")
        share = float(np.mean(np.array(lengths) > most))
        if share > MANY_SHORTENED:
            note(
                f"{100 * share:.0f} % of the texts are longer than dataset.sequence_length ({most} "
                f"{kind}) and are truncated; the median is {np.median(lengths):.0f}."
            )

    def write(self, batch: Any) -> Array:
        """Return the inputs for a batch of rows, (rows, sequence_length) int32."""
        return padded_ids(self._tokenizer, list(texts_of(batch)), self.shape[0])


def padded_ids(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> Array:
    """Return the token ids of several texts, (N, length) int32, truncated or padded at the end.

    An empty text is represented by a single UNKNOWN, so that no text consists only of padding.
    """
    out = np.full((len(texts), length), PADDING, np.int32)
    for row, text in enumerate(texts):
        ids = tokenizer.ids(cut_text(text, tokenizer.kind)[:length])
        out[row, : len(ids)] = ids
        if not len(ids):
            out[row, 0] = UNKNOWN
    return out


def texts_of(batch: Any) -> Iterator[str]:
    """Yield the strings in the first column of a `pyarrow.RecordBatch`; null becomes an empty
    string."""
    for value in batch.column(0):
        yield value.as_py() or ""


def texts_as_inputs(
    samples: Iterable[str], kind: TokenKind, vocabulary: Sequence[str], length: int
) -> Array:
    """Return new texts as inputs of a trained model: token ids, (N, length) int32.

    Args:
        samples: The texts.
        kind: Kind of tokens of the training texts.
        vocabulary: Vocabulary of the training texts.
        length: Number of token ids per text; texts are truncated or padded with 0 at the end.

    Raises:
        UserError: The samples are not a list of texts.
    """
    if isinstance(samples, str):
        raise UserError(
            "The samples are a single text; pass a list of texts.", ErrorCode.INVALID_VALUE
        )
    try:
        texts = pa.array(samples, pa.string()).to_pylist()
    except (TypeError, ValueError) as error:
        raise UserError(
            f"The samples are not texts ({error}); pass a list of texts, or an array of token ids.",
            ErrorCode.INVALID_VALUE,
        ) from error
    return padded_ids(Tokenizer(kind, vocabulary), [text or "" for text in texts], length)


TEXT_MEMORY_FACTOR = 20
"""Maximum memory for the tokens of running text, their ids and the labels, in bytes per byte of
text."""


def running_texts(path: Path) -> dict[str, str]:
    """Read running text from a file, or from all text files of a folder.

    Returns:
        Text, keyed by split. All text is in the split `train`, unless every file of the folder
        belongs to a split according to its name or its top folder, and some of them to `train`.
    """
    files = [path] if path.is_file() else find_files(path, TEXT_ENDINGS)
    if not files:
        raise UserError(
            f"dataset.path: {path} contains no {TEXT_ENDINGS[0]} files.", ErrorCode.NOT_FOUND
        )
    require_memory(TEXT_MEMORY_FACTOR * sum(file.stat().st_size for file in files), str(path))
    if path.is_file():
        return {"train": read_text(path)}
    by_split: dict[str, list[str]] = {}
    splits = [split_of(file.relative_to(path).parts[0]) for file in files]
    is_split = all(splits) and "train" in splits
    for file, split in zip(files, splits, strict=True):
        by_split.setdefault(split if is_split and split else "train", []).append(read_text(file))
    return {split: "\n".join(by_split[split]) for split in SPLIT_NAMES if split in by_split}


def read_text(file: Path) -> str:
    """Read a text file in UTF-8, or in UTF-16 with a byte order mark.

    Raises:
        UserError: The file has another encoding; the message shows the first invalid line.
    """
    try:
        return file.read_text(encoding=encoding_of(file))
    except UnicodeDecodeError as error:
        raise not_utf8(file) from error


def language_dataset(spec: DatasetSpec, texts: dict[str, str]) -> Dataset:
    """Cut running text into samples of `sequence_length` tokens, whose labels are the next tokens.

    Args:
        spec: The dataset spec.
        texts: Text by split. Missing splits are cut from the end of the training text: the
            validation split, then the test split at the very end.

    Raises:
        UserError: A split has too few tokens for one sample, or the spec sets the size of a split
            that the texts already have.
    """
    pieces = {split: cut_text(text, spec.tokens) for split, text in texts.items()}
    pieces = _with_all_splits(spec, pieces)
    vocabulary = build_vocabulary([pieces["train"]], spec.tokens, spec.vocabulary_size)
    tokenizer = Tokenizer(spec.tokens, vocabulary)
    splits: dict[str, Any] = {}
    for split in SPLITS:
        ids = tokenizer.ids(pieces[split])
        num_windows = max(0, len(ids) - 1) // spec.sequence_length
        if num_windows < 1 and (split != "test" or spec.test_size != "none"):
            raise UserError(
                f"{spec.path}: the {split} split has {len(ids):,} {spec.tokens}, too few for "
                f"dataset.sequence_length {spec.sequence_length}; choose a shorter one.",
                ErrorCode.TOO_FEW,
            )
        kept, shape = num_windows * spec.sequence_length, (num_windows, spec.sequence_length)
        following = ids[1 : kept + 1].astype(np.int64)
        splits[split] = Split(ids[:kept].reshape(shape), following.reshape(shape))
    return Dataset(
        spec.name,
        len(vocabulary),
        **splits,
        task="language_modelling",
        vocabulary=vocabulary,
        encoding={"tokens": spec.tokens},
    )


def _with_all_splits(spec: DatasetSpec, pieces: dict[str, Pieces]) -> dict[str, Pieces]:
    """Return the tokens by split, with missing splits cut from the end of the training text."""
    rest = pieces["train"]
    total = (len(rest) - 1) // spec.sequence_length
    sizes = held_out_sizes(spec, total, pieces, str(spec.path))
    if sum(sizes.values()) >= total:
        raise UserError(
            f"{spec.path} has {len(rest):,} {spec.tokens}, too few for dataset.sequence_length "
            f"{spec.sequence_length}; choose a shorter one.",
            ErrorCode.TOO_FEW,
        )
    splits = {"test": rest[:0]} | pieces
    for split in ("test", "validation"):
        if size := sizes[split]:
            # One more token is needed, which is the label of the last token.
            keep = len(rest) - (size * spec.sequence_length + 1)
            splits[split], rest = rest[keep:], rest[:keep]
    splits["train"] = rest
    return splits
