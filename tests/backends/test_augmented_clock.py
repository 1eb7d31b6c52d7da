"""Augmentation is done ahead of training by a thread; what is waited for it is input."""

import time

import pytest
from local import FRAMEWORKS, small_spec
from on_demand_data import NAP_S, Napping

from raybench.backends.base import find_backend
from raybench.backends.run import run
from raybench.core.clock import Ledger
from raybench.core.dataset_spec import Flip
from raybench.core.record import Evaluation
from raybench.core.spec import DatasetSpec
from raybench.data import augment as augmenter
from raybench.data.image_changes import draw_flip
from raybench.data.load import load_dataset

STEPS = 12


def curve_of(framework: str, augment_s: float, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    """Train for 12 steps of 30 ms, whose batches take `augment_s` to augment."""

    def slow(images, drawn, settings):
        time.sleep(augment_s)
        return images

    monkeypatch.setitem(augmenter.CHANGES, "flip", (draw_flip, slow))
    data = DatasetSpec(name="digits", limit=4 * STEPS)
    spec = small_spec(
        framework, dataset=data, epochs=1.0, batch_size_per_worker=4, augment=[Flip(kind="flip")]
    )
    dataset = load_dataset(data)
    backend = find_backend(framework)
    world = backend.join(rank=0, num_workers=1, device="cpu", num_threads=1)
    trainer = backend.Trainer(spec, Napping(), dataset, world)
    last = list(run(spec, dataset, trainer, world, Ledger("setup")))[-1]
    trainer.close()
    return last


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_only_what_is_waited_for_is_on_the_clock(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = curve_of(framework, NAP_S / 3, monkeypatch).ledger
    assert quick["train"] >= STEPS * NAP_S
    slow = curve_of(framework, 3 * NAP_S, monkeypatch).ledger
    assert slow["train"] >= STEPS * 3 * NAP_S
    # Of three steps' time two are left to wait for, each time; of a third of one, none is but
    # the first batch's, for which there was no step to hide behind.
    assert slow["input"] > STEPS * 1.5 * NAP_S
    assert NAP_S / 3 <= quick["input"] < slow["input"] / 4
