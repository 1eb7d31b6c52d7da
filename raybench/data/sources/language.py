"""Running text as a dataset: windows of tokens, and for each token the next one."""

import numpy as np

from raybench.core.dataset_spec import DatasetSpec
from raybench.core.errors import UserError
from raybench.data.dataset import SPLITS, Dataset, Split, num_of
from raybench.data.sources.cut import USUAL_SHARE
from raybench.data.sources.inputs_of_rows import Say
from raybench.data.sources.tokens import Ids, Pieces, Tokenizer


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
    splits = {}
    for split in SPLITS:
        ids = tokenizer.ids(pieces[split])
        num_windows = max(0, len(ids) - 1) // spec.sequence_length
        if num_windows < 1 and (split != "test" or spec.test_size != "none"):
            raise UserError(
                f"{source}: the {split} split has {len(ids):,} {spec.tokens}, fewer than one "
                f"window of dataset.sequence_length {spec.sequence_length} and the token after it; "
                "choose a shorter one, or add text."
            )
        splits[split] = _windows(ids, num_windows, spec.sequence_length)
    vocabulary = tokenizer.vocabulary
    return Dataset(
        name,
        len(vocabulary),
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        task="language_modelling",
        vocabulary=vocabulary,
        encoding={"tokens": spec.tokens},
    )


def _cut_off(
    spec: DatasetSpec, pieces: dict[str, Pieces], source: str, say: Say
) -> dict[str, Pieces]:
    rest = pieces["train"]
    total = (len(rest) - 1) // spec.sequence_length
    usual = max(1, round(USUAL_SHARE * total))
    validation = num_of(spec.validation_size, total, usual=usual)
    sizes = {
        "test": num_of(spec.test_size, total, usual=validation),
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
        told = [
            f"the {len(found[split]):,} {spec.tokens} of the {split} split" for split in missing
        ]
        say(f"held out from its end: {', and before them '.join(told)}.")
    return found


def _windows(ids: Ids, number: int, length: int) -> Split:
    inputs = ids[: number * length].reshape(number, length)
    labels = ids[1 : number * length + 1].reshape(number, length).astype(np.int64)
    return Split(np.ascontiguousarray(inputs), labels)
