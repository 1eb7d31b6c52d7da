"""muP in both frameworks: what grows with the width, whose rates are whose, what is refused."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from local import FOR_EVER, SMALL

from raybench.commands import cli, transfer
from raybench.models.base import LayerWorkload, Workload
from raybench.models.layers import Dense, Embedding, Flatten, GlobalAveragePool, LayerNorm, ReLU
from raybench.spec.errors import UserError
from raybench.spec.run import RunSpec
from raybench.training.base import find_part
from raybench.training.mup import MOST_GROWTH, Factors, Form, factors, growths

if TYPE_CHECKING:
    import torch


class Wide(LayerWorkload):
    """Two hidden layers."""

    name, input_shape, num_classes = "wide", (28, 28, 1), 10

    def __init__(self, width: int = 16, depth: int = 2) -> None:
        hidden = (Dense(width), ReLU()) * depth
        self.layers = (Flatten(), *hidden, Dense(10))


class Fixed(Workload):
    """Its hidden layer begins with one deviation at any width."""

    name, input_shape, num_classes = "fixed", (28, 28, 1), 10

    def __init__(self, width: int = 16) -> None:
        self._width = width

    def build_torch(self) -> "torch.nn.Module":
        """Return the network."""
        from torch import nn

        first, hidden = nn.Linear(784, self._width), nn.Linear(self._width, self._width)
        nn.init.normal_(hidden.weight, std=0.02)
        relu = nn.ReLU()
        return nn.Sequential(nn.Flatten(), first, relu, hidden, relu, nn.Linear(self._width, 10))


WIDE = f"{__name__}:Wide"


def spec_of(framework: str = "torch", **changes: object) -> RunSpec:
    content = {"workload": WIDE, "model": {"width": 128}, "mup_base": {"width": 32}}
    content |= {"dataset": SMALL, "objective": FOR_EVER, "framework": framework}
    return RunSpec(**(content | {"learning_rate": 1e-3} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("optimizer", "rate"), [("radam", 1e-3), ("sgd", 0.1)])
def test_nothing_grows_with_the_width(framework: str, optimizer: str, rate: float) -> None:
    found = growths(spec_of(framework, optimizer=optimizer, learning_rate=rate, weight_decay=0.01))
    assert len(found) == 3
    assert max(abs(power) for one in found for power in (one.initial, one.update)) < MOST_GROWTH


def test_rates_and_decay_are_those_of_the_table() -> None:
    """One step of SGD from gradients of 1, in both frameworks."""
    torch = pytest.importorskip("torch")
    tf = pytest.importorskip("tensorflow")
    scaled = factors("sgd", [Form(8, 8), Form(1, 8, False)], [Form(2, 4), Form(1, 4, False)])
    assert scaled == [Factors(0.5, 0.5), Factors(1.0, 2.0)]
    rules = {"learning_rate": 0.1, "weight_decay": 0.5, "momentum": 0.0}
    model = torch.nn.Linear(8, 8)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    optim = find_part("torch", "optim")
    optimizer = optim.build_optimizer("sgd", model, **rules)
    optim.scale_rates(optimizer, model, scaled)
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * group["rate_factor"]
    optimizer.step()
    variables = [tf.keras.Variable(tf.ones(shape)) for shape in ((8, 8), (8,))]
    optimizer = find_part("tensorflow", "optim").build_optimizer("sgd", **rules)
    optimizer.build(variables)
    optimizer.scale_rates(variables, scaled)
    optimizer.apply([tf.ones(one.shape) for one in variables], variables)
    # 1 - rate x factor x gradient - rate x decay, which biases have not.
    for weight, bias in (model.parameters(), variables):
        assert float(weight[0, 0]) == pytest.approx(1 - 0.05 - 0.05)
        assert float(bias[0]) == pytest.approx(1 - 0.2)


def test_embeddings_and_norms_are_no_matrices(framework: str) -> None:

    class Text(LayerWorkload):
        name, input_shape, num_classes = "text", (5,), 3
        layers = (Embedding(9, 4), LayerNorm(), GlobalAveragePool(), Dense(6), Dense(3))

    model = find_part(framework, "model").build_model(Text(), 0)
    found = find_part(framework, "optim").forms(model)
    others = [Form(1, size, False) for size in (36, 4, 4, 6, 3)]
    assert found == [*others[:3], Form(4, 6), others[3], Form(6, 3), others[4]]


def test_a_base_of_other_layers_or_settings_is_refused() -> None:
    pytest.importorskip("torch")
    with pytest.raises(UserError, match="has other weights"):
        growths(spec_of(mup_base={"width": 32, "depth": 1}))
    with pytest.raises(UserError, match=r"no such setting; did you mean 'width'"):
        growths(spec_of(mup_base={"with": 16}))
    with pytest.raises(ValueError, match="how rates go with the width; set optimizer to one of"):
        spec_of(optimizer="lamb")


@pytest.mark.parametrize(
    ("workload", "code", "says"),
    [
        (WIDE, cli.DONE, "muP holds"),
        (f"{__name__}:Fixed", cli.FAILED, "muP does not hold"),
    ],
)
def test_the_command_says_whether_it_holds(
    workload: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (file := tmp_path / "large.yaml").write_text(
        f"workload: {workload}\ndataset: {{name: digits, image_size: 28, limit: 300}}\n"
        "objective: {kind: time_to_target, target: 0.9}\nspace: {learning_rate: [0.001]}\n"
        "fixed: {model: {width: 128}, mup_base: {width: 32}, batch_size_per_worker: 32}\n"
    )
    assert transfer.main(["--to", str(file), "--check"]) == code
    assert says in capsys.readouterr().out
