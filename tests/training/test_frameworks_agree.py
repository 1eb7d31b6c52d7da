"""The same spec gives the same curve in both frameworks: weights, order, update, evaluation."""

import pytest
from local import small_spec, train

pytest.importorskip("torch")
pytest.importorskip("tensorflow")


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "lamb"])
def test_curves_agree(optimizer: str) -> None:
    rate = {"sgd": 0.01, "lars": 1.0}.get(optimizer, 1e-3)
    changes = {
        "optimizer": optimizer,
        "learning_rate": rate,
        "weight_decay": 1e-3,
        "schedule": "cosine",
        "warmup_epochs": 1.0,
    }
    torch_curve, _ = train(small_spec("torch", **changes))
    keras_curve, _ = train(small_spec("tensorflow", **changes))
    for one, other in zip(torch_curve, keras_curve, strict=True):
        assert one.samples == other.samples
        assert one.learning_rate == pytest.approx(other.learning_rate, rel=1e-6)
        # Float32 in another order of summation, over 15 steps.
        assert one.train_loss == pytest.approx(other.train_loss, rel=2e-3)
        assert one.value == pytest.approx(other.value, abs=0.01)
    assert torch_curve[-1].train_loss < torch_curve[0].train_loss
