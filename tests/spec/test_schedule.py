import math
from typing import get_args

import pytest

from raybench.scaling.published import STUDIES
from raybench.spec.documents import validate
from raybench.spec.errors import ErrorCode
from raybench.spec.run import OWN_RAMP, RunSpec, ScheduleName
from raybench.spec.scaling_study import study_cells
from raybench.spec.schedule import build_schedule, scaled_rate
from tests.refusals import refused

EPOCH = 1000  # samples
STUDY_2 = {  # learning rate of epoch 0, 1, 2, ... (studies.md section 3)
    1: [1.0e-5, 1.8e-5, 2.6e-5, 3.4e-5, 4.2e-5, 5.0e-5, 4.2e-5, 3.56e-5, 3.048e-5, 2.6384e-5],
    4: [1.0e-5, 4.8e-5, 8.6e-5, 1.24e-4, 1.62e-4, 2.0e-4, 1.62e-4, 1.316e-4, 1.0728e-4, 8.7824e-5],
}


def schedule(samples_per_epoch=EPOCH, **changes):
    changes = {"batch_size_per_worker": 10, "learning_rate": 0.1} | changes
    return build_schedule(RunSpec(**changes), samples_per_epoch)


@pytest.mark.parametrize(
    ("scaling", "workers", "start", "peak"),
    [
        ("none", 4, 0.0, 0.1),
        ("linear", 1, 0.0, 0.1),
        ("linear", 4, 0.1, 0.4),
        ("sqrt", 9, 0.1, 0.3),
    ],
)
def test_warmup_rises_from_the_unscaled_rate_to_the_peak(scaling, workers, start, peak):
    changes = {"learning_rate_scaling": scaling, "num_workers": workers}
    assert scaled_rate(RunSpec(learning_rate=0.1, **changes)) == pytest.approx(peak)
    assert schedule(**changes)(0) == pytest.approx(peak), "without a warm-up"
    rates = schedule(**changes, warmup_epochs=2.0)
    step = 10 * workers
    # A step has the rate at its end, so the first is never 0.
    assert rates(0) == pytest.approx(start + (peak - start) * step / (2 * EPOCH))
    assert rates(EPOCH - step) == pytest.approx((start + peak) / 2)
    for samples in (2 * EPOCH - step, 2 * EPOCH, 1e9):
        assert rates(samples) == pytest.approx(peak)


def test_cosine_with_warmup_ends_at_zero_after_the_last_sample():
    rates = schedule(schedule="cosine", epochs=5.0, warmup_epochs=1.0)
    assert rates(EPOCH) == pytest.approx(0.1)
    assert rates(3 * EPOCH) == pytest.approx(0.05)
    for samples in (5 * EPOCH, 5 * EPOCH + 12345):
        assert rates(samples) == pytest.approx(0.0, abs=1e-12), "it must not rise again"


@pytest.mark.parametrize("workers", STUDY_2)
def test_ramp_decay_matches_the_table_of_study_2(workers):
    cells = study_cells(STUDIES["finetune_lr_schedule"].study(quick=False))
    specs = (cell.spec for cell in cells if cell.spec.schedule == "ramp_decay")
    rates = build_schedule(next(spec for spec in specs if spec.num_workers == workers), EPOCH)
    for epoch, rate in enumerate(STUDY_2[workers]):
        assert rates(epoch * EPOCH) == pytest.approx(rate, rel=1e-9)
        assert rates(epoch * EPOCH + EPOCH - 1) == pytest.approx(rate, rel=1e-9), (
            "constant within an epoch"
        )


@pytest.mark.parametrize("kind", OWN_RAMP)
@pytest.mark.parametrize("key", ["warmup_epochs", "warmup_samples"])
def test_schedules_with_a_ramp_refuse_warmup_keys(kind, key):
    with refused(ErrorCode.CONFLICT, kind, key):
        validate(RunSpec, {"schedule": kind, key: 1}, "spec")


def test_warmup_samples_equal_warmup_epochs():
    by_epochs = schedule(schedule="cosine", epochs=5.0, warmup_epochs=0.5)
    by_samples = schedule(schedule="cosine", epochs=5.0, warmup_samples=EPOCH // 2)
    for samples in range(0, 5 * EPOCH, 10):
        assert by_epochs(samples) == by_samples(samples)


STEPS = 500
"""Steps of 10 samples in 5 epochs."""


def torch_rates(build):
    """Return the rates of all steps by a torch scheduler."""
    lr = pytest.importorskip("torch.optim.lr_scheduler")
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = build(lr, optimizer)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def test_schedules_equal_those_of_torch():
    cases = {
        "linear": lambda lr, o: lr.LinearLR(o, 1.0, 0.1, total_iters=STEPS),
        "cosine": lambda lr, o: lr.CosineAnnealingLR(o, STEPS, eta_min=0.01),
        "step": lambda lr, o: lr.MultiStepLR(o, [100, 400], gamma=0.3),
        "polynomial": lambda lr, o: lr.PolynomialLR(o, STEPS, power=3.0),
    }
    for kind, build in cases.items():
        final = 0.0 if kind == "polynomial" else 0.1
        keys = {"step_at": [0.2, 0.8], "step_factor": 0.3, "decay_power": 3.0}
        ours = schedule(schedule=kind, epochs=5.0, final_rate=final, **keys)
        rates = [ours(10 * step) for step in range(STEPS)]
        assert rates == pytest.approx(torch_rates(build), rel=1e-9, abs=1e-12), kind


def test_one_cycle_equals_that_of_torch():
    def build(lr, optimizer):
        return lr.OneCycleLR(optimizer, 0.1, total_steps=STEPS, final_div_factor=1 / 25 / 0.05)

    ours = schedule(schedule="one_cycle", epochs=5.0, final_rate=0.05)
    rates = [ours(10 * step) for step in range(STEPS)]
    # Torch ends at the last step, so it is one step of 500 ahead of ours.
    assert rates == pytest.approx(torch_rates(build), abs=0.1 / STEPS * math.pi)
    assert ours(0) == pytest.approx(0.1 / 25)
    assert ours(0.3 * 5 * EPOCH) == pytest.approx(0.1)
    assert ours(5 * EPOCH) == ours(6 * EPOCH) == pytest.approx(0.005)


@pytest.mark.parametrize("kind", get_args(ScheduleName))
def test_rates_depend_on_epochs_and_not_on_workers(kind):
    # Without a scaling rule the schedule must not depend on the workers.
    warmup_epochs = 0.0 if kind in OWN_RAMP else 1.0
    single = schedule(schedule=kind, batch_size_per_worker=40, warmup_epochs=warmup_epochs)
    parallel = schedule(schedule=kind, num_workers=4, warmup_epochs=warmup_epochs)
    for samples in range(0, 3 * EPOCH, 40):
        assert single(samples) == parallel(samples) > 0.0
