"""`raybench scale` up to Ray and behind it: mistakes, dry runs, continuing, what is written."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import raybench
from raybench.cluster.admission import Capacity
from raybench.cluster.layout import Node
from raybench.commands import cli, report, scale
from raybench.report.study import load
from raybench.results.store import Store
from raybench.runs import preflight
from raybench.runs import scale as body
from raybench.runs.options import ScaleOptions
from raybench.spec.documents import read_mapping, to_yaml
from raybench.spec.errors import UserError
from raybench.spec.scaling_study import ScalingStudy
from raybench.training.machine import Seen
from tests.runs.made_up import run_of, study_of, write
from tests.search.made_up import record

GOOD = "base: {epochs: 3}\nnum_workers: [1, 2]\nbatch_sizes: [64]\nrepeats: 2\n"
TWO_CORES = Capacity((Node(2, 0),), 0.0)


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No session is opened, nothing is written beside the repository's files."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("Ray was about to start")

    import ray

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(body, "local_capacity", lambda: TWO_CORES)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def made_up_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ScalingStudy]:
    """Runs are made up; return the studies that were run."""
    ran: list[ScalingStudy] = []

    @contextlib.contextmanager
    def session(*given: object) -> Iterator[Any]:
        yield SimpleNamespace(
            is_local=True,
            capacity=TWO_CORES,
            notes=[],
            scratch=tmp_path / "scratch",
            waiting=dict,
            stop_waiting=None,
        )

    def run(study: ScalingStudy, *, store: Store, **options: Any) -> None:
        ran.append(study)
        runs, curves = run_of(study)
        for name, ended in runs.items():
            for at in curves[name]:
                store.append(at.line(name))
            store.append(ended.line())

    monkeypatch.setattr(body, "live_session", session)
    monkeypatch.setattr(body, "run_study", run)
    return ran


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second; most tests look elsewhere."""
    monkeypatch.setattr(body.ScalingReport, "write", lambda report, files: [])


def test_a_study_takes_the_gpus_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "framework_sees", lambda name: Seen(names=("H100", "H100")))
    gpus = Capacity((Node(16, 2),), 0.0)

    def study(**content: Any) -> ScalingStudy:
        return ScalingStudy.model_validate({"name": "of-gpus", "base": {"epochs": 3}} | content)

    found, (said,) = body.with_gpus_there(study(), gpus)
    assert (found.base.gpus_per_worker, body.with_room(found, gpus, "").num_workers) == (1, [1, 2])
    assert said.endswith("--set base.gpus_per_worker=0 takes cores alone.")
    four = study(num_workers=[1, 4])
    found, (said,) = body.with_gpus_there(four, gpus)
    assert found == four
    assert "fewer than 4 workers" in said
    for asked in (study(base={"gpus_per_worker": 0}), study(axes={"gpus_per_worker": [0, 1]})):
        assert body.with_gpus_there(asked, gpus) == (asked, [])


def study_file(text: str = GOOD) -> str:
    Path("my.yaml").write_text(text)
    return "my.yaml"


def refusal(capsys: Any, *arguments: object) -> str:
    assert scale.main(list(map(str, arguments))) == cli.WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("raybench: ")
    return str(line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["nowhere"], "nowhere: is no file and no named study; named are: "),
        (["my.yaml", "--quick"], "--quick is for the named studies"),
        (["my.yaml", "--set", "num_workers=[1, 3]"], "does not divide by 3 workers"),
        (["my.yaml", "--set", "num_workers=4"], "4 workers of 1 CPU each do not fit"),
        (["my.yaml", "--set", "optimizer=adagrad"], "'optimizer'"),
        (["my.yaml", "--set", "axes.optimizer=[adagrad]"], "'optimizer'"),
        (["my.yaml", "--set", "repeats=0"], "'repeats'"),
        (["my.yaml", "--seed", "-1"], "'seed'"),
        (["my.yaml", "--workload", "mnist_smal"], "did you mean 'mnist_small'?"),
        (["my.yaml", "--predict", "8,x"], "8,x: cannot be read"),
        (["my.yaml", "--address", "host:port"], "is no address"),
        (["my.yaml", "--out", "my.yaml"], "is a file; name a folder"),
        (["my.yaml", "--set", "axes.framework=[torch, jax]"], "'framework'"),
    ],
)
def test_a_mistake_is_a_sentence_before_ray_starts(capsys, arguments, message) -> None:
    study_file()
    assert message in refusal(capsys, *arguments)


