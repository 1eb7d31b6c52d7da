"""Bad inputs of every kind, and words that the sentence on them must have."""

import textwrap
from dataclasses import dataclass

STUDY = "objective: {target: 0.9}\nspace:\n  framework: [torch]\n  num_workers: [1]\n"


@dataclass(frozen=True)
class Bad:
    """A mistake: what stands in the file, what is given, what the user's class has."""

    name: str
    words: str
    text: str | bytes = STUDY
    arguments: tuple[str, ...] = ()
    own: str = ""
    """Body of the user's class `own_net:Net`, which is then workload and dataset."""
    command: str = "tune"


def in_file(name: str, lines: str, words: str) -> Bad:
    """Return a space file with more lines."""
    return Bad(name, words, STUDY + lines)


def aimed_at(objective: str, words: str) -> Bad:
    """Return a space file with another objective."""
    return Bad(objective, words, STUDY.replace("{target: 0.9}", objective))


def in_space(name: str, line: str, words: str) -> Bad:
    """Return a space file that searches one more key."""
    return Bad(name, words, f"{STUDY}  {line}\n")


def given(words: str, *arguments: str, command: str = "tune") -> Bad:
    """Return arguments for a good space file, or for the default run spec."""
    return Bad(f"{command} {' '.join(arguments)}"[:60], words, STUDY, arguments, command=command)


def by_user(name: str, body: str, words: str) -> Bad:
    """Return a class of the user's."""
    return Bad(name, words, own=textwrap.dedent(body))


def read(code: str) -> str:
    """Return a training split that reads its samples by `code`."""
    return f"Split(OnDemand(lambda rows: {code}), split(8).labels)"


SECOND = "1 / 0 if 1 in rows[1:2] else np.zeros((len(rows), 3), np.float32)"


def data(train: str = "split(8)", validation: str = "split(4)", model: str = "Linear(3, 2)") -> str:
    """Return the body of a class with its own data and a model."""
    return f"""
def build_torch(self):
    import torch
    return torch.nn.{model}

def load_dataset(self, spec):
    return Dataset("own", 2, train={train}, validation={validation}, test=split(4))
"""


