"""Study 5 measured processor time with `time.clock` and drew the wrong curves from it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "raybench"
REFUSED = {"clock", "process_time", "process_time_ns", "time", "time_ns", "thread_time"}


def wrong_clocks(code):
    """Return (line, name) of every clock that is not perf_counter or monotonic."""
    tree = ast.parse(code)
    modules = {"time"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {n.asname for n in node.names if n.name == "time" and n.asname}
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [(node.lineno, n.name) for n in node.names if n.name in REFUSED]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in REFUSED
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        ):
            found.append((node.lineno, node.attr))
    return sorted(found)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import time\nx = time.time()", [(2, "time")]),
        ("import time\nx = time.clock()", [(2, "clock")]),
        ("import time\nf(clock=time.process_time)", [(2, "process_time")]),
        ("import time as t\nt.time()", [(2, "time")]),
        ("from time import time\ntime()", [(1, "time")]),
        ("from time import perf_counter, time as now", [(1, "time")]),
        ("def f():\n    import time\n    return time.time_ns()", [(3, "time_ns")]),
        ("import time\ntime.perf_counter(); time.monotonic(); time.sleep(1)", []),
        ("x.time(); clock(); 'time.time()'  # time.time()", []),
    ],
)
def test_the_search_itself(code, found):
    assert wrong_clocks(code) == found


def test_no_file_of_the_package_uses_another_clock_than_perf_counter():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 50, "the package was not found"
    found = {
        str(file.relative_to(PACKAGE)): clocks
        for file in files
        if (clocks := wrong_clocks(file.read_text()))
    }
    assert found == {}


def test_the_ledger_uses_perf_counter():
    assert "time.perf_counter" in (PACKAGE / "core" / "clock.py").read_text()