def test_a_dry_run_lists_the_cells_and_writes_nothing(capsys, tmp_path) -> None:
    study_file()
    assert scale.main(["my.yaml", "--dry-run"]) == cli.DONE
    printed = capsys.readouterr().out
    assert "0000  torch 1x64 adam 0.001  global batch 64  weak and strong" in printed
    assert "3 cells, 2 repeats: 6 runs, one at a time, in a random order" in printed
    assert "results/my" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["my.yaml"]


def test_axes_are_told_where_cells_are_listed(capsys) -> None:
    study_file(GOOD + "axes: {dataset.repeat: [1, 4], schedule: [cosine, constant]}\n")
    assert scale.main(["my.yaml", "--dry-run"]) == cli.DONE
    printed = capsys.readouterr().out
    assert "torch 1x64 adam 0.001 dataset image_size=28,repeat=4 schedule cosine" in printed


def test_a_metric_alone_leaves_the_rest_of_the_objective_as_it_is() -> None:
    objective = study_of(base={"objective": {"metric": "loss"}}).base.objective
    assert (objective.kind, objective.max_train_seconds) == ("best_at_budget", 600.0)


def test_a_study_has_one_metric(capsys) -> None:
    study_file(GOOD + "axes: {objective.metric: [accuracy, loss]}\n")
    assert "judged by one metric, here by accuracy and loss" in refusal(capsys, "my.yaml")


def test_without_a_study_the_machine_says_how_many_workers(capsys) -> None:
    assert scale.main(["--dry-run"]) == cli.DONE
    printed = capsys.readouterr().out
    assert "torch 2x64" in printed
    assert "torch 4x64" not in printed


@pytest.mark.parametrize(
    ("cpus", "batch", "expected"),
    [(1, 64, [1]), (2, 64, [1, 2]), (7, 64, [1, 2, 4]), (256, 64, [1, 2, 4, 8, 16, 32, 64])],
)
def test_workers_are_doubled_as_long_as_they_fit_and_divide(cpus, batch, expected) -> None:
    study = study_of(num_workers=None, batch_sizes=[batch])
    found = body.with_room(study, Capacity((Node(cpus, 0),), 0.0), "test")
    assert found.num_workers == expected


def test_gpus_that_nobody_counted_are_bounded_by_cores() -> None:
    study = study_of(num_workers=None, base={"gpus_per_worker": 1})
    found = body.with_room(study, Capacity((Node(4, 0),), 0.0, knows_gpus=False), "test")
    assert found.num_workers == [1, 2, 4]


def test_too_many_workers_are_refused() -> None:
    with pytest.raises(UserError, match="4 workers of 1 CPU each do not fit"):
        body.with_room(study_of(num_workers=[1, 4]), TWO_CORES, "test")


@pytest.mark.parametrize("name", ["mnist_data_parallel", "batch_size_vs_workers"])
def test_of_a_published_study_the_cells_that_have_room_run_again_and_go_on(name, tmp_path) -> None:
    said: list[str] = []
    chosen = body.chosen_study(ScaleOptions(study=name))
    found = body.with_room(chosen.study, TWO_CORES, name, said.append)
    assert found.counts == [1, 2]
    assert len(said) == 1
    assert "left out: there is room for 2" in said[0]
    file = tmp_path / "study.yaml"
    file.write_text(to_yaml({body.SCALING: found.document()}))
    assert body._continued(chosen, str(tmp_path), file) == found  # wherever it goes on


def test_a_dotted_axis_is_set_by_its_name() -> None:
    settings = ["axes.dataset.repeat=[2]"]
    found = body.chosen_study(ScaleOptions(study="mnist_data_parallel", settings=settings)).study
    assert found.axes["dataset.repeat"] == [2]