FILES = [
    Bad("empty", "found nothing", ""),
    Bad("binary", "not a text file in UTF-8: byte 0x80 in line 2", b"a: 1\n\x80\x81"),
    Bad("two documents", "another document", STUDY + "---\n" + STUDY),
    Bad("no objective", "'objective' is required", "space: {optimizer: [adam]}\n"),
    in_file("yes", "search: {priors: yes}\n", "'search.priors': input should be a valid boolean"),
    in_file("a number as a key", "7: 1\n", "'7"),
    in_file("a huge number", "search: {time_budget_s: 1e300}\n", "1e+300 is beyond float32"),
    in_file("a rate of 0 in float32", "fixed: {learning_rate: 1e-60}\n", "is 0 in float32"),
    in_file("pixels", "dataset: {name: digits, image_size: 100000}\n", "needs 16,735.9 GiB"),
    in_file("samples", "dataset: {name: synthetic, num_samples: 1000000000000}\n", "samples of"),
    in_file("classes", "dataset: {name: synthetic, num_classes: 10000000000}\n", "parameters and"),
    in_file(
        "a crop of all", "fixed: {augment: [{random_crop: {padding: 40}}]}\n", "padding below 28"
    ),
    in_file("a misspelt workload", "workload: minst_small\n", "did you mean 'mnist_small'?"),
    in_file("too few samples", "dataset: {name: digits, limit: 100000}\n", "dataset.limit 100000"),
    in_file("no such augmentation", "fixed: {augment: [flpi]}\n", "did you mean 'flip'?"),
    aimed_at("{target: 95}", "0.98, not 98 (found 95)"),
    aimed_at("{target: 0.05}", "0.05 is not better than the baseline, whose accuracy is"),
    aimed_at("{metric: rsme, target: 0.9}", "did you mean 'rmse'?"),
    aimed_at("{metric: rmse, target: 0.9}", "rmse is not of classification"),
    aimed_at("{metric: loss, target: 2.4}", "baseline, whose loss is 2.3"),
    in_space("log of yes", "learning_rate: {low: 0.1, high: 1, log: yes}", "valid boolean"),
    in_space("a list in a list", "optimizer: [[adam]]", "'optimizer'"),
    in_space("a misspelt key", "optimzer: [adam]", "did you mean 'optimizer'?"),
]
FLAGS = [
    given("'dataset.name'", "--set", "dataset=nowhere"),
    given("write it as key=value", "--set", "optimizer"),
    given("unknown key 'search.trails'", "--set", "search.trails=1"),
    given("needs 16,735.9 GiB", "--set", "dataset.image_size=100000"),
    given("'price'", "--set", "price={A100: 2}"),
    given("'time_budget': inf is not a finite number", "--time-budget", "inf"),
    given("beyond 64 bits", "--trials", "1" + "0" * 30),
    given("'search.seed'", "--seed", "4294967296"),
    given("--workers, line 1: not valid YAML", "--workers", "1,,2"),
    given("the list is empty", "--workers", ""),
    given("'search.trials'", "--trials", "0"),
    given("'search.concurrency'", "--concurrency", "0"),
    given("write it as race=40,fresh=5, or only one of them.", "--confirm", "3"),
    given("unknown key 'confirm.rase'; did you mean 'race'?", "--confirm", "rase=3"),
    given("--no-confirm: not with --confirm", "--confirm", "race=1", "--no-confirm"),
    given("of a race's winner, and there is no", "--confirm", "race=0,fresh=6"),
    given("--more 0: name a number of runs, 1 or more.", "--more", "0"),
    given("results/space holds no confirmed study; run the same", "--more", "5"),
    given("nowhere.yaml: cannot be read (No such file", "nowhere.yaml", command="train"),
    given("cannot be imported", "--workload", "no.such.module:Net"),
    given("Unknown workload ''", "--workload", "''"),
    given("is a file", "--out", "space.yaml"),
    given("unknown key 'optimzer'", "--set", "optimzer=adam", command="train"),
]
USERS = [
    by_user("load_dataset raises", "def load_dataset(self, spec):\n    1 / 0", "own_net.py, line "),
    by_user("load_dataset returns None", "def load_dataset(self, spec):\n    pass", "NoneType"),
    by_user("load_dataset is missing", "pass", "has no load_dataset"),
    by_user("__init__ raises", "def __init__(self):\n    open('nowhere')", "FileNotFoundError"),
    by_user("another shape", data("split(8, 4)"), "takes inputs of shape (3,)"),
    by_user("a module that does not parse", "def (", "SyntaxError"),
]
EPOCHWISE = "eval_every_samples=5000"
ENDLESS = [  # what could start, and never come to an end
    given("64", "--workers", "64"),
    given("1000000000000", "--set", "space.num_workers=[1000000000000]"),
    given("GPU", "--gpus-per-worker", "1"),
    given("99999", "--address", "127.0.0.1:99999"),
    given("space.yaml", "--out", "space.yaml/below"),
    given("too long", "--out", "x" * 300),
    given("hold", "--set", "epochs=1", "--set", "objective.hold=2", "--set", EPOCHWISE),
    by_user("one class", data("split(8, label=1)"), "of one class, 1; there is nothing to tell"),
    by_user("no training samples", data("split(0)"), "the train split is empty"),
    by_user("NaN", data("split(8, value=np.nan)"), "NaN or infinite inputs"),
    by_user("a sample raises", data(read("open('7.png')")), "reading its samples failed ("),
    by_user("its second sample raises", data(read(SECOND)), "reading its first samples failed ("),
    by_user("7 outputs", data(model="Linear(3, 7)"), "returns outputs of shape (8, 7)"),
    by_user("a model that raises", data(model="Linear(4, 2)"), "failed on inputs (8, 3)"),
]
