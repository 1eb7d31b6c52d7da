"""`raybench diagnose` on made-up workers."""

import os
import signal
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

import raybench as package
from raybench.cluster.layout import Capacity, Node
from raybench.commands import cli
from raybench.runs import diagnose as body
from raybench.runs import train
from raybench.spec.documents import read_mapping
from raybench.spec.run import RunSpec
from raybench.stats.record import RunOutcome
from tests.factories import evaluation
from tests.fake_client import use_clients, use_session

SPEC = "num_workers: 2\nbatch_size_per_worker: 32\ndataset: {name: digits, image_size: 28}\n"
SPEC += "objective: {target: 0.95}\n"
FOUR_CORES = Capacity((Node(4, 0),), 0.0)


class Workers:
    """Train for the seconds of a formula; `seen` are the runs in order."""

    def __init__(self) -> None:
        self.seen = []
        self.compute, self.exchange, self.reading, self.noise = 0.001, 0.2, 0.0, [1.0]
        self.failure = None
        self.fails = lambda spec: True
        self.on_run = lambda name: None

    def step_s(self, spec: RunSpec) -> float:
        noise = self.noise[len(self.seen) % len(self.noise)]
        worked = 0.002 + self.compute * spec.batch_size_per_worker
        exchange = self.exchange if spec.exchange_gradients and spec.num_workers > 1 else 0.0
        reads = self.reading if spec.dataset.name != "synthetic" else 0.0
        return (worked + exchange + reads) * noise

    def train(self, name: str, spec: RunSpec) -> Generator[RunOutcome, None, None]:
        self.seen.append((name, spec))
        self.on_run(name)
        step, eval_interval = self.step_s(spec), spec.eval_every_samples
        outcome = RunOutcome(num_parameters=1000, workers_per_node=(1, 1))
        if self.failure is not None and self.fails(spec):
            yield replace(outcome, is_over=True, failure=self.failure, message="no room.")
        intervals = round(spec.epochs * self.epoch(spec) / eval_interval)
        for index in range(intervals):
            samples = (index + 1) * eval_interval
            is_last = index == intervals - 1
            point = evaluation(
                step * (samples / spec.global_batch_size + 5.0),  # the slow first must not count
                index=index,
                epoch=samples / self.epoch(spec),
                samples=samples,
                stop="epochs" if is_last else None,
            )
            yield replace(outcome, evaluation=point, is_over=is_last)

    @staticmethod
    def epoch(spec: RunSpec) -> int:
        num_samples = 1257 if spec.dataset.name == "digits" else spec.dataset.num_samples
        return num_samples * spec.dataset.repeat


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workers:
    made_up = Workers()

    use_session(monkeypatch, body, lambda: FOUR_CORES)
    monkeypatch.setattr(train, "local_capacity", lambda: FOUR_CORES)
    use_clients(monkeypatch, made_up.train)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return made_up


def run(*arguments: str) -> int:
    return cli.main(["diagnose", "spec.yaml", "--out", "out", *arguments])