def test_a_study_is_run_written_and_printed(capsys, made_up_runs) -> None:
    assert scale.main([study_file(), "--predict", "4"]) == cli.DONE
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


def test_a_report_says_the_same_again(capsys, made_up_runs) -> None:
    scale.main([study_file(), "--predict", "4"])
    first = capsys.readouterr().out.partition("Weak scaling")[2]
    for name in ("scaling.csv", "report.html", "predictions.csv"):
        Path("results/my", name).unlink()
    assert report.main(["results/my"]) == cli.DONE
    assert capsys.readouterr().out.partition("Weak scaling")[2] == first
    assert Path("results/my/scaling.csv").is_file()


def test_the_same_command_goes_on_and_more_repeats_are_the_same_study(
    capsys, made_up_runs, no_pictures
) -> None:
    study_file()
    assert scale.main(["my.yaml"]) == cli.DONE
    assert scale.main(["my.yaml", "--set", "repeats=3"]) == cli.DONE
    content = read_mapping(Path("results/my/study.yaml"))
    assert content["scaling_study"]["repeats"] == 3
    assert len(content["continued"]) == 1


def test_workers_that_the_machine_has_set_are_kept(monkeypatch, made_up_runs, no_pictures) -> None:
    study_file("base: {epochs: 3}\n")
    assert scale.main(["my.yaml"]) == cli.DONE
    monkeypatch.setattr(body, "local_capacity", lambda: Capacity((Node(8, 0),), 0.0))
    assert scale.main(["my.yaml"]) == cli.DONE
    assert [study.num_workers for study in made_up_runs] == [[1, 2], [1, 2]]


def test_another_study_in_the_folder_is_refused_with_the_difference(
    capsys, made_up_runs, no_pictures
) -> None:
    study_file()
    scale.main(["my.yaml"])
    capsys.readouterr()
    line = refusal(capsys, "my.yaml", "--set", "epochs=4")
    assert "holds another study (base.epochs was 3.0, is 4.0); name another place" in line


def test_a_search_in_the_folder_is_refused(capsys) -> None:
    folder = write(Path("results/my"), study_of(), {}, {})
    (folder / "study.yaml").write_text("study: {objective: {kind: x, target: 0.9}}\n")
    assert "holds no scaling study" in refusal(capsys, study_file())


def test_a_folder_of_a_search_has_no_scaling(tmp_path) -> None:
    with Store(tmp_path / "search") as store:
        store.append(record().line())
        store.write_yaml("study.yaml", {"study": {"objective": {"kind": "x", "target": 0.9}}})
    with pytest.raises(
        UserError, match=r"search: holds no scaling study; python -m raybench.scale"
    ):
        _ = load(tmp_path / "search").scaling


def test_an_interrupted_study_shows_what_there_is_and_says_how_to_go_on(
    capsys, monkeypatch, made_up_runs, no_pictures
) -> None:
    run = body.run_study

    def interrupted(study: ScalingStudy, **options: Any) -> None:
        run(study, **options)
        options["deadline"]._interrupt.is_set = True

    monkeypatch.setattr(body, "run_study", interrupted)
    assert scale.main([study_file()]) == cli.INTERRUPTED
    printed = capsys.readouterr().out
    assert "Weak scaling" in printed
    assert printed.endswith("interrupted: the same command continues.\n")


def test_a_study_of_which_every_run_failed_is_a_failure(capsys, monkeypatch, made_up_runs) -> None:
    def fail(study: ScalingStudy, *, store: Store, **options: Any) -> None:
        runs, _ = run_of(study, state="failed", failure="oom", stop=None, message="too large")
        for ended in runs.values():
            store.append(ended.line())

    monkeypatch.setattr(body, "run_study", fail)
    assert scale.main([study_file()]) == cli.FAILED
    assert "Failed: 2 runs of torch, mnist_small, 1 x 64 (oom)." in capsys.readouterr().out
