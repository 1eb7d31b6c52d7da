"""`raybench scale` without Ray: invalid arguments, dry runs, resuming, files, and the order of the
runs."""

from collections.abc import Generator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import raybench
from raybench.cluster.layout import Capacity, Node, lay_out, workers_per_node
from raybench.cluster.signals import Interrupt
from raybench.commands import cli
from raybench.report.answer import summary_of
from raybench.report.study import load
from raybench.results.records import read_records
from raybench.results.store import Store
from raybench.runs import frame
from raybench.runs import scale as body
from raybench.runs.lifecycle import FirstRuns, SingleRun
from raybench.runs.options import ScaleOptions
from raybench.runs.scale import first_runs_of, run_order, run_study
from raybench.runs.wait_watch import Deadline
from raybench.scaling.fits import fit_study
from raybench.spec.documents import read_mapping, to_yaml
from raybench.spec.errors import ErrorCode, StudyError
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy, study_cells
from raybench.stats.record import RunOutcome
from tests.factories import outcome, record
from tests.fake_client import use_clients, use_session
from tests.runs.made_up import point, run_of, study_of, write
from tests.search.stage import FakeSavedRuns
from tests.test_json import run_json

pytestmark = pytest.mark.usefixtures("without_pollux")

GOOD = "base: {epochs: 3}\nnum_workers: [1, 2]\nbatch_sizes: [64]\nrepeats: 2\n"
TWO_CORES = Capacity((Node(2, 0),), 0.0)


@pytest.fixture(autouse=True)
def _no_ray(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "local_capacity", lambda: TWO_CORES)


