"""A run continued from a checkpoint equals one that was not interrupted, in both frameworks."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from continued import END, MIDDLE, all_of, continued, facts, spec_of, whole
from local import alone, new_trainer

from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import OPTIMIZERS
from raybench.stats.checkpoint import latest_checkpoint
from tests.refusals import refused

LIBRARYS = {
    "torch": ("torch:NAdam", {"betas": [0.8, 0.99]}),
    "tensorflow": ("keras:Nadam", {"beta_1": 0.8}),
}
"""An optimizer of each one's library, and its options."""
PASSES = {
    **{"accumulate": 2, "batch_size_per_worker": 8},
    **{"ema_decay": 0.9, "clip_norm": 0.5, "precision": "fp16"},
}


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        ("adam", {}),
        ("lars", PASSES),
        ("a library's", {}),
        *(pytest.param(one, {}, marks=pytest.mark.all) for one in OPTIMIZERS if one != "adam"),
        pytest.param("adam", {"precision": "bf16"}, marks=pytest.mark.all),
    ],
)
def test_a_continued_run_equals_a_whole_one(
    framework: str, optimizer: str, changes: dict, tmp_path: Path
) -> None:
    """At the end of an epoch too, which is another place in the data and not in the optimizer."""
    points = [MIDDLE, END] if optimizer == "adam" else [MIDDLE]
    if optimizer not in OPTIMIZERS:
        optimizer, changes["optimizer_options"] = LIBRARYS[framework]
    spec = spec_of(framework, optimizer, **changes)
    curve, trainer = whole(spec, alone(framework), tmp_path)
    assert [point.samples for point in curve] == [48, 90, 138, 180]
    expected = all_of(trainer, framework)
    for at in points:
        rest, again = continued(spec, alone(framework), tmp_path / str(at))
        np.testing.assert_array_equal(facts(rest), facts(curve[at + 1 :]))
        np.testing.assert_equal(expected, all_of(again, framework))
        seconds = [curve[at].train_s, *(point.train_s for point in rest)]
        assert seconds == sorted(seconds), "not on the same training clock"
        assert rest[0].ledger["compile"] > curve[at].ledger["compile"]
        assert rest[0].ledger["input"] > curve[at].ledger["input"]
    assert not (tmp_path / str(END + 2)).exists(), "a run that is over needs no checkpoint"


def test_a_model_that_was_changed_is_refused(framework: str, tmp_path: Path) -> None:
    spec = spec_of(framework, "sgd")
    whole(spec, alone(framework), tmp_path)
    checkpoint = latest_checkpoint(tmp_path / str(MIDDLE), spec)
    assert checkpoint is not None
    trainer, _, _ = new_trainer(spec.model_copy(update={"workload": "regularised:Wider"}))
    with pytest.raises(UserError):
        trainer.restore(checkpoint.weights.read_bytes())


class Payload:
    """Content of a hostile file: code that runs when it is unpickled."""

    ran = False

    def __reduce__(self):
        return (setattr, (Payload, "ran", True))


def test_a_state_that_holds_code_is_refused_unrun(framework: str) -> None:
    buffer = io.BytesIO()
    if framework == "torch":
        import torch

        torch.save({"model": Payload(), "optimizer": {}, "ranks": []}, buffer)
    else:
        array = io.BytesIO()
        np.save(array, np.array([Payload()], dtype=object), allow_pickle=True)
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("differing.npy", array.getvalue())
    trainer, _, _ = new_trainer(spec_of(framework, "sgd"))
    for content in (buffer.getvalue(), buffer.getvalue()[:-9], b"", b"PK"):
        with refused(ErrorCode.INVALID_WEIGHTS):
            trainer.restore(content)
    assert not Payload.ran
