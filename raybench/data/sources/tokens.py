"""Texts as token ids: words, characters or bytes, numbered by the training texts alone."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

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
        """`size`: most tokens told apart, the two special ones included; of bytes all are."""
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
