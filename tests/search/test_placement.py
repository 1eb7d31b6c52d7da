"""Step-time model and placements of trials: probes first, then the fastest efficient placement."""

import itertools
from dataclasses import replace

import pytest

from raybench.search.factorisation import Factors, with_placement
from raybench.search.placement import Placer, StepTime
from raybench.spec.run import Placement, RunSpec

PLACEMENTS = [
    Placement(framework, workers, batch)
    for framework in ("torch", "tensorflow")
    for workers in (1, 2, 4)
    for batch in (16, 32, 64, 128)
]


def spec(placement: Placement) -> RunSpec:
    return with_placement(RunSpec(), placement)


def group(placement: Placement) -> tuple[str, int]:
    return placement.framework, placement.num_workers


def step_s(place: Placement) -> float:
    """One worker takes 1 + n / 16 ms; each more 0.1 ms; TensorFlow twice that."""
    slow = 2.0 if place.framework == "tensorflow" else 1.0
    compute = 1 + place.batch_size_per_worker / 16
    return slow * (compute + 0.1 * (place.num_workers - 1)) / 1000


def measure(
    placer: Placer, trial: str, place: Placement, steps: int = 50, *, slower: float = 1.0
) -> None:
    samples = steps * place.num_workers * place.batch_size_per_worker
    seconds = steps * step_s(place) * slower
    placer.observe(trial, spec(place), samples=samples, train_s=seconds)


def measured(*, slower: float = 1.0) -> Placer:
    """Return a placer that has measured all placements, with four workers `slower`."""
    placer = Placer(Factors({}, PLACEMENTS))
    for number, place in enumerate(PLACEMENTS):
        measure(placer, str(number), place, slower=slower if place.num_workers == 4 else 1.0)
    return placer


def options(batch: int, placer: Placer) -> list[Placement]:
    return placer.factors.placements_for({"global_batch_size": batch})


def test_a_measured_setup_is_predicted_by_its_own_steps_and_the_others_by_the_model():
    model = StepTime()
    slow = Placement("torch", 1, 64)
    for place in PLACEMENTS:
        seconds = 1000 * step_s(place) * (1.2 if place == slow else 1.0)
        model.observe(place, "adam", steps=1000, seconds=seconds)
    assert model.step_s(slow, "adam") == pytest.approx(1.2 * step_s(slow), rel=0.02)
    beside = Placement("torch", 1, 48)
    assert model.step_s(beside, "adam") == pytest.approx(step_s(beside), rel=0.1)


TORCH = [place for place in PLACEMENTS if place.framework == "torch"]


def probed(placements: list[Placement], number: int, *, slower: float = 1.0) -> list[Placement]:
    """Return the placements of the first trials, with several workers `slower`."""
    placer, chosen = Placer(Factors({}, placements)), []
    for trial in map(str, range(number)):
        chosen.append(placer.choose(trial, "adam", options(64, placer)))
        factor = slower if chosen[-1].num_workers > 1 else 1.0
        measure(placer, trial, chosen[-1], slower=factor)
    return chosen


def test_the_first_trials_measure_every_group_and_two_batches_per_framework():
    chosen = probed(PLACEMENTS, 7)
    # More workers are worth a probe while they may be faster than what is known.
    assert {*map(group, chosen[:2])} == {("tensorflow", 1), ("torch", 1)}
    assert {("torch", 2), ("torch", 4)} <= {*map(group, chosen)}
    assert chosen[-1] == Placement("torch", 4, 16)


def test_more_workers_are_not_probed_if_fewer_rule_them_out():
    assert [place.num_workers for place in probed(TORCH, 4, slower=5.0)] == [1, 2, 1, 1]


def test_a_failed_probe_is_repeated():
    placer = Placer(Factors({}, PLACEMENTS))
    first = placer.choose("a", "adam", options(64, placer))
    assert group(placer.choose("b", "adam", options(64, placer))) != group(first)
    assert group(placer.choose("d", "adam", options(64, placer))) != ("tensorflow", 2)
    measure(placer, "b", Placement("torch", 1, 64))
    assert group(placer.choose("e", "adam", options(64, placer))) != group(first)
    placer.ended("a", spec(first), samples=0, compile_s=0.0)
    assert group(placer.choose("c", "adam", options(64, placer))) == group(first)


@pytest.mark.parametrize(
    ("slower", "taken"),
    [(1.0, Placement("torch", 4, 16)), (1.3, Placement("torch", 2, 32))],
)
def test_the_fastest_placement_is_taken_while_it_is_efficient(slower, taken):
    placer = measured(slower=slower)
    assert placer.choose("a", "adam", options(64, placer)) == taken


def test_a_run_is_converted_to_every_placement_of_its_batch():
    narrow = Placement("torch", 1, 64)
    placer = Placer(Factors({}, PLACEMENTS))
    unmeasured = placer.ratios(spec(narrow)), placer.ratio_to_fastest(spec(narrow))
    assert unmeasured == ({}, 1.0)
    placer = measured()
    measure(placer, str(PLACEMENTS.index(narrow)), narrow)  # the same totals count once
    ratios = placer.ratios(spec(narrow))
    assert set(ratios) == set(options(64, placer))
    assert ratios[narrow] == 1.0
    for place, ratio in ratios.items():
        assert ratio == pytest.approx(step_s(place) / step_s(narrow), rel=0.05), place
    assert placer.ratio_to_fastest(spec(narrow)) == min(ratios.values())
    assert placer.ratio_to_cheapest(spec(narrow)) == pytest.approx(1.0)
    wide = Placement("tensorflow", 4, 16)
    cost = step_s(narrow) / (4 * step_s(wide))
    assert placer.ratio_to_cheapest(spec(wide)) == pytest.approx(cost, rel=0.05)


