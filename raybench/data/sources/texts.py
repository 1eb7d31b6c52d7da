"""Texts as token ids, numbered by the training texts alone: a column of them, or running text."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raybench.data.dataset import SPLITS, Array, Dataset, Split, num_of
from raybench.data.memory import require_memory
from raybench.data.sources.cut import TYPICAL_SHARE
from raybench.data.sources.files import SPLIT_NAMES, find_files, split_of
from raybench.data.sources.folders import TEXT_ENDINGS
from raybench.data.sources.table import Say, Table, is_text
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import UserError

Pieces = npt.NDArray[Any] | list[str]
"""A text cut up: its words, or an array of its characters' code points, or of its bytes."""
Ids = npt.NDArray[np.int32]
Kind = Literal["words", "characters", "bytes"]
"""What a text is cut into."""

PADDING, UNKNOWN = 0, 1
"""Ids of what fills up a short text, and of what no training text has (or too few have)."""
SPECIAL = ("<padding>", "<unknown>")
WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")
"""A word, or a mark between words; lower case."""
_NUM_CODES = 0x110000


class Tokenizer:
    """First `see` of all training texts, then `finish`, then `ids` of any text.

    The most frequent tokens get the first ids after PADDING and UNKNOWN; bytes have ids 2 to 257.
    """

    def __init__(self, kind: Kind, size: int) -> None:
        """`size`: the most tokens, with the two special ones; bytes are all kept."""
        self._kind, self._size = kind, size
        self._counts: Counter[str] = Counter()
        self.vocabulary: tuple[str, ...] = ()

    def cut(self, text: str) -> Pieces:
        """Cut a text up."""
        if self._kind == "words":
            return WORD.findall(text.lower())
        if self._kind == "characters":
            return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)

    def see(self, pieces: Pieces) -> None:
        """Count the tokens of a training text."""
        if isinstance(pieces, list):
            self._counts.update(pieces)
        elif self._kind == "characters":
            codes, counts = np.unique(pieces, return_counts=True)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                self._counts[chr(code)] += count

    def finish(self) -> None:
        """Number the tokens."""
        if self._kind == "bytes":
            self.vocabulary = (*SPECIAL, *(f"<{number:02x}>" for number in range(256)))
            return
        # By name where equally frequent: the same in every process.
        kept = sorted(self._counts, key=lambda token: (-self._counts[token], token))
        self._number((*SPECIAL, *kept[: self._size - len(SPECIAL)]))

    @classmethod
    def of_vocabulary(cls, kind: Kind, vocabulary: Sequence[str]) -> Self:
        """Return one that is finished, by the vocabulary of another."""
        found = cls(kind, len(vocabulary))
        found._number(tuple(vocabulary))
        return found

    def _number(self, vocabulary: tuple[str, ...]) -> None:
        self.vocabulary = vocabulary
        self._ids = {token: number for number, token in enumerate(self.vocabulary)}
        if self._kind == "characters":
            self._of_code = np.full(_NUM_CODES, UNKNOWN, np.int32)
            for token, number in list(self._ids.items())[len(SPECIAL) :]:
                self._of_code[ord(token)] = number

    def ids(self, pieces: Pieces) -> Ids:
        """Return the ids of a text that is cut up."""
        if isinstance(pieces, list):
            return np.array([self._ids.get(word, UNKNOWN) for word in pieces], np.int32)
        if self._kind == "characters":
            return self._of_code[pieces]
        return pieces.astype(np.int32) + len(SPECIAL)

    @property
    def num_tokens(self) -> int:
        """Different tokens of the training texts, before any are left out."""
        return 256 if self._kind == "bytes" else len(self._counts)


MANY = 0.25
"""Share of texts beyond which it is said that they are cut."""


class Tokens:
    """Makes inputs of a column of texts, (`sequence_length`,) int32, padded with 0 at the end:
    first `see` of all training rows, then `finish`, then `write`."""

    dtype = np.int32

    def __init__(self, spec: DatasetSpec, column: str, table: Table) -> None:
        """`table`: the training one."""
        if not is_text(table, column):
            raise UserError(
                f"dataset.text: column '{column}' of {table.source} holds "
                f"{table.schema.field(column).type}, no text; name another one."
            )
        self.columns, self._source = [column], table.source
        self.shape: tuple[int, ...] = (spec.sequence_length,)
        self.encoding = {"tokens": spec.tokens}
        self._tokenizer = Tokenizer(spec.tokens, spec.vocabulary_size)
        self._lengths: list[int] = []

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Tokens by their ids; empty before `finish`."""
        return self._tokenizer.vocabulary

    @property
    def lengths(self) -> Array:
        """Tokens of each training text."""
        return np.array(self._lengths)

    @property
    def num_tokens(self) -> int:
        """Different tokens of the training texts, before any are left out."""
        return self._tokenizer.num_tokens

    def see(self, batch: Any) -> None:
        """Take some training rows, a `pyarrow.RecordBatch`."""
        for text in texts_of(batch):
            pieces = self._tokenizer.cut(text)
            self._lengths.append(len(pieces))
            self._tokenizer.see(pieces)

    def finish(self, say: Say) -> None:
        """Number the tokens; `say` takes sentences on texts that are empty or cut."""
        lengths, column, most = self.lengths, self.columns[0], self.shape[0]
        if not lengths.any():
            raise UserError(
                f"{self._source}: column '{column}' has no text in any training row; name another "
                "one in dataset.text."
            )
        self._tokenizer.finish()
        if empty := int((lengths == 0).sum()):
            say(
                f"column '{column}' is empty in {empty:,} of {len(lengths):,} training rows: each "
                "is one unknown token."
            )
        share = float((lengths > most).mean())
        if share > MANY:
            say(
                f"{100 * share:.0f} % of the texts are longer than {most} "
                f"{self.encoding['tokens']} and are cut there (half of all have up to "
                f"{np.median(lengths):.0f}); dataset.sequence_length changes it."
            )

    def write(self, batch: Any, table: Table) -> Array:
        """Return the inputs of any rows."""
        del table
        return padded_ids(self._tokenizer, list(texts_of(batch)), self.shape[0])


def padded_ids(tokenizer: Tokenizer, texts: Sequence[str], length: int) -> Array:
    """Return (N, length) int32 token ids: cut there, padded at the end; of no text one unknown."""
    out = np.full((len(texts), length), PADDING, np.int32)
    for row, text in enumerate(texts):
        ids = tokenizer.ids(tokenizer.cut(text)[:length])
        out[row, : len(ids)] = ids
        if not len(ids):
            out[row, 0] = UNKNOWN
    return out


def texts_of(batch: Any) -> Iterator[str]:
    """Yield the texts of a batch's one column; what is missing is empty."""
    values = batch.column(0)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    for value in values:
        yield value.as_py() or ""


