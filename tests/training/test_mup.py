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
from raybench.training.mup import MOST_GROWTH, WeightForm, WidthFactors, factors, growths

if TYPE_CHECKING:
    import torch


class Wide(LayerWorkload):
    """Two hidden layers."""

    name, input_shape, num_classes = "wide", (28, 28, 1), 10

    def __init__(self, width: int = 16, depth: int = 2) -> None:
        hidden = (Dense(width), ReLU()) * depth
        self.layers = (Flatten(), *hidden, Dense(10))


class Loud(Workload):
    """Its outputs are multiplied by its width; its hidden layer begins with one deviation at any.

    The second is mended by muP, the first is not.
    """

    name, input_shape, num_classes = "loud", (28, 28, 1), 10

    def __init__(self, width: int = 16) -> None:
        self._width = width

    def build_torch(self) -> "torch.nn.Module":
        """Return the network."""
        from torch import nn

        first, hidden = nn.Linear(784, self._width), nn.Linear(self._width, self._width)
        nn.init.normal_(hidden.weight, std=0.02)
        head, relu = nn.Linear(self._width, 10), nn.ReLU()
        head.register_forward_hook(lambda module, inputs, outputs: outputs * self._width)
        return nn.Sequential(nn.Flatten(), first, relu, hidden, relu, head)


WIDE = f"{__name__}:Wide"


def spec_of(framework: str = "torch", **changes: object) -> RunSpec:
    content = {"workload": WIDE, "model": {"width": 256}, "mup_base": {"width": 64}}
    content |= {"dataset": SMALL, "objective": FOR_EVER, "framework": framework}
    return RunSpec(**(content | {"learning_rate": 1e-3} | changes))  # type: ignore[arg-type]


@pytest.mark.all
@pytest.mark.parametrize(
    ("framework", "optimizer", "rate"), [("torch", "sgd", 0.1), ("tensorflow", "radam", 1e-3)]
)
def test_nothing_grows_with_the_width(framework: str, optimizer: str, rate: float) -> None:
    pytest.importorskip(framework)
    spec = spec_of(framework, optimizer=optimizer, learning_rate=rate, weight_decay=0.01)
    found = growths(spec, num_threads=1)
    assert len(found) == 1 + 3, "the outputs and three matrices"
    assert max(abs(one.power) for one in found) < MOST_GROWTH


def test_rates_and_decay_are_those_of_the_table() -> None:
    """One step of SGD from gradients of 1, in both frameworks."""
    torch = pytest.importorskip("torch")
    tf = pytest.importorskip("tensorflow")
    wide = [WeightForm(8, 8, 0.5), WeightForm(1, 8, 0.0, False), WeightForm(8, 2, 3.0)]
    base = [WeightForm(2, 4, 1.0), WeightForm(1, 4, 0.0, False), WeightForm(2, 2, 3.0)]
    *scaled, head = factors("sgd", wide, base)
    assert scaled == [WidthFactors(1.0, 0.5), WidthFactors(1.0, 2.0)]
    assert (head, factors("adam", wide, base)[0].rate) == (WidthFactors(0.25, 0.25), 0.25)
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
    shapes = [(1, 36), (1, 4), (1, 4), (4, 6), (1, 6), (6, 3), (1, 3)]
    assert [(one.inputs, one.outputs) for one in found] == shapes
    assert [at for at, one in enumerate(found) if one.is_matrix] == [3, 5]
    assert [one.rms for one in found[1:3]] == [1.0, 0.0], "of a norm: weights of 1, biases of 0"


def test_heads_are_what_gets_more_inputs_alone_wherever_they_stand() -> None:
    forms, base = (
        [WeightForm(n, 2, 1.0), WeightForm(n, n, 1.0), WeightForm(n, 2, 1.0)] for n in (8, 2)
    )
    assert [one.initial for one in factors("adam", forms, base)] == [0.25, 0.5, 0.25]
    unclear = WeightForm(8, 2, 1.0, of_own_layer="net.table")
    with pytest.raises(UserError, match=r"net\.table it is not known whether"):
        factors("adam", [unclear], base[:1])


def test_a_transposed_convolution_has_its_inputs_first() -> None:
    torch, keras = pytest.importorskip("torch"), pytest.importorskip("keras")
    model = torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 6, 3))
    other = keras.Sequential([keras.Input((5, 5, 4)), keras.layers.Conv2DTranspose(6, 3)])
    for framework, one in (("torch", model), ("tensorflow", other)):
        optim = find_part(framework, "optim")
        weight = optim.forms(one)[0]
        assert (weight.inputs, weight.outputs) == (36, 6)
        assert [matrix.shape for matrix in optim.matrices(one).values()] == [(6, 36)]


def test_a_table_of_a_users_layer_is_taken_for_none() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.ones(5, 8))
            self.token = torch.nn.Parameter(torch.ones(1, 1, 8))

    found = find_part("torch", "optim").forms(Net())
    assert [one.of_own_layer for one in found] == ["table", ""]
    assert (found[1].inputs, found[1].outputs) == (1, 8)


def test_a_base_of_other_layers_or_settings_is_refused() -> None:
    pytest.importorskip("torch")
    with pytest.raises(UserError, match="no weight of the model is larger"):
        growths(spec_of(mup_base={"width": 256}))
    with pytest.raises(UserError, match="diverges within 10 steps of rate 1e"):
        growths(spec_of(learning_rate=1e30))
    with pytest.raises(UserError, match="has other weights"):
        growths(spec_of(mup_base={"width": 64, "depth": 1}))
    with pytest.raises(UserError, match=r"no such setting; did you mean 'width'"):
        growths(spec_of(mup_base={"with": 16}))
    with pytest.raises(ValueError, match="how rates go with the width; set optimizer to one of"):
        spec_of(optimizer="lamb")


@pytest.mark.parametrize(
    ("workload", "code", "says"),
    [
        (WIDE, cli.DONE, "muP holds"),
        (f"{__name__}:Loud", cli.FAILED, "the outputs change with power 1.0"),
    ],
)
def test_the_command_says_whether_it_holds(
    workload: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (file := tmp_path / "large.yaml").write_text(
        f"workload: {workload}\ndataset: {{name: digits, image_size: 28, limit: 300}}\n"
        "objective: {kind: time_to_target, target: 0.9}\nspace: {learning_rate: [0.001]}\n"
        "fixed: {model: {width: 256}, mup_base: {width: 64}, batch_size_per_worker: 32}\n"
    )
    assert transfer.main(["--to", str(file), "--check"]) == code
    assert says in capsys.readouterr().out