COSTS = {"adam": 0.2e-3, "lamb": 0.5e-3, "lars": 0.3e-3}


def true_step(workers: int, batch: int, optimizer: str) -> float:
    return 0.4e-3 + 12e-6 * batch + COSTS[optimizer] + 0.6e-3 * (workers - 1)


def test_few_measurements_predict_the_other_batches_and_workers():
    model = StepTime()
    for workers, batch, optimizer in [
        (1, 16, "adam"),
        (1, 256, "adam"),
        (1, 64, "lamb"),
        (1, 64, "lars"),
        (2, 32, "adam"),
        (4, 16, "adam"),
    ]:
        seconds = 100 * true_step(workers, batch, optimizer)
        model.observe(Placement("torch", workers, batch), optimizer, steps=100, seconds=seconds)
    for workers, batch, optimizer in itertools.product((1, 2, 4), (16, 64, 512), COSTS):
        predicted = model.step_s(Placement("torch", workers, batch), optimizer)
        assert predicted == pytest.approx(true_step(workers, batch, optimizer), rel=0.1)


def lanes(
    places: list[Placement],
    times: dict[Placement, float],
    *,
    compile_s: float = 10.0,
    number: int = 6,
) -> tuple[Placer, list[Placement]]:
    """Return a placer after `number` trials of 100 steps, and their placements."""
    placer, placements = Placer(Factors({}, places)), []
    for trial in map(str, range(number)):
        place = placer.choose(trial, "adam", options(64, placer))
        placer.observe(trial, spec(place), samples=6400, train_s=100 * times[place])
        taken_s = compile_s if place.compile != "none" else 0.0
        placer.ended(trial, spec(place), samples=6400, compile_s=taken_s)
        placements.append(place)
    return placer, placements


def test_the_faster_model_of_gpu_is_found_by_one_trial_on_each():
    kinds = ("A100", "H100")
    places = [replace(Placement("torch", 1, 64), accelerator_type=kind) for kind in kinds]
    placer, placements = lanes(places, dict(zip(places, (2e-3, 1e-3), strict=True)))
    assert {place.accelerator_type for place in placements[:2]} == set(kinds)
    assert placements[2:] == [places[1]] * 4
    assert placer.ratios(spec(places[0])) == {places[0]: 1.0, places[1]: pytest.approx(0.5)}


COMPILED = replace(Placement("torch", 1, 64), compile="default")


@pytest.mark.parametrize(("compile_s", "is_taken"), [(200.0, False), (20.0, True)])
def test_compilation_is_used_if_a_trial_amortizes_it(compile_s, is_taken):
    plain = Placement("torch", 1, 64)
    times = {plain: 2.0, COMPILED: 1.0}
    placer, placements = lanes([plain, COMPILED], times, compile_s=compile_s)
    assert [place.compile for place in placements[:2]] == ["none", "default"]
    assert {place.compile for place in placements[2:]} == {"default" if is_taken else "none"}
    assert placer.ratio_to_fastest(spec(plain)) < 1, "the race is told which is faster all the same"


def test_compilation_waits_until_the_study_can_amortize_it():
    """A tenth of the training time is spent on compiling. The first compilation is assumed to take
    20 s, the second as long as the first. Where nothing else can run, none waits."""
    passes = replace(COMPILED, batch_size_per_worker=32, accumulate=2)
    places = [Placement("torch", 1, 64), COMPILED, passes]
    times = {places[0]: 0.4, COMPILED: 0.39, passes: 0.39}
    _, placements = lanes(places, times, compile_s=3.0, number=9)
    assert placements[:5] == [places[0]] * 5, "a tenth of 200 s"
    assert placements[5:7] == [COMPILED, passes]
    _, placements = lanes(places[1:], times, compile_s=3.0, number=2)
    assert placements == [COMPILED, passes]


@pytest.mark.parametrize("times", [2.0, 1.05])
def test_two_slow_settings_rule_out_their_combination(times):
    """A step takes `times` as long compiled, and as long again in two passes."""
    plain = Placement("torch", 1, 64)
    passes = replace(plain, batch_size_per_worker=32, accumulate=2)
    places = [plain, passes, COMPILED, replace(passes, compile="default")]
    seconds = (5.0, 5 * times, 5 * times, 5 * times**2)
    _, placements = lanes(places, dict(zip(places, seconds, strict=True)))
    assert placements[:3] == places[:3], "few passes first, and what is compiled last"
    assert (places[3] in placements) == (times < 1.25)


@pytest.mark.parametrize(("wait_s", "workers"), [(0.0, 4), (1e-4, 4), (100.0, 2)])
def test_a_trial_waits_for_workers_only_where_it_ends_sooner(wait_s, workers):
    placer = measured()
    placer.wait_s = lambda count: wait_s if count > 2 else 0.0
    assert placer.choose("next", "adam", options(256, placer)).num_workers == workers


def test_probes_do_not_wait_for_workers():
    placer = Placer(Factors({}, TORCH))
    measure(placer, "first", Placement("torch", 1, 64))
    placer.wait_s = lambda count: 0.0 if count < 2 else 5.0
    assert placer.choose("next", "adam", options(64, placer)).num_workers == 1