@pytest.fixture
def made_up_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ScalingStudy]:
    """Fake the runs; return the list of studies that were run."""
    studies = []

    def run(study: ScalingStudy, single_run: Any, progress: Any) -> None:
        studies.append(study)
        store = single_run.store
        recorded = read_records(store.folder).runs
        runs, curves = run_of(study)
        for name in runs.keys() - recorded.keys():
            nodes = lay_out(runs[name].spec.resources, body.local_capacity().nodes)
            ended = replace(runs[name], workers_per_node=list(workers_per_node(nodes or ())))
            for at in curves[name]:
                store.append(at.line(name))
            store.append(ended.line())

    use_session(monkeypatch, body, lambda: body.local_capacity())
    monkeypatch.setattr(body, "run_study", run)
    return studies


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip tables and page, which are slow and not used by most tests."""
    monkeypatch.setattr(body.ScalingReport, "write", lambda report, files: [])
    monkeypatch.setattr(frame, "try_page", lambda *arguments: [])


def study_file(text: str = GOOD) -> str:
    Path("my.yaml").write_text(text)
    return "my.yaml"


def refusal(capsys: Any, *arguments: str) -> tuple[str, str]:
    """Return the code and the message of the error that ends `scale`."""
    capsys.readouterr()
    error = run_json(capsys, "scale", *arguments, code=cli.WRONG_INPUT)["error"]
    return error["code"], error["message"]


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        (["nowhere"], ErrorCode.UNKNOWN_NAME, ["nowhere", "bottleneck_probe"]),
        (["nowhere.yaml"], ErrorCode.NOT_FOUND, ["nowhere.yaml"]),
        (["my.yaml", "--quick"], ErrorCode.UNSUPPORTED, ["--quick"]),
        (["my.yaml", "--set", "num_workers=[1, 3]"], ErrorCode.INVALID_VALUE, ["3"]),
        (["my.yaml", "--set", "num_workers=4"], ErrorCode.NO_ROOM, ["num_workers", "4"]),
        (["my.yaml", "--set", "optimizer=adagrad"], ErrorCode.UNKNOWN_NAME, ["'optimizer'"]),
        (["my.yaml", "--seed", "-1"], ErrorCode.INVALID_VALUE, ["'seed'"]),
        (["my.yaml", "--workload", "mnist_smal"], ErrorCode.UNKNOWN_NAME, ["'mnist_small'"]),
        (["my.yaml", "--predict", "8,x"], ErrorCode.INVALID_VALUE, ["8,x"]),
        (["my.yaml", "--until", "10%"], ErrorCode.MISSING, ["--until", "--predict"]),
        (["my.yaml", "--until", "ten"], ErrorCode.INVALID_VALUE, ["--until", "ten"]),
        (["my.yaml", "--address", "host:port"], ErrorCode.INVALID_VALUE, ["host:port"]),
        (["my.yaml", "--out", "my.yaml"], ErrorCode.NOT_WRITABLE, ["my.yaml"]),
        (
            ["my.yaml", "--set", "axes.objective.metric=[accuracy, loss]"],
            ErrorCode.CONFLICT,
            ["accuracy", "loss"],
        ),
        (["my.yaml", "--time-budget", "-5"], ErrorCode.INVALID_VALUE, ["-5"]),
    ],
)
def test_invalid_arguments_are_refused_before_ray_starts(capsys, arguments, code, names):
    study_file()
    error_code, message = refusal(capsys, *arguments)
    assert error_code == code
    assert all(name in message for name in names), message


def test_a_dry_run_lists_the_cells_and_writes_nothing(capsys, tmp_path):
    study_file()
    assert cli.main(["scale", "my.yaml", "--dry-run"]) == cli.DONE
    printed = capsys.readouterr().out
    for value in ("0000", "torch 1x64 adam 0.001", "3 cells", "2 repeats", "6 runs", "results/my"):
        assert value in printed
    assert [path.name for path in tmp_path.iterdir()] == ["my.yaml"]


def test_a_command_that_ignores_what_the_cells_vary_is_reported(capsys):
    command = "python train.py --lr {learning_rate}"
    assert cli.main(["scale", "--dry-run", "--command", command]) == cli.DONE
    printed = " ".join(capsys.readouterr().out.split())
    for key in ("num_workers", "batch_size_per_worker", "seed"):
        assert f"the command has no {{{key}}}" in printed
    command += " -n {num_workers} -b {global_batch_size} -s {seed}"
    assert cli.main(["scale", "--dry-run", "--command", command]) == cli.DONE
    assert "the command has no" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cpus", "expected"), [(1, [1]), (7, [1, 2, 4]), (256, [1, 2, 4, 8, 16, 32, 64])]
)
def test_default_worker_counts_are_powers_of_two_that_fit_and_divide(cpus, expected):
    capacity = Capacity((Node(cpus, 0),), 0.0)
    study = body.with_room(study_of(num_workers=None), capacity, "test")
    assert study.num_workers == expected


@pytest.mark.parametrize("name", ["mnist_data_parallel", "batch_size_vs_workers"])
def test_a_published_study_runs_the_cells_with_room_and_resumes(name, tmp_path):
    messages = []
    chosen = body.chosen_study(ScaleOptions(study=name))
    study = body.with_room(chosen.study, TWO_CORES, name, messages.append)
    assert study.counts == [1, 2]
    assert len(messages) == 1
    file = tmp_path / "study.yaml"
    file.write_text(to_yaml({body.SCALING: study.document()}))
    assert body._continued(chosen.study, str(tmp_path), file, is_named=True) == study


def test_a_study_is_run_saved_printed_and_reported(capsys, made_up_runs, one_picture):
    assert cli.main(["scale", study_file(), "--predict", "4"]) == cli.DONE
    printed = capsys.readouterr().out
    for words in (
        "Weak scaling",
        "Strong scaling",
        "Leave-one-out error",
        "~ beyond",
        "report.html",
    ):
        assert words in printed
    folder = Path("results/my")
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        *("study.yaml", "records.jsonl", "trials.csv", "curves.csv", "scaling.csv"),
        *("scaling_runs.csv", "predictions.csv", "report.html"),
    }
    results = raybench.load(folder)
    assert len(results.scaling) == 4
    assert results.scaling["speedup"].tolist() == pytest.approx([1, 1, 2, 2])
    assert set(results.trials["phase"]) == {"scaling"}
    content = read_mapping(folder / "study.yaml")
    assert content["predict"] == "4"
    assert content["scaling_study"]["num_workers"] == [1, 2]
    assert {"command", "versions", "machine", "cluster"} <= set(content)
    for name in ("scaling.csv", "report.html", "predictions.csv"):
        (folder / name).unlink()
    assert cli.main(["report", "results/my"]) == cli.DONE
    reported = capsys.readouterr().out
    assert reported.partition("Weak scaling")[2] == printed.partition("Weak scaling")[2]
    assert (folder / "scaling.csv").is_file()


def test_the_same_command_resumes_with_its_worker_counts_and_may_add_repeats(
    monkeypatch, made_up_runs, no_pictures
):
    study_file("base: {epochs: 3}\n")
    assert cli.main(["scale", "my.yaml"]) == cli.DONE
    monkeypatch.setattr(body, "local_capacity", lambda: Capacity((Node(8, 0),), 0.0))
    assert cli.main(["scale", "my.yaml", "--set", "repeats=4"]) == cli.DONE
    assert [(study.num_workers, study.repeats) for study in made_up_runs] == [
        ([1, 2], 3),
        ([1, 2], 4),
    ]
    content = read_mapping(Path("results/my/study.yaml"))
    assert content["scaling_study"]["repeats"] == 4
    assert len(content["continued"]) == 1


def test_another_study_in_the_folder_is_refused(capsys, made_up_runs, no_pictures):
    cli.main(["scale", study_file()])
    code, message = refusal(capsys, "my.yaml", "--set", "epochs=4")
    assert code == ErrorCode.STUDY_CHANGED
    assert "(base.epochs was 3.0, is 4.0)" in message
    Path("results/my/study.yaml").write_text("study: {objective: {kind: x, target: 0.9}}\n")
    assert refusal(capsys, "my.yaml")[0] == ErrorCode.STUDY_CHANGED


def test_an_interrupted_study_prints_its_results_and_how_to_resume(
    capsys, monkeypatch, made_up_runs, no_pictures
):
    run = body.run_study

    def interrupted(study: ScalingStudy, single_run: Any, progress: Any) -> None:
        run(study, single_run, progress)
        single_run.deadline._interrupt.is_set = True

    monkeypatch.setattr(body, "run_study", interrupted)
    assert cli.main(["scale", study_file()]) == cli.INTERRUPTED
    printed = capsys.readouterr().out
    assert "Weak scaling" in printed


def test_a_study_whose_runs_all_failed_exits_with_an_error(
    capsys, monkeypatch, made_up_runs, no_pictures
):
    def fail(study: ScalingStudy, single_run: Any, progress: Any) -> None:
        runs, _ = run_of(study, state="failed", failure="oom", stop=None, message="too large")
        for ended in runs.values():
            single_run.store.append(ended.line())

    monkeypatch.setattr(body, "run_study", fail)
    assert cli.main(["scale", study_file()]) == cli.FAILED
    printed = capsys.readouterr().out
    assert all(value in printed for value in ("2 runs", "mnist_small", "1 x 64", "oom"))


UNTIL = ("--predict", "8,16", "--set", "batch_sizes=[16,64]")


def note_of_until(capsys: Any, *arguments: str) -> str:
    """Run the study with `--until` and --json; return the note about the reached precision."""
    notes = run_json(capsys, "scale", study_file(), *UNTIL, *arguments)["notes"]
    (note,) = [note for note in notes if "measured" in note]
    return str(note)


@pytest.mark.usefixtures("no_pictures")
def test_cells_are_added_until_predictions_are_precise_enough(capsys, made_up_runs, monkeypatch):
    monkeypatch.setattr(body, "local_capacity", lambda: Capacity((Node(2, 0),) * 8, 0.0))
    note = note_of_until(capsys, "--until", "20%")
    results = load("results/my")
    number = len(results.scaling_study.more)
    assert f"±20%, {number} " in note
    assert [len(study.more) for study in made_up_runs] == list(range(number + 1)), (
        "one cell per round"
    )
    fitted = fit_study(results, predict="8,16")
    assert all(
        prediction.spread <= 0.2 for fit in fitted for prediction in fit.model.predict(fit.asked)
    )
    assert len(results.runs) == 2 * len(study_cells(results.scaling_study))
    worker_counts = [run.spec.num_workers for run in results.runs.values()]
    assert number > 0
    assert 2 < max(worker_counts) < 16
    assert note_of_until(capsys, "--until", "20%") == note, "a second call measures nothing"
    assert len(load("results/my").runs) == len(results.runs)


@pytest.mark.usefixtures("no_pictures", "made_up_runs")
def test_no_useful_cell_with_room_is_reported(capsys):
    note = note_of_until(capsys, "--until", "1%")
    assert "16 workers on 8 nodes" in note
    assert max(run.spec.num_workers for run in load("results/my").runs.values()) == 2


@pytest.mark.parametrize("exchanges", [[True], [True, False], [False]])
def test_a_slow_worker_is_noted(tmp_path, exchanges):
    """The worker is identified by the step parts of each rank, or by runs without exchange."""
    study = study_of(num_workers=[2], axes={"exchange_gradients": exchanges})
    runs, curves = run_of(study, hosts=["a", "b"], devices=["cpu", "cpu"])
    for name, run in runs.items():
        rank_s = None if run.spec.exchange_gradients else (0.2, 1.0)
        parts = ((0.2, 0.0, 0.0), (0.1, 0.0, 0.1 if rank_s else 5.0))
        curves[name] = [
            replace(point(index, 1000.0), rank_s=rank_s, rank_parts=parts) for index in range(4)
        ]
    caveats = summary_of(load(write(tmp_path / "study", study, runs, curves))).caveats
    (slow,) = [line for line in caveats if "every step waits for it" in line]
    assert "Worker 1 (host b, cpu)" in slow
    assert ("data" in slow) == all(exchanges)


STUDY = study_of(num_workers=[1, 2, 4], batch_sizes=[64, 128], axes={"precision": ["fp32", "bf16"]})
CELLS = study_cells(STUDY)


def orders(repeats: int, *, seed: int = 0) -> list[tuple[str, ...]]:
    names = [(cell.name, number) for cell, number in run_order(CELLS, repeats, seed=seed)]
    assert [number for _, number in names] == sorted(number for _, number in names)
    return [tuple(name for name, number in names if number == repeat) for repeat in range(repeats)]


def test_every_repeat_shuffles_all_cells():
    for order in orders(5):
        assert sorted(order) == [cell.name for cell in CELLS]
    assert len(set(orders(5))) == 5
    assert orders(3) == orders(3)
    assert orders(3) != orders(3, seed=1)
    assert orders(5)[:3] == orders(3), "more repeats do not change the first ones"


def test_a_worker_group_is_requested_once_per_repeat():
    groups = {cell.name: cell.spec.resources for cell in CELLS}
    first = []
    for order in orders(8):
        row = [group for group, _ in groupby(groups[name] for name in order)]
        assert len(row) == len(set(row)) == 3
        first.append(row[0])
    assert len(set(first)) > 1, "the first group varies"


class Machine:
    """Fake workers that record the runs and interrupt after `stops_after` runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, stops_after: int | None = None) -> None:
        self.ran = []
        self.interrupt, self.stops_after = Interrupt(), stops_after
        self.clients = use_clients(monkeypatch, self.train)

    def train(self, name: str, spec: RunSpec) -> Generator[RunOutcome, None, None]:
        self.ran.append((name, spec))
        if len(self.ran) == self.stops_after:
            self.interrupt.is_set = True
            yield outcome()
        yield outcome(stop="target", time_to_target_s=1.0)

    def run(
        self, folder: Path, study: ScalingStudy, first_runs: FirstRuns | None = None
    ) -> list[int]:
        """Run the remaining runs; return their number as the screen shows it."""
        progress = Mock()
        with Store(folder) as store:
            runs = SingleRun(
                session=Mock(),
                store=store,
                deadline=Deadline(None, interrupt=self.interrupt),
                progress=progress,
                saved=FakeSavedRuns(),
                first_runs=first_runs,
            )
            run_study(study, runs, progress)
        return [call.args[1] for call in progress.begin.call_args_list]


