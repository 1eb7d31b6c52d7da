"""Study 3: its cells, its published figures, and what its comparisons conclude."""

import pytest
from made_up_study import PARAMETERS, Machine, compared, usual

from raybench.models.base import LayerWorkload
from raybench.models.find import load_workload_dataset
from raybench.models.layers import num_parameters
from raybench.scaling.published import STUDIES
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import study_cells


def test_study_3_gives_more_parameters_the_larger_share() -> None:
    def step(spec: RunSpec) -> float:
        many = spec.workload.endswith(":SmallDecodedDigits")
        sends = (0.05 if many else 0.01) if spec.exchange_gradients else 0.0
        return 0.001 * spec.batch_size_per_worker + sends

    claims = compared("bottleneck_probe", Machine(step))
    assert all(
        claims[words].holds
        for words in (
            "A model of more parameters spends a larger share on communication",
            "A larger batch lowers the share of communication",
            "An exchange takes the same time whatever the batch size",
        )
    )
    found = claims["A model of more parameters spends a larger share on communication"].ours
    assert found.startswith("SmallDecodedDigits (525,322): ")
    assert ", DecodedDigits (124,202): " in found


def test_study_3_sees_slow_data() -> None:
    words = "Real data, decoded on demand, cost no more than synthetic ones in memory"
    assert compared("bottleneck_probe", Machine(usual))[words].holds is True
    slow = Machine(lambda spec: usual(spec) * (1.5 if spec.dataset.name == "workload" else 1.0))
    claim = compared("bottleneck_probe", slow)[words]
    assert claim.holds is False
    assert claim.ours.startswith("33.3 %")


@pytest.mark.parametrize("quick", [True, False])
def test_study_3_compares_data_that_are_decoded_with_data_in_memory(quick: bool) -> None:
    """Two arrays in memory differ in nothing that an input pipeline does."""
    specs = [cell.spec for cell in study_cells(STUDIES["bottleneck_probe"].study(quick))]
    assert {spec.dataset.name for spec in specs} == {"workload", "synthetic"}
    for spec in {(one.workload, one.dataset.name): one for one in specs}.values():
        assert spec.prefetch == 0
        workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
        assert dataset.train.is_on_demand == (spec.dataset.name == "workload")
        assert tuple(dataset.input_shape) == tuple(workload.input_shape)
        assert len(dataset.train) == 1257
        assert isinstance(workload, LayerWorkload)
        count = num_parameters(workload.layers, workload.input_shape)
        assert count == PARAMETERS[spec.workload]