def test_probes_verdict_and_results_folder(workers, capsys):
    assert run() == cli.DONE
    printed = capsys.readouterr().out
    assert "Communication-bound: 85 %" in printed
    assert "by 2 workers on 2 hosts" in printed
    assert "try num_workers: 1" in printed
    diagnosis = read_mapping(Path("out/diagnosis.yaml"))
    assert diagnosis["verdict"] == "communication"
    assert diagnosis["sentence"] in printed
    assert diagnosis["shares"]["communication"]["value"] == pytest.approx(0.2 / 0.234, rel=0.1)
    assert len(diagnosis["probes"]["as_it_is"]) == 4
    assert diagnosis["bytes_exchanged_per_step"] == 4000
    results = package.load("out")
    assert set(results.trials["role"]) == {"scaling"}
    assert len(results.trials) == 6 * 5  # probes, each in four rounds behind a pilot
    assert Path("out/trials.csv").is_file()
    content = read_mapping(Path("out/study.yaml"))
    assert content["versions"]["python"]
    assert content["machine"]["cores"]
    assert content["study"]["diagnosis"]["num_workers"] == 2
    assert cli.main(["report", "out"]) == cli.DONE
    assert "fastest" not in capsys.readouterr().out.lower(), "probes are never ranked"
    assert not Path("out/best.yaml").exists()
    specs = {name.rpartition("-")[0]: spec for name, spec in workers.seen}
    changed = {
        name: (spec.exchange_gradients, spec.dataset.name, spec.batch_size_per_worker)
        for name, spec in specs.items()
    }
    assert changed == {
        "as_it_is": (True, "digits", 32),
        "no_exchange": (False, "digits", 32),
        "in_memory": (True, "synthetic", 32),
        "alone": (False, "synthetic", 32),
        "other_batch": (False, "synthetic", 8),
        "other_exchange": (True, "synthetic", 8),
    }
    assert specs["in_memory"].dataset.shape == [28, 28, 1]
    assert {spec.dataset.num_classes for spec in specs.values()} == {10}
    assert {spec.checkpoint_every_s for spec in specs.values()} == {0.0}
    assert {spec.num_workers for spec in specs.values()} == {2}


def test_more_rounds_if_the_noise_is_large(workers, capsys):
    workers.compute, workers.exchange = 0.001, 0.034
    workers.noise = [1.0, 1.6, 0.6, 1.3, 0.5, 1.5, 0.7]
    assert run("--repeats", "3") == cli.DONE
    rounds = {name.rpartition("-")[2] for name, _ in workers.seen}
    assert rounds == {"pilot", *map(str, range(6))}
    assert "6 rounds" in capsys.readouterr().out
    assert read_mapping(Path("out/diagnosis.yaml"))["verdict"] == "not sure"


def test_one_worker_has_no_exchange_to_leave_out(workers, capsys):
    workers.reading = 1.0
    assert run("--set", "num_workers=1") == cli.DONE
    names = {name.rpartition("-")[0] for name, _ in workers.seen}
    assert names == {"as_it_is", "in_memory", "other_batch"}
    assert all(spec.exchange_gradients for _, spec in workers.seen), "there is nothing to leave out"
    assert "Input-bound: 97 %" in capsys.readouterr().out


def test_a_failed_probe_ends_the_diagnosis_with_its_cause(workers, capsys):
    workers.failure = "oom"
    assert run() == cli.FAILED
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert all(name in error for name in ("as_it_is-pilot", "oom", "no room.\n"))


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_keeps_whole_rounds_and_the_same_command_measures_again(workers, capsys):
    workers.on_run = lambda name: interrupt()
    assert run() == cli.INTERRUPTED
    assert not Path("out/diagnosis.yaml").exists(), "no round is whole"
    workers.on_run = lambda name: interrupt() if name.endswith("-3") else None
    assert run() == cli.INTERRUPTED
    assert "Communication-bound" in capsys.readouterr().out
    assert len(read_mapping(Path("out/diagnosis.yaml"))["probes"]["alone"]) >= 3
    workers.on_run = lambda name: None
    assert run() == cli.DONE
    assert len(package.load("out").trials) == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", "2"), "'repeats': "),
        (("--seconds", "0"), "'seconds': "),
        (("--set", "num_worker=2"), "'num_workers'"),
        (("--set", "exchange_gradients=false"), "exchange_gradients: false: "),
        (
            ("--set", "strategy=single_process", "--set", "framework=tensorflow"),
            "strategy: single_process: ",
        ),
        (("--out", "other"), "--out"),
    ],
)
def test_invalid_options_are_refused_on_one_line(workers, arguments, message, capsys):
    Path("other").mkdir()
    Path("other/study.yaml").write_text("study: {objective: {kind: best_at_budget}}\n")
    Path("other/records.jsonl").write_text("{}\n")
    assert run(*arguments) == cli.WRONG_INPUT
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert workers.seen == []


