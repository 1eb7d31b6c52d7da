"""The process that writes a study to one tool: it reads the records as they come.

A process of its own, because of what such a tool may do: hang, end the process, fill the memory, or
take signals and the interpreter's exit. It is told on its standard input that the study has ended
(`END`); where that is closed without a word, whoever ran the study is gone. Sentences for the user
go to its standard output, one a line.
"""

import json
import os
import select
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TextIO

from raybench.core.errors import DONE, FAILED, StudyError, UserError
from raybench.core.text import command_line
from raybench.results.live.tail import FolderSource
from raybench.results.loggers.feed import Feed
from raybench.results.loggers.kinds import LOGGERS, open_sink
from raybench.results.loggers.ledger import Ledger
from raybench.results.loggers.sink import Sink
from raybench.results.loggers.values import shown
from raybench.results.records import record_of
from raybench.results.store import StudyFiles

END = b"end\n"
POLL_S = 0.5
"""New records are in the tool about so long after they were written."""
NOT_NEEDED = ("torch", "tensorflow")
"""What tensorboardX and W&B import where it is there: seconds and hundreds of megabytes."""
WINNERS = "winners"
"""Of the ledger: the run that holds a study's winners. No run of a study has such a name."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Follow the study in a folder: tool, folder, name of the study, place as the user named it.

    The process ends here, without what libraries do at the interpreter's exit: some wait there for
    a server that never answers.
    """
    tool, folder, study, place = arguments
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as words:
        # What a library prints is none of the sentences.
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.nice(10)  # the cores are for the training
        for name in NOT_NEEDED:
            sys.modules[name] = None  # type: ignore[assignment]  # importing it is an ImportError
        try:
            _follow(tool, Path(folder), study, words)
            code = DONE
        except BaseException as error:  # noqa: BLE001 (a library's, its sys.exit too)
            _say(words, _sentence(tool, Path(folder), place, error))
            code = FAILED
    os._exit(code)


def _follow(tool: str, folder: Path, study: str, words: TextIO) -> None:
    with Ledger(folder, tool) as ledger:
        sink = open_sink(tool, folder, study)
        ledger.open(sink.place)
        feed, source = Feed(sink, ledger), FolderSource(str(folder))
        ended, bad = None, 0
        while ended is None:
            ended = _is_ended()
            news = source.news()
            if news.is_anew:
                feed.close()
            for line in news.lines:
                try:
                    feed.take(json.loads(line))
                except ValueError:
                    if _is_record(line):
                        raise
                    bad += 1  # the study's own screen says which
            feed.flush()
        feed.close()
        if ended and feed.num_told:
            _tell_winners(folder, sink, ledger)
        where = sink.close()
    if ended:
        runs = "1 run" if feed.num_told == 1 else f"{feed.num_told} runs"
        runs += f" (without {bad} lines that are no records)" if bad else ""
        _say(words, f"{LOGGERS[tool].title}: {runs} written: {where}")


def _is_record(line: bytes) -> bool:
    try:
        record_of(json.loads(line))
    except ValueError:
        return False
    return True


def _is_ended() -> bool | None:
    """Wait for a word; return None if there is none yet, whether the study has ended in order."""
    found, _, _ = select.select([0], [], [], POLL_S)
    return os.read(0, len(END)) == END if found else None


def _tell_winners(folder: Path, sink: Sink, ledger: Ledger) -> None:
    # Late: pandas takes a second, while nothing is trained any more.
    from raybench.results.load import load
    from raybench.results.loggers.winners import winners_of

    found = winners_of(load(folder))
    if found:
        found = [replace(one, config=shown(one.config)) for one in found]
        ledger.begun(WINNERS, sink.winners(found, ledger.name_of(WINNERS)))


def _sentence(tool: str, folder: Path, place: str, error: BaseException) -> str:
    """Say why this tool gets no more; keep the traceback where there is more to know."""
    again = f"the study goes on; {command_line('report', place, '--log', tool)} writes the rest."
    reason = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, UserError):
        return f"{reason}; {again}"
    reason = reason.splitlines()[0][:300]
    kept = ""
    try:
        path = StudyFiles(folder).write_error(f"log-{tool}", traceback.format_exc())
        kept = f" (traceback: {path})"
    except (OSError, StudyError) as problem:  # where the disk is full there is no room for this
        kept = f" (traceback not kept: {problem})"
    return (
        f"--log {tool}: ended, {type(error).__name__}: {reason}{kept}; {LOGGERS[tool].hint}{again}"
    )


def _say(words: TextIO, sentence: str) -> None:
    words.write(f"{shown(sentence)}\n")
    words.flush()
