"""A run resumed from a checkpoint equals an uninterrupted one, in both frameworks."""

import io
import zipfile

import numpy as np
import pytest
from checkpointed_runs import (
    END,
    MIDDLE,
    curve_values,
    model_arrays,
    resume_and_train,
    spec_of,
    train_and_save,
)
from local_runs import new_trainer, single_worker

from raybench.spec.errors import ErrorCode
from raybench.spec.optimizer import OPTIMIZERS
from tests.refusals import refused

LIBRARY_OPTIMIZERS = {
    "torch": ("torch:NAdam", {"betas": [0.8, 0.99]}),
    "tensorflow": ("keras:Nadam", {"beta_1": 0.8}),
}
"""An optimizer of each framework's library, and its options."""
PASSES = {
    **{"accumulate": 2, "batch_size_per_worker": 8},
    **{"ema_decay": 0.9, "clip_norm": 0.5, "precision": "fp16"},
}


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        ("adam", {}),
        ("lars", PASSES),
        ("library", {}),
        *(pytest.param(name, {}, marks=pytest.mark.all) for name in OPTIMIZERS if name != "adam"),
        pytest.param("adam", {"precision": "bf16"}, marks=pytest.mark.all),
    ],
)
def test_resumed_run_equals_an_uninterrupted_one(framework, optimizer, changes, tmp_path):
    """Also resumed at the end of an epoch, which changes the position in the data only."""
    points = [MIDDLE, END] if optimizer == "adam" else [MIDDLE]
    if optimizer not in OPTIMIZERS:
        optimizer, changes["optimizer_options"] = LIBRARY_OPTIMIZERS[framework]
    spec = spec_of(framework, optimizer, **changes)
    curve, trainer = train_and_save(spec, single_worker(framework), tmp_path)
    assert [point.samples for point in curve] == [48, 90, 138, 180]
    expected = model_arrays(trainer, framework)
    for index in points:
        rest, resumed = resume_and_train(spec, single_worker(framework), tmp_path / str(index))
        np.testing.assert_array_equal(curve_values(rest), curve_values(curve[index + 1 :]))
        np.testing.assert_equal(expected, model_arrays(resumed, framework))
        seconds = [curve[index].train_s, *(point.train_s for point in rest)]
        assert seconds == sorted(seconds), "the training clock continues"
        assert rest[0].ledger["compile"] > curve[index].ledger["compile"]
        assert rest[0].ledger["input"] > curve[index].ledger["input"]
    assert not (tmp_path / str(END + 2)).exists(), "no checkpoint after the last evaluation"


def test_checkpoint_of_another_model_is_refused(framework):
    spec = spec_of(framework, "sgd")
    state = new_trainer(spec)[0].state()
    trainer, _, _ = new_trainer(spec.model_copy(update={"workload": "regularised:Wider"}))
    with refused(ErrorCode.INVALID_WEIGHTS):
        trainer.restore(state)


class Payload:
    """Object of a malicious file: sets `ran` when it is unpickled."""

    ran = False

    def __reduce__(self):
        return (setattr, (Payload, "ran", True))


def test_state_with_pickled_code_is_refused_and_not_run(framework):
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