MEMORY_FACTOR = 20
"""Bytes in memory for one of a text that is learnt, at most: its ids, its next ones, its cuts."""


def running_texts(path: Path) -> dict[str, str]:
    """Return the text of a file, or of a folder's, whole: by split, or as `train` alone."""
    files = [path] if path.is_file() else find_files(path, TEXT_ENDINGS)
    if not files:
        raise UserError(
            f"dataset.path: {path} has no {TEXT_ENDINGS[0]} files; name a file or folder."
        )
    require_memory(MEMORY_FACTOR * sum(file.stat().st_size for file in files), str(path))
    if path.is_file():
        return {"train": read_text(path)}
    by_split: dict[str, list[str]] = {}
    splits = [split_of(file.relative_to(path).parts[0]) for file in files]
    is_split = all(splits) and "train" in splits
    for file, split in zip(files, splits, strict=True):
        by_split.setdefault(split if is_split and split else "train", []).append(read_text(file))
    return {split: "\n".join(by_split[split]) for split in SPLIT_NAMES if split in by_split}


def read_text(file: Path) -> str:
    """Return a file's text; UserError, with the line, if it is not UTF-8."""
    content = file.read_bytes()
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{file}: line {line} is not UTF-8 (byte {content[error.start]:#04x}); save the file "
            "as UTF-8: iconv -f latin1 -t utf-8."
        ) from error


def language_dataset(
    spec: DatasetSpec, texts: dict[str, str], *, name: str, source: str, say: Say
) -> Dataset:
    """Return windows of `sequence_length` tokens, each labelled with those that follow.

    `texts` by split; what has no text of its own is cut off the end of `train`: the last part is
    the test, what is before it validation. Tokens are numbered by the training text alone.
    """
    tokenizer = Tokenizer(spec.tokens, spec.vocabulary_size)
    pieces = {split: tokenizer.cut(text) for split, text in texts.items()}
    pieces = _cut_off(spec, pieces, source, say)
    tokenizer.see(pieces["train"])
    tokenizer.finish()
    splits: dict[str, Any] = {}
    for split in SPLITS:
        ids = tokenizer.ids(pieces[split])
        num_windows = max(0, len(ids) - 1) // spec.sequence_length
        if num_windows < 1 and (split != "test" or spec.test_size != "none"):
            raise UserError(
                f"{source}: the {split} split has {len(ids):,} {spec.tokens}, fewer than one "
                f"window of dataset.sequence_length {spec.sequence_length} and the token after it; "
                "choose a shorter one, or add text."
            )
        kept, shape = num_windows * spec.sequence_length, (num_windows, spec.sequence_length)
        splits[split] = Split(
            np.ascontiguousarray(ids[:kept].reshape(shape)),
            ids[1 : kept + 1].reshape(shape).astype(np.int64),
        )
    return Dataset(
        name,
        len(tokenizer.vocabulary),
        **splits,
        task="language_modelling",
        vocabulary=tokenizer.vocabulary,
        encoding={"tokens": spec.tokens},
    )


def _cut_off(
    spec: DatasetSpec, pieces: dict[str, Pieces], source: str, say: Say
) -> dict[str, Pieces]:
    rest = pieces["train"]
    total = (len(rest) - 1) // spec.sequence_length
    typical = max(1, round(TYPICAL_SHARE * total))
    validation = num_of(spec.validation_size, total, typical=typical)
    sizes = {
        "test": num_of(spec.test_size, total, typical=validation),
        "validation": validation,
    }
    missing = {split: size for split, size in sizes.items() if split not in pieces and size}
    if sum(missing.values()) >= total:
        raise UserError(
            f"{source} has {len(rest):,} {spec.tokens}, {max(0, total)} windows of "
            f"dataset.sequence_length {spec.sequence_length}, and {sum(missing.values())} would be "
            "held out; choose shorter ones, or add text."
        )
    found = {"test": rest[:0]} | pieces
    for split, size in missing.items():
        # One token more: the label of the last.
        keep = len(rest) - (size * spec.sequence_length + 1)
        found[split], rest = rest[keep:], rest[:keep]
    found["train"] = rest
    if missing:
        parts = [
            f"the {len(found[split]):,} {spec.tokens} of the {split} split" for split in missing
        ]
        say(f"held out from its end: {', and before them '.join(parts)}.")
    return found
