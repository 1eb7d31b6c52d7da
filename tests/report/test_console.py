import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from raybench.report.console import make_console, say
from raybench.report.show import show
from raybench.results.analyses import failures
from raybench.spec.text import clean
from tests.made_results import OBJECTIVE, raced, results_folder, run_line, shown


def test_failures_are_grouped_by_cause_and_counted(tmp_path):
    messages = [
        "CUDA out of memory: 3.5 GiB of 16 (pid 7)",
        "CUDA out of memory: 4.5 GiB of 16 (pid 123)",
        "it raised, see results/x/errors/0002.txt",
        "it raised, see results/x/errors/0018.torch2.txt",
        "it raised, see results/x/errors/0018.tf1.txt",
        "object at 0x7f00ab and 0xdeadbeef",
        None,
    ]
    lines = [
        run_line(f"{n:04d}", failure="error") | {"message": message}
        for n, message in enumerate(messages)
    ]
    lines.append(run_line("0009", failure="oom") | {"message": messages[0]})
    table = failures(results_folder(tmp_path, lines).trials)
    assert list(zip(table["failure"], table["runs"], table["for example"], strict=True)) == [
        ("error", 3, messages[2]),
        ("error", 2, messages[0]),
        ("error", 1, messages[5]),
        ("error", 1, "no message"),
        ("oom", 1, messages[0]),
    ]


def test_milliseconds_are_shown_in_tables_and_sentences(tmp_path):
    results = results_folder(tmp_path, raced("0001", 0.0042, [0.0052, 0.0061], [0.0071] * 3))
    text = " ".join(shown(results, verbose=False).split())
    assert "after 0.0071 s of training" in text
    assert "0.0042" in text[text.index("Search: ") : text.index("Confirmation: ")]
    table = text[text.index("Confirmation: ") : text.index("Where the")]
    assert "0.0071" in table
    assert not re.search(r"\b0\.00\b", text)


HOSTILE = [
    "[/__w/pytorch/third_party/gloo/pair.cc:152]",
    "[bold red]x[/] [link=http://e]y[/link] :smile: [blink]",
    "\x1b[2J\x1b]0;owned\x07cleared",
    "caf\udce9",
    "line\nend\r\ttab \u2028 \x85 \u202e",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_strings_of_a_study_are_never_markup_or_escape_codes(tmp_path, text):
    """Checked in failure messages, trial names, specs, the folder name and notes."""
    folder = tmp_path / text.replace("/", "|")
    lines = [
        run_line("0000", failure="error", workload=text) | {"message": text},
        *raced("0001", 2.0, (), [2.0], workload=text),
        run_line(text, 3.0, workload=text),
    ]
    results = results_folder(folder, lines, study={"space": {"workload": {}}})
    results.study["notes"] = [text]
    buffer = io.BytesIO()
    out = io.TextIOWrapper(buffer, encoding="utf-8")
    console = Console(file=out, width=300, force_terminal=True)  # interprets markup by default
    show(console, results, plots=[folder / "curves.png"])
    out.flush()
    printed = buffer.getvalue().decode()
    assert printed.count(clean(text)) >= 4
    for bad in ("\x1b]", "\x1b[2J", "\x07", "\u202e", "\x1b[5m"):
        assert bad not in printed
    # The answer is printed, and the last line names the folder.
    assert "Answer: " in printed
    assert printed.splitlines()[-1] == clean(f"results: {folder}")


def wide_study(tmp_path):
    """Return a study with long trial names, many searched keys and large numbers."""
    space = {key: {} for key in ("optimizer", "weight_decay", "schedule", "warmup_epochs")}
    spec = {
        "framework": "tensorflow",
        "num_workers": 64,
        "batch_size_per_worker": 4096,
        "optimizer": "radam",
        "learning_rate": 0.000123,
        "weight_decay": 0.000456,
        "schedule": "cosine",
        "warmup_epochs": 12.5,
        "objective": OBJECTIVE.model_copy(update={"max_train_seconds": 1e6}),
    }
    name = "0118.torch64"
    times = [12345.67 * number for number in (1, 2, 3)]
    lines = raced(name, 12345.678, (), times, **spec)
    lines.append(run_line("0001", failure="error", **spec) | {"message": "word " * 300})
    return results_folder(tmp_path, lines, study={"space": space})


@pytest.mark.parametrize(("width", "is_terminal"), [(40, True), (80, True), (140, False)])
def test_heads_and_numbers_are_never_cut(tmp_path, width, is_terminal):
    results = wide_study(tmp_path)
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal)
    show(console, results, verbose=True)
    text = Text.from_ansi(console.file.getvalue()).plain
    assert "\u2026" not in text
    tables = text[: text.index("Confidence: ")]
    if width >= 80:
        lines = [line for line in tables.splitlines() if not line.startswith("configuration:")]
        assert max(cell_len(line) for line in lines) <= width
    words = set(tables.split())
    for head in ("trial", "configuration", "expected", "target", "reached", "accuracy", "share"):
        assert head in words, head
    for number in ("12345.68", "24691.34", "0118.torch64"):
        assert number in words, number
    # The keys that identify the configuration are complete, wrapped if necessary.
    for word in ("64x4096", "radam", "0.000123", "weight_decay", "0.000456", "cosine", "12.5"):
        assert word in words, word


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_other_terminal_encodings_are_supported(encoding):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    console = make_console(out)
    say(console, "漢 [bold]é[/bold] :smile: \udce9")
    out.flush()
    text = out.buffer.getvalue().decode(encoding)
    assert "[bold]" in text
    assert ":smile:" in text
