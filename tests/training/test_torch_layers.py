"""The forms in which torch trains a workload's layers: the model of torch's own modules."""

import pytest
from local import SMALL, small_spec, train

torch = pytest.importorskip("torch")

from raybench.data.dataset import epoch_order  # noqa: E402
from raybench.models.find import load_workload_dataset  # noqa: E402
from raybench.models.layers import Conv, Dense, Flatten, MaxPool, ReLU  # noqa: E402
from raybench.training.torch.layers import DepthwiseConv2d, build_layers  # noqa: E402
from raybench.training.torch.model import build_model  # noqa: E402


@pytest.mark.parametrize("multiplier", [1, 2, 3])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_a_depthwise_convolution_has_its_filters_in_torch_s_order(multiplier, padding):
    own = DepthwiseConv2d(4, multiplier, 3, padding)
    other = torch.nn.Conv2d(4, 4 * multiplier, 3, padding=padding, groups=4)
    other.load_state_dict(own.state_dict())
    inputs = torch.randn(2, 4, 9, 9)
    torch.testing.assert_close(own(inputs), other(inputs), rtol=1e-5, atol=1e-6)
    beside = inputs.to(memory_format=torch.channels_last)
    torch.testing.assert_close(own(beside), other(inputs), rtol=1e-5, atol=1e-6)


def test_what_a_model_is_given_stays_as_it_is():
    layers = (ReLU(), Conv(2), ReLU(), MaxPool(), Flatten(), ReLU(), Dense(3), ReLU())
    for first in (layers, (Flatten(), *layers[5:])):
        inputs = torch.randn(2, 1, 6, 6)
        before = inputs.clone()
        with torch.no_grad():
            torch.nn.Sequential(*build_layers(first, (6, 6, 1)))(inputs)
        assert torch.equal(inputs, before)


def test_training_is_bit_for_bit_a_plain_loop_of_the_same_layout_with_torch_s_own_adam():
    spec = small_spec("torch", dataset=SMALL.model_copy(update={"limit": 256}), epochs=2.0)
    _, trainer = train(spec)
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    nn = torch.nn
    model = nn.Sequential(  # mnist_small, as torch's documentation has its layers
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(6272, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    model.load_state_dict(build_model(workload, spec.seed).state_dict())
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=spec.learning_rate, fused=True)
    inputs = torch.from_numpy(dataset.train.inputs).permute(0, 3, 1, 2).float() * (1 / 255)
    labels = torch.from_numpy(dataset.train.labels)
    for epoch in range(2):
        order = torch.from_numpy(epoch_order(256, seed=spec.seed, epoch=epoch))
        for rows in order.split(64):
            optimizer.zero_grad()
            outputs = model(inputs[rows])
            torch.nn.functional.cross_entropy(outputs, labels[rows]).backward()
            optimizer.step()
    trained = trainer._model.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in model.state_dict().items())