def test_a_dry_run_names_the_probes(workers, capsys):
    assert run("--dry-run") == cli.DONE
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "alone: " in line]
    assert all(value in line for value in ("synthetic", "batch 32"))
    assert workers.seen == []
    assert not Path("out").exists()


def read_spec_file(name: str) -> RunSpec:
    return RunSpec.model_validate(read_mapping(Path(name))).without_defaults()


class Faster(Workers):
    """Micro-batches of half the size and compilation are faster, two workers are not."""

    def step_s(self, spec: RunSpec) -> float:
        micro = {32: 1.0, 16: 0.5}.get(spec.batch_size_per_worker, 0.8)
        compiled = {"default": 0.5}.get(spec.compile, 1.0)
        return 0.1 * micro * compiled * spec.num_workers * (2 if spec.framework != "torch" else 1)


@pytest.fixture
def faster(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Faster:
    made_up = Faster()
    use_clients(monkeypatch, made_up.train)
    return made_up


def fastest(*arguments: str) -> int:
    return run("--fastest", "--set", "num_workers=1", *arguments)


def test_the_fastest_settings_are_found_one_by_one_and_written(faster, capsys):
    assert fastest() == cli.DONE
    printed = capsys.readouterr().out
    gains = ("x 2.00 micro-batch 16x2", "x 2.00 compile default", " x 4.00")
    assert all(gain in printed for gain in gains)
    written = read_spec_file("out/fastest.yaml")
    assert (written.batch_size_per_worker, written.accumulate, written.compile) == (
        16,
        2,
        "default",
    )
    assert written.model_copy(
        update={"batch_size_per_worker": 32, "accumulate": 1, "compile": "none"}
    ) == read_spec_file("spec.yaml").model_copy(
        update={"num_workers": 1, "objective": written.objective}
    )
    diagnosis = read_mapping(Path("out/diagnosis.yaml"))
    assert diagnosis["sentence"] in printed
    assert {axis: settings["chosen"] for axis, settings in diagnosis["axes"].items()} == {
        "framework": "torch",
        "workers": "1x32",
        "micro-batch": "16x2",
        "compile": "default",
    }
    assert list(diagnosis["left_out"]) == ["prefetch"]
    assert diagnosis["probes"] == len(faster.seen) < 80
    assert {spec.global_batch_size for _, spec in faster.seen} == {32}
    # The initial placement is measured in every round.
    rounds = [name for name, _ in faster.seen if name.startswith("micro-batch") and name[-1] == "1"]
    assert "micro-batch-32x1-1" in rounds


def test_a_failed_alternative_is_reported_and_left_out(faster, capsys):
    faster.failure, faster.fails = "oom", lambda spec: spec.batch_size_per_worker == 16
    assert fastest() == cli.DONE
    assert "micro-batch 16x2: left out, oom" in capsys.readouterr().out
    assert read_spec_file("out/fastest.yaml").batch_size_per_worker == 8


def test_an_interrupt_keeps_the_axes_that_were_measured(faster, capsys):
    faster.on_run = lambda name: interrupt() if name.startswith("compile") else None
    assert fastest() == cli.INTERRUPTED
    assert "x 2.00 micro-batch 16x2." in capsys.readouterr().out
    written = read_spec_file("out/fastest.yaml")
    assert (written.batch_size_per_worker, written.compile) == (16, "none")


@pytest.mark.all
def test_a_run_without_alternatives_is_refused(faster, capsys):
    settings = "batch_size_per_worker=33", "optimizer=keras:Adam", "strategy=single_process"
    arguments = [
        word for setting in ("framework=tensorflow", *settings) for word in ("--set", setting)
    ]
    assert fastest(*arguments) == cli.WRONG_INPUT
    assert "--fastest" in capsys.readouterr().err
    assert [name for name, _ in faster.seen] == ["pilot"], "it tells whether batches matter"


def test_the_best_configuration_of_a_study_is_diagnosed(faster):
    Path("study").mkdir()
    Path("study/best.yaml").write_text(SPEC)
    assert cli.main(["diagnose", "study", "--fastest", "--dry-run"]) == cli.DONE
