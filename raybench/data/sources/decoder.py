"""Decodes images into rows of a file; `main` is one of several processes that `decode_images` asks.

It is told by standard input, and ends when that does, so also when whoever started it was killed.
"""

import os
import pickle
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from raybench.data.sources.images import (
    Fault,
    ImageError,
    ImageForm,
    decode,
    huge_images_refused,
)


@dataclass(frozen=True, slots=True)
class Picture:
    """An image that is to be decoded."""

    row: int
    """Where it stands in the array."""
    name: str
    """As sentences call it: its path, or file, row and column."""
    content: str | bytes
    """Path of its file, or its bytes."""


@dataclass(frozen=True)
class Task:
    """What all images of an array have in common."""

    file: Path
    offset: int
    """Bytes before the first row."""
    form: ImageForm


@dataclass(frozen=True, order=True)
class Problem:
    """An image that could not be used."""

    row: int
    name: str
    reason: str
    """The end of a sentence that begins with its name, without its full stop."""
    fault: Fault


def write_rows(task: Task, pictures: Iterable[Picture], target: int) -> list[Problem]:
    """Decode images and write each to its row of the open file `target`; return what went wrong.

    Nothing is mapped: written pages leave this process's memory, and a full disk is an OSError.
    """
    height, width, channels = task.form.shape
    problems = []
    for picture in pictures:
        try:
            pixels = decode(picture.content, task.form)
        except ImageError as error:
            problems.append(Problem(picture.row, picture.name, str(error), error.fault))
            continue
        place = task.offset + picture.row * height * width * channels
        view = memoryview(pixels.tobytes())
        while view:  # a nearly full disk takes a part
            written = os.pwrite(target, view, place)
            view, place = view[written:], place + written
    return problems


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Read a task, then lists of pictures until the input ends; answer each with its problems.

    An OSError of the disk is an answer, too.
    """
    task: Task = pickle.load(asked)
    target = os.open(task.file, os.O_WRONLY)
    with huge_images_refused():
        while True:
            try:
                pictures: list[Picture] = pickle.load(asked)
            except EOFError:
                return
            answer: list[Problem] | OSError
            try:
                answer = write_rows(task, pictures, target)
            except OSError as error:
                answer = error
            try:
                pickle.dump(answer, answers)
                answers.flush()
            except BrokenPipeError:  # whoever asked was killed
                return


def main() -> None:
    """Serve whoever started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for them
    serve(sys.stdin.buffer, sys.stdout.buffer)
    os._exit(0)  # closing a pipe that nobody reads any more would be an error
