"""A session of a study, and the files of the tools read back, by parsers of their own messages."""

import json
import struct

from tensorboardX.proto.event_pb2 import Event

from raybench.loggers.follow import Loggers
from raybench.results.store import Store
from tests.made_results import results_folder, run_line

BLOCK, HEADER = 32768, 7
"""Bytes of a block of W&B's file, LevelDB's log format, and of what stands before its parts."""


def log(tool, folder, *lines, close_s=60.0):
    """Write lines to a study's records as one session of it does; return what was said."""
    said = []
    running = Loggers([tool], folder, place=str(folder), say=said.append, close_s=close_s)
    with Store(folder) as store, running:
        running.start()
        for line in lines:
            store.append(line)
    return said


def interrupted_study(tool, folder, point):
    """Log a study whose run 0001 is interrupted and ends in a second session; return what each
    session said last."""
    results_folder(folder, [])
    done = [point("0000", 0), point("0000", 1, 0.75), run_line("0000", 2.0, learning_rate=0.25)]
    begun = [point("0001", 0), point("0001", 1)]
    cut = run_line("0001", train_s=2.0, outer_stop="interrupted")
    failed = run_line("0002", failure="oom", train_s=1.0)
    first = log(tool, folder, *done, *begun, cut, failed)
    last = [point("0001", 2, 0.875), run_line("0001", 3.0, learning_rate=0.25)]
    return first[-1], log(tool, folder, *begun, *last)[-1]


def tensorboard_events(folder):
    """The events of the one event file in a folder (TFRecord: length, crc, content, crc)."""
    (file,) = folder.glob("events.out.tfevents.*")
    content, at, events = file.read_bytes(), 0, []
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        events.append(Event.FromString(content[at + 12 : at + 12 + length]))
        at += 12 + length + 4
    return events


def tensorboard_scalars(folder):
    """{tag: [(step, value, wall_time), ...]} of a folder."""
    found = {}
    for event in tensorboard_events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                point = event.step, value.simple_value, event.wall_time
                found.setdefault(value.tag, []).append(point)
    return found


def wandb_records(folder):
    """The records of an offline run's folder."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    content, at, held, records = file.read_bytes(), HEADER, b"", []
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        held += content[at + HEADER : at + HEADER + length]
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(held))
            held = b""
        at += HEADER + length
    return records


def wandb_items(items):
    """{key: value} of W&B's lists of keys and JSON values."""
    return {(one.key or "/".join(one.nested_key)): json.loads(one.value_json) for one in items}
