"""Security: files are never executed, no port is opened, and no secret is written."""

import contextlib
import io
import pickle
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import raybench
from raybench.commands import cli
from raybench.data.dataset import Dataset, Split
from raybench.data.store import open_shared
from raybench.results.store import Store, command, keep_error
from raybench.search.sampling.earlier import load_earlier
from raybench.spec.documents import parse_settings, read_mapping
from raybench.spec.errors import ErrorCode, StudyError, UserError
from raybench.spec.study import build_study, load_content
from raybench.spec.text import redact_text
from tests.refusals import refused

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "tests" / "fixtures" / "digits_study"
SEEDED, _ = build_study(load_content(STUDY / "study.yaml", {}), "study.yaml")
"""A new study like the recorded one."""


class Bomb:
    """Object that touches a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path):
    """A file that exists after the test only if code of a file was run."""
    path = tmp_path / "mark"
    pickle.loads(pickle.dumps(Bomb(path)))
    assert path.exists(), "unpickling touches the file"
    path.unlink()
    yield path
    assert not path.exists(), "code of a file was run"


@pytest.fixture
def folder(tmp_path):
    """A copy of a recorded results folder."""
    return Path(shutil.copytree(STUDY, tmp_path / "study"))


def written(path, text):
    path.write_text(text)
    return path


TAGS = (
    "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [{mark}]]",
    "!!python/object/apply:os.system ['touch {mark}']",
    "!!python/name:os.system ''",
)


@pytest.mark.parametrize("tag", TAGS)
def test_yaml_builds_no_objects(tag, mark, folder):
    with refused(ErrorCode.INVALID_FILE):
        read_mapping(written(folder / "spec.yaml", f"a: {tag.format(mark=mark)}\n"))
    with refused(ErrorCode.INVALID_FILE):
        load_content(folder / "spec.yaml", {})
    with refused(ErrorCode.INVALID_FILE):
        parse_settings([f"price={tag.format(mark=mark)}"])
    study = (folder / "study.yaml").read_text() + f"notes: [{tag.format(mark=mark)}]\n"
    written(folder / "study.yaml", study)
    with refused(ErrorCode.INVALID_FILE):
        raybench.load(folder)


@pytest.mark.usefixtures("one_picture")
def test_files_of_a_results_folder_are_never_unpickled_or_imported(mark, folder, monkeypatch):
    """Every file that a study may have is a pickle; the records name a module in the folder."""
    bomb = pickle.dumps(Bomb(mark))
    num_trials = len(raybench.load(folder).trials)
    for name in ("study.yaml", "records.jsonl"):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(bomb)
        for read in (raybench.load, lambda path: load_earlier(path, SEEDED)):
            with contextlib.suppress(UserError):
                read(folder)
        (folder / name).write_bytes(before)
    for name in (
        *("optuna.log", "trials.csv", "curves.csv", "best.yaml", "study.lock", ".pickle"),
        *("study.lock.owner", "cheapest.yaml", "model.pt", "model.weights.h5", "trials.pkl"),
        *("tuner.pkl", "searcher-state.pkl", "errors/0001.txt"),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(bomb)
    written(folder / "evil.py", f"open({str(mark)!r}, 'w')\n")
    records = (folder / "records.jsonl").read_text()
    (folder / "records.jsonl").write_text(records.replace('"mnist_small"', '"evil:Evil"'))
    assert len(raybench.load(folder).trials) == num_trials
    load_earlier(folder, SEEDED)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    assert cli.main(["report", "."]) == 0


def test_torch_weights_load_no_objects(mark, tmp_path):
    torch = pytest.importorskip("torch")
    from raybench.training.torch.model import load_weights

    model = torch.nn.Linear(1, 1)
    saved = io.BytesIO()
    torch.save(model.state_dict() | {"more": Bomb(mark)}, saved)
    for content in (saved.getvalue(), pickle.dumps(Bomb(mark))):
        with pytest.raises(pickle.UnpicklingError):
            load_weights(model, content)


@pytest.mark.usefixtures("tensorflow_on_one_thread")
def test_keras_weights_load_no_objects(mark, tmp_path):
    keras = pytest.importorskip("keras")
    from raybench.training.tensorflow.model import load_weights

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    touch = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    code = keras.layers.Lambda(eval(f"lambda x: ({touch}, x)[1]", {}), output_shape=(1,))
    saved_model = keras.Sequential([keras.Input((1,)), code, keras.layers.Dense(1)])
    saved_model.save(tmp_path / "whole.keras")
    trusting = keras.saving.load_model(tmp_path / "whole.keras", safe_mode=False)
    trusting(np.zeros((1, 1)))
    mark.unlink()  # loading the complete model runs its code
    for content in ((tmp_path / "whole.keras").read_bytes(), pickle.dumps(Bomb(mark))):
        with pytest.raises((OSError, ValueError)):
            load_weights(model, content)


def test_shared_arrays_hold_no_objects(mark, tmp_path):
    data = tmp_path / "data"
    split = Split(np.zeros((2, 3), np.float32), np.arange(2))
    open_shared(data, lambda: Dataset("x", 2, split, split, split))
    files = sorted(data.glob("*.npy"))
    assert len(files) == 6
    for file in files:
        np.save(file, np.array([Bomb(mark)]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"Object arrays|Python objects"):
        open_shared(data, lambda: pytest.fail("it is there"))


FORBIDDEN = re.compile(
    r"^\s*(?:import|from)\ (?:c?pickle|dill|cloudpickle|joblib|marshal|shelve|jsonpickle|xmlrpc|"
    r"http\.server|socketserver|multiprocessing\.managers)\b(?!\ import\ UnpicklingError)"
    r"|(?<![\w.])(?:eval|exec|compile)\("
    r"|yaml\.(?:unsafe|full)_load|yaml\.load\((?!.*Loader=_Loader\))"
    r"|torch\.load\((?!.*weights_only=True\))|torch\.jit\.load"
    r"|read_pickle|models\.load_model|saving\.load_model|enable_unsafe_deserialization"
    r"|allow_pickle=True|safe_mode=False|shell=True|os\.system"
    r"|\.listen\(|\.bind\(|serve_forever|create_server|start_server|\"0\.0\.0\.0\"",
    re.IGNORECASE | re.MULTILINE,
)
"""Source code that executes data as code, or listens on a port."""
ALLOWED = {
    "arrays.py": {"import pickle"},  # for an unpickler that only builds arrays
    "rendezvous.py": {"create_server"},  # checks for seconds whether hosts reach each other
    "signals.py": {".listen("},  # to signals
    "wait_watch.py": {".listen("},
}


def test_no_source_executes_data_or_listens():
    sources = sorted((ROOT / "raybench").rglob("*.py"))
    assert len(sources) > 50
    for source in sources:
        matches = {match.strip() for match in FORBIDDEN.findall(source.read_text())}
        assert matches == ALLOWED.get(source.name, set()), source


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "yaml.load(text, Loader=yaml.Loader)",
        "np.load(file, allow_pickle=True)",
        "torch.load(file)",
        "sock.bind(('', 0))",
        "eval(text)",
        "subprocess.run(line, shell=True)",
    ],
)
def test_forbidden_sources_are_detected(code):
    assert FORBIDDEN.search(code)


SECRET = "s3cr3t/hunter2+x"
ENVIRONMENT = {
    "HF_TOKEN": SECRET,
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "AWS_ACCESS_KEY_ID": "ABCDEFGHIJ",
    "SSH_PRIVATE_KEY": "-----BEGIN KEY-----\nb3BlbnNzaC1rZXktdjE\n-----END KEY-----",
    "DATABASE_URL": "postgresql://me:from-the-url@host/x",
    "EMPTY_TOKEN": "",
    "SHORT_TOKEN": "abc",
    "RAY_AUTH_MODE": "token",
}


@pytest.mark.parametrize(
    "text",
    [
        f"RuntimeError: 401 for {SECRET}",
        "OSError: https://host/x?access=s3cr3t%2Fhunter2%2Bx refused",
        "InvalidKey: ABCDEFGHIJ of wJalrXUtnFEMI/K7MDENG",
        "key b3BlbnNzaC1rZXktdjE is bad",
        "connection as from-the-url",
        "https://me:other-secret@host/x",
        "https://b.s3.host/k?X-Amz-Credential=other-secret&X-Amz-Signature=other-secret&x=1",
        "https://a.blob.host/k?sv=2024&sig=other-secret",
        "Authorization: Bearer other-secret.other",
        '{"password": "other-secret", "user": "me"}',
        "{'api_key': 'other-secret'}",
        "password: hunter2 was refused",
        "AccountKey=other-secret==;EndpointSuffix=host",
        "found AKIAOTHERSECRETOTHER",
        "hf_othersecretothersecretothersecret",
    ],
)
def test_messages_contain_no_secrets(text):
    shown = redact_text(text, ENVIRONMENT)
    assert "***" in shown
    for value in (SECRET, "hunter2", "other-secret", "OTHERSECRET", "othersecret"):
        assert value not in shown
    for value in ("wJalr", "ABCDEFGHIJ", "b3Blbn", "from-the-url"):
        assert value not in shown
    assert redact_text(shown, ENVIRONMENT) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ValueError: token abc is not in the vocabulary",
        'File "/home/me/model.py", line 3, in build_torch\n    raise ValueError("no")\n',
        "learning_rate=0.01 at https://host:8265/x?y=1",
    ],
)
def test_messages_without_secrets_are_unchanged(text):
    assert redact_text(text, ENVIRONMENT) == text


def test_long_messages_are_redacted_quickly():
    began = time.process_time()
    for part in ("a-", "secret", "://", "token=", "x"):
        redact_text(part * 20_000, ENVIRONMENT)
    assert time.process_time() - began < 20.0


@pytest.fixture
def secret(monkeypatch):
    """A secret in the environment."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return SECRET


