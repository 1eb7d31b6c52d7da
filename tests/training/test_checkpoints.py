"""A run continued from a checkpoint equals one that was not interrupted, in both frameworks."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from continued import END, MIDDLE, all_of, continued, facts, spec_of, whole
from group import run_two
from local import FRAMEWORKS, alone, new_trainer

from raybench.spec.errors import UserError
from raybench.spec.run import OPTIMIZERS, RunSpec
from raybench.stats.checkpoint import latest_checkpoint
from raybench.stats.clock import Ledger
from raybench.training.run import run
from raybench.training.saved import RefusedStateError
from raybench.training.steps import warm_up_step

pytestmark = pytest.mark.parametrize("framework", FRAMEWORKS)


ALIKE = ("adamw", "nadamw", "lion", "muon", "radam", "lamb", "sgd")
"""Those whose state is of the kinds that others have; test_*_optim.py saves theirs too."""
LIBRARYS = {
    "torch": ("torch:NAdam", {"betas": [0.8, 0.99]}),
    "tensorflow": ("keras:Nadam", {"beta_1": 0.8}),
}
PASSES = {"accumulate": 2, "batch_size_per_worker": 8, "ema_decay": 0.9, "clip_norm": 0.5}


@pytest.mark.parametrize(
    ("optimizer", "changes"),
    [
        *(pytest.param(name, {}, marks=[pytest.mark.all] * (name in ALIKE)) for name in OPTIMIZERS),
        ("adam", PASSES),
        ("adam", {"precision": "bf16"}),
    ],
)
def test_a_continued_run_equals_a_whole_one(
    framework: str, optimizer: str, changes: dict, tmp_path: Path
) -> None:
    check_continued(spec_of(framework, optimizer, **changes), framework, tmp_path)


def test_a_run_of_a_librarys_optimizer_continues_too(framework: str, tmp_path: Path) -> None:
    name, options = LIBRARYS[framework]
    check_continued(spec_of(framework, name, optimizer_options=options), framework, tmp_path)


def check_continued(spec: RunSpec, framework: str, tmp_path: Path) -> None:
    curve, trainer = whole(spec, alone(framework), tmp_path)
    assert [point.samples for point in curve] == [48, 90, 138, 180]
    expected = all_of(trainer, framework)
    for at in (MIDDLE, END):
        rest, again = continued(spec, alone(framework), tmp_path / str(at))
        np.testing.assert_array_equal(facts(rest), facts(curve[at + 1 :]))
        for one, other in zip(expected, all_of(again, framework), strict=True):
            np.testing.assert_array_equal(one, other)
        seconds = [curve[at].train_s, *(point.train_s for point in rest)]
        assert seconds == sorted(seconds), "not on the same training clock"
        assert rest[0].ledger["compile"] > curve[at].ledger["compile"]
        assert rest[0].ledger["input"] > curve[at].ledger["input"]
    assert not (tmp_path / str(END + 2)).exists(), "a run that is over needs no checkpoint"


def test_without_the_optimizers_state_it_is_another_run(framework: str, tmp_path: Path) -> None:
    """The equality above is not for nothing."""
    spec = spec_of(framework, "adam")
    curve, _ = whole(spec, alone(framework), tmp_path)
    checkpoint = latest_checkpoint(tmp_path / str(MIDDLE), spec)
    assert checkpoint is not None
    saved, (bare, dataset, world) = new_trainer(spec)[0], new_trainer(spec)
    saved.restore(checkpoint.weights)
    bare.load(saved.save())
    ledger = Ledger("setup", earlier=checkpoint.state.ledger)
    rest = list(run(spec, dataset, bare, world, ledger, resume=checkpoint.state))
    assert rest[-1].samples == curve[-1].samples
    assert rest[-1].train_loss != curve[-1].train_loss


def test_warm_up_changes_nothing_of_what_was_restored(framework: str, tmp_path: Path) -> None:
    spec = spec_of(framework, "lamb")
    whole(spec, alone(framework), tmp_path)
    checkpoint = latest_checkpoint(tmp_path / str(END), spec)
    assert checkpoint is not None
    trainer, dataset, world = new_trainer(spec)
    trainer.restore(checkpoint.weights)
    before = trainer.state()
    trainer.warm_up(warm_up_step(spec, dataset, world))
    assert contents(framework, trainer.state()) == contents(framework, before)
    assert contents(framework, before) == contents(framework, checkpoint.weights)


def contents(framework: str, state: bytes) -> list[bytes]:
    """Every array of a state, in order."""
    if framework == "tensorflow":
        with np.load(io.BytesIO(state)) as arrays:
            return [arrays[name].tobytes() for name in sorted(arrays.files)]
    import torch

    found = torch.load(io.BytesIO(state), weights_only=True)
    states = found["optimizer"]["state"].values()
    tensors = [*found["model"].values(), found["ranks"]]
    tensors += [value for state in states for value in state.values()]
    return [tensor.numpy().tobytes() for tensor in tensors]


def test_a_model_that_was_changed_is_refused(framework: str, tmp_path: Path) -> None:
    spec = spec_of(framework, "sgd")
    whole(spec, alone(framework), tmp_path)
    checkpoint = latest_checkpoint(tmp_path / str(MIDDLE), spec)
    assert checkpoint is not None
    trainer, _, _ = new_trainer(spec.model_copy(update={"workload": "regularised:Wider"}))
    with pytest.raises(RefusedStateError, match=r"holds another model \(.* there, .* here\)"):
        trainer.restore(checkpoint.weights)


class Payload:
    """What a hostile file would hold: code that runs when it is unpickled."""

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
            file.writestr("ranks.npy", array.getvalue())
    trainer, _, _ = new_trainer(spec_of(framework, "sgd"))
    for content in (buffer.getvalue(), buffer.getvalue()[:-9], b"", b"PK"):
        with pytest.raises(UserError, match="not what raybench writes"):
            trainer.restore(content)
    assert not Payload.ran


KINDS_OF_STATE = ("lars", "schedule_free_adamw", "muon")
"""Of the kinds of state that there are; test_checkpoints.py has all of them, in one process."""
SCRIPT = Path(__file__).with_name("continued.py")


@pytest.mark.all
@pytest.mark.slow
def test_two_workers_continue_in_new_processes(framework: str, tmp_path: Path) -> None:
    specs = {
        name: spec_of(framework, name, num_workers=2, batch_size_per_worker=8)
        for name in KINDS_OF_STATE
    }
    documents = {name: spec.document() for name, spec in specs.items()}
    first = [(name, documents[name], -1) for name in KINDS_OF_STATE]
    points = [*((name, MIDDLE) for name in KINDS_OF_STATE), ("lars", END)]
    run_two([str(SCRIPT), json.dumps(first)], tmp_path)
    for rank in range(2):
        (tmp_path / f"done-{rank}").unlink()
    rest = [(name, documents[name], at) for name, at in points]
    run_two([str(SCRIPT), json.dumps(rest)], tmp_path)
    for rank in range(2):
        for name, at in points:
            one = dict(np.load(tmp_path / f"{name}-1-{rank}.npz"))
            other = dict(np.load(tmp_path / f"{name}{at}-{rank}.npz"))
            assert other["seconds"][0] > one["seconds"][at]
            np.testing.assert_array_equal(one.pop("facts")[at + 1 :], other.pop("facts"))
            assert one.keys() == other.keys()
            for key in one.keys() - {"seconds"}:
                np.testing.assert_array_equal(one[key], other[key], err_msg=f"{name} {key}")