def test_a_study_runs_every_repeat_and_resumes_after_an_interrupt(monkeypatch, tmp_path):
    machine = Machine(monkeypatch, stops_after=5)
    machine.run(tmp_path, STUDY)
    assert len(machine.ran) == 5
    resumed = Machine(monkeypatch)
    assert resumed.run(tmp_path, STUDY) == [len(CELLS) * 2 - 4]
    assert machine.ran[:4] + resumed.ran == [
        (cell.repeat(number)[0], cell.spec.model_copy(update={"seed": number}))
        for cell, number in run_order(CELLS, 2, seed=STUDY.seed)
    ]
    assert Machine(monkeypatch).run(tmp_path, STUDY) == [0]
    with_repeats = Machine(monkeypatch)
    assert with_repeats.run(tmp_path, STUDY.model_copy(update={"repeats": 3})) == [len(CELLS)]
    assert {name[-1] for name, _ in with_repeats.ran} == {"2"}, "only the new repeats run"


def test_lost_runs_are_repeated_and_failed_runs_are_not(monkeypatch, tmp_path):
    study = study_of(scaling="weak", num_workers=[1], repeats=3)
    runs = {
        f"0000-r{number}": replace(
            record(f"0000-r{number}", role="scaling", source="0000", failure=failure),
            spec=study_cells(study)[0].repeat(number)[1],
        )
        for number, failure in enumerate(("worker_lost", "oom"))
    }
    write(tmp_path, study, runs, {name: [] for name in runs})
    machine = Machine(monkeypatch)
    machine.run(tmp_path, study)
    assert [name for name, _ in machine.ran] == ["0000-r0", "0000-r2"]


