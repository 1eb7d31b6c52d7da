"""Many images into one array of the store, by as many processes as there are cores."""

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from raybench.data.sources.images import (
    Fault,
    ImageError,
    ImageForm,
    Picture,
    Problem,
    Task,
    decode,
    form_of,
    huge_images_refused,
    main,
    read_head,
    write_rows,
)
from raybench.data.store.place import Progress, Writer
from raybench.spec.errors import UserError
from raybench.spec.run import DatasetSpec

AT_ONCE = 64
"""Images that a process is given at a time: few in memory, yet pipes cost nothing."""
PROBES = 16
"""Images that form and duration are told from."""
WORTH_PROCESSES_S = 2.0
"""What takes one process less is done before others have started."""
ADVICE: dict[Fault, str] = {
    "broken": "mend or remove it",
    "huge": "scale it down or remove it",
    "colours": "set dataset.channels: 3, or 1 to make all of them grey",
    "size": "set dataset.image_size, such as 64, to scale all of them",
}
"""The end of a sentence about an image that cannot be used."""
MOST_PROBLEMS = 100
"""Nothing is decoded any more after so many problems."""


def probe(pictures: Sequence[Picture], spec: DatasetSpec) -> tuple[ImageForm, float]:
    """Return what all images become, and the seconds that one takes in one process.

    Told from some of them, evenly chosen (broken ones are said later, with all others); if none
    of these is an image, UserError.
    """
    chosen = pictures[:: max(1, len(pictures) // PROBES)][:PROBES]
    heads, error = [], None
    with huge_images_refused():
        with contextlib.suppress(ImageError):
            read_head(chosen[0].content, chosen[0].name)  # PIL imports its decoders
        began = time.perf_counter()
        for picture in chosen:
            try:
                heads.append(read_head(picture.content, picture.name))
                decode(picture.content, form_of(spec, heads[-1:]))
            except ImageError as problem:
                error = error or UserError(f"{picture.name} {problem}; {ADVICE[problem.fault]}.")
        seconds = time.perf_counter() - began
    if not heads:
        assert error is not None
        raise error
    return form_of(spec, heads), seconds / len(chosen)


def decode_images(
    writer: Writer,
    name: str,
    pictures: Iterable[Picture],
    *,
    number: int,
    form: ImageForm,
    seconds_each: float,
) -> None:
    """Write array `name`: (number, H, W, C) uint8, row by row as the pictures say.

    `pictures` are taken as they are needed, so their bytes need not fit into memory at once.
    UserError with the first image that cannot be used, and how many there are.
    """
    num_processes = _num_processes(number * seconds_each)
    array = writer.array(name, (number, *form.shape), "uint8")
    task = Task(writer.file(name), array.offset, form)
    del array  # written through the file: pages of a mapping would count as this process's
    chunks = _chunks(pictures)
    seconds = number * seconds_each / max(1, num_processes)
    with writer.progress(f"decoding {number:,} images", number, seconds=seconds) as progress:
        if num_processes:
            problems = _in_processes(num_processes, task, chunks, progress)
        else:
            problems = _here(task, chunks, progress)
    if problems:
        raise _error(sorted(problems), form)


def _num_processes(seconds: float) -> int:
    """Return the processes to start; 0 where it is done here before they would have started."""
    if seconds < WORTH_PROCESSES_S:
        return 0
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _chunks(pictures: Iterable[Picture]) -> Iterator[list[Picture]]:
    remaining = iter(pictures)
    while chunk := list(itertools.islice(remaining, AT_ONCE)):
        yield chunk


def _here(task: Task, chunks: Iterator[list[Picture]], progress: Progress) -> list[Problem]:
    problems: list[Problem] = []
    target = os.open(task.file, os.O_WRONLY)
    try:
        with huge_images_refused():
            for chunk in chunks:
                problems += write_rows(task, chunk, target)
                progress.advance(len(chunk))
                if len(problems) >= MOST_PROBLEMS:
                    break
    finally:
        os.close(target)
    return problems


def _in_processes(
    number: int, task: Task, chunks: Iterator[list[Picture]], progress: Progress
) -> list[Problem]:
    """Feed `number` processes, by a thread each."""
    problems: list[Problem] = []
    lock = threading.Lock()
    stopped = threading.Event()

    def feed() -> None:
        with _decoder(task) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            while not stopped.is_set():
                with lock:
                    chunk = next(chunks, None)
                if chunk is None:
                    return
                try:
                    pickle.dump(chunk, process.stdin)
                    process.stdin.flush()
                    answer: list[Problem] | OSError = pickle.load(process.stdout)
                except (EOFError, BrokenPipeError) as error:
                    code = process.wait()
                    raise RuntimeError(
                        f"a process that decodes images ended with code {code}, at one of "
                        f"{chunk[0].name} .. {chunk[-1].name}"
                    ) from error
                if isinstance(answer, OSError):
                    raise answer
                problems.extend(answer)
                progress.advance(len(chunk))
                if len(problems) >= MOST_PROBLEMS:
                    stopped.set()

    with ThreadPoolExecutor(number) as threads:
        feeding = [threads.submit(feed) for _ in range(number)]
        try:
            for one in feeding:
                one.result()
        finally:
            stopped.set()
    return problems


@contextlib.contextmanager
def _decoder(task: Task) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a decoding process, which has ended when this does."""
    # Not multiprocessing: its processes run the main module again, and outlive a killed parent.
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {main.__module__} import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        assert process.stdin is not None
        pickle.dump(task, process.stdin)
        yield process
    finally:
        process.kill()  # it waits for its next images, or is not wanted any more
        process.communicate()


def _error(problems: list[Problem], form: ImageForm) -> UserError:
    """Return what is wrong with the images, by the first of them."""
    first, more = problems[0], ""
    if len(problems) > 1:
        least = " or more" if len(problems) >= MOST_PROBLEMS else ""
        more = f" ({min(len(problems), MOST_PROBLEMS)}{least} such images)"
    other = ""
    if first.fault == "size":
        other = f", and {form.told_by} {form.width} x {form.height}"
    return UserError(f"{first.name} {first.reason}{other}{more}; {ADVICE[first.fault]}.")
