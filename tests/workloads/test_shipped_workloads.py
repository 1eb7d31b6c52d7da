import pytest

from raybench.workloads.layers import num_parameters, output_shapes
from raybench.workloads.shipped import WORKLOADS, cnn7


@pytest.mark.parametrize(
    ("name", "input_shape", "expected"),
    [
        ("mnist_small", (28, 28, 1), 402_442),
        ("mnist_large", (28, 28, 1), 2_636_554),
        ("mnist_large_dense", (28, 28, 1), 4_104_202),
        ("cnn7", (299, 299, 3), 910_922),
        ("cnn7", (128, 128, 3), 173_642),
        ("cnn7", (94, 94, 3), 124_490),
        ("cnn7", (64, 64, 3), 173_642),
        ("cnn7", (32, 32, 3), 124_490),
        ("cifar_cnn", (32, 32, 3), 1_250_858),
        ("deep_mlp", (28, 28, 1), 75_850),
    ],
)
def test_num_parameters(name, input_shape, expected):
    workload = WORKLOADS[name](input_shape, 10)
    assert num_parameters(workload.layers, workload.input_shape) == expected
    assert workload.name == name


@pytest.mark.parametrize("name", WORKLOADS)
def test_num_classes_is_that_of_the_dataset(name):
    workload = WORKLOADS[name](num_classes=7)
    assert output_shapes(workload.layers, workload.input_shape)[-1] == (7,)
    assert workload.num_classes == 7


def test_cnn7_pads_small_images_only():
    assert output_shapes(cnn7().layers, (299, 299, 3))[14] == (7, 7, 128)
    assert output_shapes(cnn7((93, 93, 3)).layers, (93, 93, 3))[0] == (93, 93, 16)
    assert output_shapes(cnn7((94, 94, 3)).layers, (94, 94, 3))[0] == (92, 92, 16)
