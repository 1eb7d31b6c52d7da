"""Bad inputs of every kind, with the code of the error and the names and values it must show."""

import textwrap
from dataclasses import dataclass

from raybench.spec.errors import ErrorCode as Code

STUDY = "objective: {target: 0.9}\nspace:\n  framework: [torch]\n  num_workers: [1]\n"


@dataclass(frozen=True)
class Bad:
    """A mistake: content of the file, arguments, or body of the user's class."""

    name: str
    code: Code
    names: tuple[str, ...]
    """Keys, options, files and values that the sentence shows."""
    text: str | bytes = STUDY
    arguments: tuple[str, ...] = ()
    own: str = ""
    """Body of the user's class `own_net:Net`, which is then workload and dataset."""
    command: str = "tune"


def in_file(name: str, lines: str, code: Code, *names: str) -> Bad:
    """Return a space file with more lines."""
    return Bad(name, code, names, STUDY + lines)


def given(code: Code, names: str, *arguments: str, command: str = "tune") -> Bad:
    """Return arguments for a good space file, or for the default run spec; `names` by blanks."""
    name = f"{command} {' '.join(arguments)}"[:60]
    return Bad(name, code, tuple(names.split()), STUDY, arguments, command=command)


def by_user(name: str, body: str, code: Code, *names: str) -> Bad:
    """Return a class of the user's."""
    return Bad(name, code, names, own=textwrap.dedent(body))


def read(code: str) -> str:
    """Return a training split that reads its samples by `code`."""
    return f"Split(OnDemand(lambda rows: {code}), split(8).labels)"


def data(train: str) -> str:
    """Return the body of a class with its own data and a model."""
    return f"""
def build_torch(self):
    import torch
    return torch.nn.Linear(3, 2)

def load_dataset(self, spec):
    return Dataset("own", 2, train={train}, validation=split(4), test=split(4))
"""


HUGE = "1" + "0" * 12
FILES = [
    Bad("empty", Code.INVALID_FILE, ("space.yaml",), ""),
    Bad("binary", Code.INVALID_FILE, ("UTF-8", "0x80", "line 2"), b"a: 1\n\x80\x81"),
    Bad("two documents", Code.INVALID_FILE, ("line 5",), STUDY + "---\n" + STUDY),
    in_file("a number as a key", "7: 1\n", Code.INVALID_VALUE, "'7'"),
    in_file("classes", "dataset: {name: synthetic, num_classes: 10000000000}\n", Code.NO_ROOM),
    in_file(
        "a crop of all",
        "fixed: {augment: [{random_crop: {padding: 40}}]}\n",
        Code.INVALID_VALUE,
        "28",
    ),
    in_file("a misspelt workload", "workload: minst_small\n", Code.UNKNOWN_NAME, "'mnist_small'"),
    in_file("no such augmentation", "fixed: {augment: [flpi]}\n", Code.INVALID_VALUE, "'flip'"),
    Bad(
        "a target below the baseline",
        Code.INVALID_VALUE,
        ("objective.target", "0.05", "accuracy"),
        STUDY.replace("0.9", "0.05"),
    ),
]
FLAGS = [
    given(Code.INVALID_OPTION, "optimizer=", "--set", "optimizer"),
    given(Code.INVALID_VALUE, "'time_budget' inf", "--time-budget", "inf"),
    given(Code.INVALID_FILE, "--workers", "--workers", "1,,2"),
    given(Code.INVALID_VALUE, "'space.num_workers'", "--workers", ""),
    given(Code.INVALID_VALUE, "race=40,fresh=5", "--confirm", "3"),
    given(Code.CONFLICT, "--no-confirm --confirm", "--confirm", "race=1", "--no-confirm"),
    given(Code.CONFLICT, "race=0 --no-confirm", "--confirm", "race=0,fresh=6"),
    given(Code.INVALID_VALUE, "--more", "--more", "0"),
    given(Code.NO_RESULT, "--more results/space", "--more", "5"),
    given(Code.NOT_FOUND, "nowhere.yaml", "nowhere.yaml", command="train"),
    given(Code.USER_CODE, "no.such.module:Net", "--workload", "no.such.module:Net"),
    given(Code.UNKNOWN_NAME, "mnist_small", "--workload", "''"),
    given(Code.NOT_WRITABLE, "--out space.yaml", "--out", "space.yaml"),
    given(Code.UNKNOWN_KEY, "'optimzer' 'optimizer'", "--set", "optimzer=adam"),
]
USERS = [
    by_user(
        "load_dataset raises",
        "def load_dataset(self, spec):\n    1 / 0",
        Code.USER_CODE,
        "own_net.py, line ",
    ),
    by_user(
        "load_dataset returns None",
        "def load_dataset(self, spec):\n    pass",
        Code.USER_CODE,
        "NoneType",
    ),
    by_user("load_dataset is missing", "pass", Code.UNSUPPORTED, "load_dataset"),
    by_user(
        "__init__ raises",
        "def __init__(self):\n    open('nowhere')",
        Code.USER_CODE,
        "FileNotFoundError",
    ),
    by_user("another shape", data("split(8, 4)"), Code.INVALID_MODEL, "(3,)", "(4,)"),
    by_user("a module that does not parse", "def (", Code.USER_CODE, "SyntaxError"),
]
EPOCHWISE = "eval_every_samples=5000"
ENDLESS = [  # what could start, and never come to an end
    given(Code.NO_ROOM, "num_workers 64", "--workers", "64"),
    given(Code.NO_ROOM, HUGE, "--set", f"space.num_workers=[{HUGE}]"),
    given(Code.NO_ROOM, "GPU", "--gpus-per-worker", "1"),
    given(Code.INVALID_VALUE, "--address 99999", "--address", "127.0.0.1:99999"),
    given(Code.NOT_WRITABLE, "--out space.yaml", "--out", "space.yaml/below"),
    given(Code.NOT_WRITABLE, "--out", "--out", "x" * 300),
    given(
        Code.CONFLICT,
        "objective.hold",
        *("--set", "epochs=1", "--set", "objective.hold=2", "--set", EPOCHWISE),
    ),
    by_user("one class", data("split(8, label=1)"), Code.INVALID_DATA, "own_net:Net"),
    by_user("no training samples", data("split(0)"), Code.INVALID_DATA, "train"),
    by_user("NaN", data("split(8, value=np.nan)"), Code.INVALID_DATA, "train", "sample 0"),
    by_user("a sample raises", data(read("open('7.png')")), Code.USER_CODE, "own_net.py, line "),
]
