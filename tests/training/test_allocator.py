"""Freed memory stays with a worker through its steps, and goes back between runs."""

import ctypes
import os
import subprocess
import sys

import pytest

from raybench.training.memory import ENVIRONMENT

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc's allocator"
)
STEPS = """
import ctypes, resource, threading
from pathlib import Path
from raybench.training.memory import give_back

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p

def step():
    tensors = [ctypes.c_void_p(library.malloc(20 * 2**20)) for _ in range(4)]
    for tensor in tensors:
        ctypes.memset(tensor, 1, 20 * 2**20)
    for tensor in tensors:
        library.free(tensor)

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def train():
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    held = resident()
    give_back()
    print(faults, held - resident())

thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


def steps_in_a_thread(environment: dict[str, str]) -> tuple[int, int]:
    """Page faults of five steps of 80 MB, and the bytes that are given back after them."""
    own = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        env=own | environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=600,
    )
    faults, returned = map(int, done.stdout.split())
    return faults, returned


def test_memory_is_kept_from_step_to_step_and_given_back_after_the_run():
    faults, returned = steps_in_a_thread(ENVIRONMENT)
    assert faults < 1000
    assert returned > 70 * 2**20


def test_without_it_every_step_pays_for_its_pages():
    faults, _ = steps_in_a_thread({})
    assert faults > 5 * 80 * 2**20 // os.sysconf("SC_PAGE_SIZE") // 2