def test_records_and_tracebacks_contain_no_secrets(secret, tmp_path):
    trace = f"Traceback:\n  get({secret!r})\nOSError: 401 for {secret}"
    with Store(tmp_path) as store:
        message = keep_error(store, "0001", f"OSError: 401 for {secret}", trace)
        store.append({"kind": "run", "message": message})
        store.append({"kind": "run", "message": f"no traceback: {secret}"})
        store.append({"kind": "run", "message": None})
    written_files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written_files) == 2
    for path in written_files:
        text = path.read_text()
        assert "***" in text
        assert secret not in text
    assert "errors/0001.txt" in (tmp_path / "records.jsonl").read_text()


def test_worker_errors_contain_no_secrets(secret):
    from raybench.cluster.worker import _report

    try:
        raise OSError(f"401 for {secret}")
    except OSError as error:
        crashed = _report(error)
    assert crashed.message == "OSError: 401 for ***"
    assert "OSError: 401 for ***" in crashed.traceback
    assert secret not in crashed.traceback


def test_output_of_ray_tune_is_kept_without_secrets(secret, tmp_path):
    from raybench.runs.wait_watch import quiet

    with quiet(tmp_path / "ray.log"):
        print(f"401 for {secret}")
        print(f"again: {secret}", file=sys.stderr)
        sys.stdout.flush()
    assert (tmp_path / "ray.log").read_text() == "401 for ***\nagain: ***\n"


def test_screen_and_details_contain_no_secrets(secret, capsys):
    def mistaken():
        raise UserError(
            f"--out s3://b: 401 for {secret}", ErrorCode.UNREACHABLE, details=f"OSError: {secret}\n"
        )

    def failed():
        raise StudyError(f"401 for {secret}")

    assert cli.run_command(mistaken) == cli.WRONG_INPUT
    output = capsys.readouterr().err
    details = Path(output.rpartition("The whole traceback: ")[2].strip().rstrip("."))
    assert details.read_text() == "OSError: ***\n"
    details.unlink()
    assert cli.run_command(failed) == cli.FAILED
    output += capsys.readouterr().err
    assert output.count("401 for ***") == 2
    assert secret not in output


def test_the_recorded_command_contains_no_secrets(secret, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tune", "--out", f"s3://b/{secret}", "from-the-url"])
    assert secret not in command()
    assert "from-the-url" not in command()
