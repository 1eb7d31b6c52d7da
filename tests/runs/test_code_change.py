"""Files of the user's code, and studies that are not resumed with changed code unless requested."""

from pathlib import Path

import pytest

import raybench
from raybench.results.records import read_records
from raybench.results.store import CODE, STUDY_FILE, Store
from raybench.results.trials import trial_table
from raybench.runs.code_change import Versions, code_versions, digests_of, version_of
from raybench.spec.errors import ErrorCode
from tests.factories import record
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(**files: str) -> None:
    for name, text in files.items():
        path = Path(name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_files_of_a_loop_include_local_imports():
    write(
        loop="import torch, helper\nfrom pack.deep import one\ndef train(run):\n    import late",
        helper="from plain import inner",
        late="",
        unused="",
        pack__deep="from . import near\nfrom ..pack import far\nfrom .. import nothing",
        pack__near="",
        pack__far="import helper  # circular",
        plain__inner="",
    )
    Path("pack/__init__.py").touch()
    before = digests_of("loop.py:train")
    names = {"loop", "helper", "late", "pack/__init__", "pack/deep", "pack/near", "pack/far"}
    assert set(before) == {f"{name}.py" for name in names | {"plain/inner"}}
    write(late="# a comment is a change")
    after = digests_of("loop.py:train")
    assert [name for name in after if after[name] != before[name]] == ["late.py"]
    assert version_of(after) != version_of(before)


def test_files_of_a_class_and_of_a_module_in_a_package():
    write(my_model="import blocks", blocks="", pack__loop="from pack import steps", pack__steps="")
    Path("pack/__init__.py").touch()
    assert set(digests_of("my_model:MyModel")) == {"my_model.py", "blocks.py"}
    files = {f"pack/{name}.py" for name in ("__init__", "loop", "steps")}
    assert set(digests_of("pack/loop.py:train")) == files


def test_files_of_a_command_are_its_arguments_and_their_imports():
    write(train="import helper", helper="", pack__main="", broken="print 'an older Python'")
    Path("small.yaml").touch()
    Path("run.sh").touch()
    command = "$ python train.py --config=small.yaml --lr {learning_rate} broken.py no_file.py"
    assert set(digests_of(command)) == {"train.py", "helper.py", "small.yaml", "broken.py"}
    assert set(digests_of("$ ./run.sh {seed}")) == {"run.sh"}
    assert set(digests_of("$ python -m pack.main")) == {"pack/main.py"}
    assert digests_of("$ /bin/sh -c 'exit 0'") == {}
    Path("log.txt").touch()
    Path("best.pt").touch()
    written = f"$ python train.py --out log.txt --save=best.pt --note {'x' * 400}"
    assert set(digests_of(written)) == {"train.py", "helper.py"}, "output files are not code"
    write(deep="from .......................... import above")
    assert set(digests_of("$ python deep.py")) == {"deep.py"}


@pytest.mark.parametrize("workload", ["mnist_small", "torchvision:resnet18", "gone.py:train"])
def test_library_workloads_have_no_user_files(workload):
    assert digests_of(workload) == {}
    assert version_of({}) is None


def versions(*, is_kept: bool = False) -> Versions:
    return code_versions({"loop.py:train"}, "out", Path("out"), is_kept=is_kept)


def run_with(known: Versions, *names: str) -> None:
    """Write the study file and the records of a session that ran these trials."""
    with Store(Path("out"), versions=known) as store:
        store.write_yaml(STUDY_FILE, {CODE: store.versions})
        for name in names:
            store.append(record(name).line())


def test_files_of_raybench_are_not_the_users(monkeypatch):
    monkeypatch.chdir(Path(raybench.__file__).parents[1])
    assert digests_of("raybench.models.pictures:Pictures") == {}


def test_a_study_resumes_only_with_unchanged_code():
    write(loop="import helper", helper="RATE = 1")
    first = versions()
    run_with(first, "0000", "0001")
    assert versions() == first
    write(helper="RATE = 2")
    with refused(ErrorCode.STUDY_CHANGED, "out", "helper.py", "0000", "0001", "--keep-code"):
        versions()
    recorded = versions(is_kept=True)
    (old,), (*_, new) = first, recorded
    assert list(recorded) == [old, new]
    run_with(recorded, "0002")
    assert versions() == recorded, "an accepted change is remembered"
    write(helper="RATE = 1")
    assert list(versions()) == list(reversed(recorded)), "the current version is the last"
    runs = read_records(Path("out")).runs
    assert [runs[name].code for name in ("0000", "0001", "0002")] == [old, old, new]
    assert trial_table(runs.values(), {})["code"].nunique() == 2


def test_a_study_without_runs_or_of_an_earlier_version_resumes():
    write(loop="")
    run_with(versions())
    write(loop="# mended")
    assert len(versions()) == 2
    run_with({}, "0000")  # records without a code version
    assert versions()