class BrokenMachine(Machine):
    """Fails every run before it trains, except the runs of worker counts in `able`."""

    able = ()
    failure = "error"

    def train(self, name: str, spec: RunSpec) -> Generator[RunOutcome, None, None]:
        self.ran.append((name, spec))
        if spec.num_workers in self.able:
            yield outcome(stop="target", time_to_target_s=1.0)
        yield RunOutcome(is_over=True, failure=self.failure, message=f"no file {len(self.ran)}.")


def test_a_study_ends_once_all_cells_fail_in_the_same_way(monkeypatch, tmp_path):
    """The same command runs the cells again once the cause is fixed."""
    machine = BrokenMachine(monkeypatch)
    with pytest.raises(StudyError, match=r"runs all failed before training \(no file \d+\)"):
        machine.run(tmp_path, STUDY, first_runs_of(STUDY, {}))
    assert len(machine.ran) == len(CELLS), "the first of two repeats"
    repaired = Machine(monkeypatch)
    repaired.run(tmp_path, STUDY, first_runs_of(STUDY, {}))
    assert len(repaired.ran) == len(CELLS) * 2


@pytest.mark.parametrize(("able", "failure"), [((1,), "error"), ((), "oom")])
def test_a_study_goes_on_if_some_runs_train_or_may_train(able, failure, monkeypatch, tmp_path):
    machine = BrokenMachine(monkeypatch)
    machine.able, machine.failure = able, failure
    machine.run(tmp_path, STUDY, first_runs_of(STUDY, {}))
    assert len(machine.ran) == len(CELLS) * 2
