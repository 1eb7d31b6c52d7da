"""A logging session, and readers of the files that the tools write."""

import json
import struct

from tensorboardX.proto.event_pb2 import Event

from raybench.loggers.follow import Loggers
from raybench.results.store import Store
from tests.made_results import results_folder, run_line

BLOCK, HEADER = 32768, 7
"""Bytes of a block and of a header in a W&B file, which has LevelDB's log format."""


def log(tool, folder, *lines, close_s=60.0):
    """Append lines to the records of a study in one logging session; return the messages."""
    messages = []
    running = Loggers([tool], folder, place=str(folder), say=messages.append, close_s=close_s)
    with Store(folder) as store, running:
        running.start()
        for line in lines:
            store.append(line)
    return messages


def interrupted_study(tool, folder, point):
    """Log a study whose run 0001 is interrupted and ends in a second session; return the
    last message of each session."""
    results_folder(folder, [])
    complete = [point("0000", 0), point("0000", 1, 0.75), run_line("0000", 2.0, learning_rate=0.25)]
    unfinished = [point("0001", 0), point("0001", 1)]
    interrupted = run_line("0001", train_s=2.0, outer_stop="interrupted")
    failed = run_line("0002", failure="oom", train_s=1.0)
    first = log(tool, folder, *complete, *unfinished, interrupted, failed)
    last = [point("0001", 2, 0.875), run_line("0001", 3.0, learning_rate=0.25)]
    return first[-1], log(tool, folder, *unfinished, *last)[-1]


def tensorboard_events(folder):
    """Return the events of the only event file in a folder, in TFRecord format."""
    (file,) = folder.glob("events.out.tfevents.*")
    content, at, events = file.read_bytes(), 0, []
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        events.append(Event.FromString(content[at + 12 : at + 12 + length]))
        at += 12 + length + 4
    return events


def tensorboard_scalars(folder):
    """Return {tag: [(step, value, wall_time), ...]} of a folder."""
    scalars = {}
    for event in tensorboard_events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                point = event.step, value.simple_value, event.wall_time
                scalars.setdefault(value.tag, []).append(point)
    return scalars


def wandb_records(folder):
    """Return the records in the folder of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    content, at, partial, records = file.read_bytes(), HEADER, b"", []
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        partial += content[at + HEADER : at + HEADER + length]
        if kind in (1, 4):  # a complete record, or the last part of one
            records.append(Record.FromString(partial))
            partial = b""
        at += HEADER + length
    return records


def wandb_items(items):
    """Return {key: value} of a W&B list of keys and JSON values."""
    return {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in items}
