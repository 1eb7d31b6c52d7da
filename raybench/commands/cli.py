"""What all commands share: arguments, exit codes, and `raybench COMMAND`."""

import argparse
import contextlib
import errno
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, Literal, NoReturn

from raybench.cluster.signals import SIGNALS, Interrupt
from raybench.loggers.processes import LOGGERS
from raybench.spec.errors import DONE as DONE  # the exit codes, as commands say them
from raybench.spec.errors import FAILED as FAILED
from raybench.spec.errors import INTERRUPTED as INTERRUPTED
from raybench.spec.errors import NOT_REACHED as NOT_REACHED
from raybench.spec.errors import WRONG_INPUT as WRONG_INPUT
from raybench.spec.errors import Ended, StudyError, UserError, did_you_mean
from raybench.spec.text import clean, redact_text, shorten

COMMANDS = {
    "tune": "search for the configuration that reaches the target soonest",
    "train": "train one run spec",
    "scale": "measure how a training scales, or predict it from measurements",
    "diagnose": "say what bounds a training, and what a change would bring",
    "compare": "say whether B is better than A, by pairs of runs",
    "init": "look at your data, and write a space file for them",
    "watch": "show a study that runs in another terminal, or has ended",
    "report": "rebuild tables and pictures of a results folder",
    "doctor": "say what this machine or cluster will really use, and what will not work",
    "data": "list the decoded datasets that this machine keeps, remove some",
}
Command = Callable[[argparse.Namespace], Ended]
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence, like all of the user's mistakes."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.add_argument(
            "--json", action="store_true", help="one document on stdout, all else on stderr"
        )
        self._given: list[str] = []

    @property
    def name(self) -> str:
        """The command's name."""
        return self.prog.split()[-1]

    def run(self, arguments: Sequence[str] | None, command: Command) -> int:
        """Parse the arguments and run the command; return its exit code."""
        options = self.parse_args(arguments)
        json_of = self.name if options.json else None
        return run_command(lambda: command(options), json_of=json_of)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Keep what was given: an error must know whether a document is wanted."""
        self._given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; exit 2."""
        sentence = f"{message}; see {self.prog} --help."
        print(f"raybench: {sentence}", file=sys.stderr)
        if "--json" in self._given:
            _print_document(self.name, Ended(WRONG_INPUT, error=("user", sentence)))
        sys.exit(WRONG_INPUT)


def add_common(parser: argparse.ArgumentParser, *, out: str) -> None:
    """Add the arguments that every running command takes."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="change any key, the value is YAML; repeatable",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help=f"results folder, or a URL: s3://, gs://, abfs:// (default {out})",
    )
    parser.add_argument("--workload", help="what to train: a shipped name, or module:Class")
    parser.add_argument("--address", help="Ray cluster to use, e.g. auto; else one is started")
    parser.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="how long a run may wait for machines in all (default: without end)",
    )
    parser.add_argument("--seed", type=int, help="seed of the search or the training")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, start nothing")


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add the argument of what writes or reads a study."""
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        choices=tuple(LOGGERS),
        help="write the runs to this tool too, while they are trained; repeatable",
    )


def run_command(command: Callable[[], Ended], *, json_of: str | None = None) -> int:
    """Run a command; return its exit code.

    `json_of` is the command's name where `--json` asks for its document, the only thing on stdout
    then.
    """
    if json_of is None:
        return _ended(command).code
    with contextlib.redirect_stdout(sys.stderr):
        ended = _ended(command)
    _print_document(json_of, ended)
    return ended.code


def _print_document(command: str, ended: Ended) -> None:
    from raybench.report.as_json import document_of  # late: pandas takes long

    try:
        document = document_of(command, ended)
    except (UserError, StudyError) as error:  # of the results, which could not be read again
        document = document_of(command, Ended(ended.code, error=("study", _shown(error))))
    print(document.model_dump_json(indent=1))


def _ended(command: Callable[[], Ended]) -> Ended:
    """Run a command; the user's mistakes become one sentence and exit code 2."""
    try:
        return command()
    except UserError as error:
        return _said(WRONG_INPUT, "user", _shown(error), _details(error))
    except StudyError as error:
        return _said(FAILED, "study", _shown(error))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = shorten(clean(str(error.filename)), 60)
            return _said(WRONG_INPUT, "user", f"{name}: is too long for a path.")
        if error.errno not in NO_ROOM:
            raise
        return _said(
            FAILED,
            "study",
            f"results cannot be written any more ({error.strerror}); make room and run the same "
            "command again, what is recorded is kept.",
        )
    except KeyboardInterrupt:
        return _said(INTERRUPTED, "interrupted", "interrupted.")


def _said(
    code: int, kind: Literal["user", "study", "interrupted"], sentence: str, more: str = ""
) -> Ended:
    print(f"raybench: {sentence}{more}", file=sys.stderr)
    return Ended(code, error=(kind, sentence))


def run_interruptible(
    parser: Parser,
    arguments: Sequence[str] | None,
    command: Callable[[argparse.Namespace, Interrupt], Ended],
) -> int:
    """Parse the arguments and run a command that can be interrupted; return its exit code.

    Signals are taken before anything that takes long is imported: `command` imports it.
    """
    interrupt = Interrupt()

    def interruptible(options: argparse.Namespace) -> Ended:
        try:
            return command(options, interrupt)
        except Exception:
            if interrupt.is_early:  # a library took it for a failure of its own import
                raise KeyboardInterrupt from None
            raise

    with interrupt.listening():
        return parser.run(arguments, interruptible)


def leave(code: int) -> NoReturn:
    """End the process; a signal that comes now changes nothing any more."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _shown(error: Exception) -> str:
    """Return the sentence without secrets: a job's screen is kept by Ray, for all to read."""
    return redact_text(clean(str(error)), os.environ)


def _details(error: UserError) -> str:
    """Keep what else is known of an error in a file; return where it is."""
    if not error.details:
        return ""
    handle, name = tempfile.mkstemp(prefix="raybench-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(redact_text(error.details, os.environ))
    return f" The whole traceback: {name}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `raybench COMMAND ...`, the same as `python -m raybench.COMMAND ...`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    width = max(map(len, COMMANDS))
    overview = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    if not given or given[0] in ("-h", "--help"):
        print(f"usage: raybench COMMAND [--help], raybench --version\n\n{overview}")
        return DONE
    if given[0] == "--version":
        print(f"raybench {metadata.version('raybench')}")
        return DONE
    if given[0] not in COMMANDS:
        print(f"raybench: unknown command '{given[0]}'; there are:\n{overview}", file=sys.stderr)
        if "--json" in given:
            sentence = f"unknown command '{clean(given[0])}'; {did_you_mean(given[0], COMMANDS)}"
            _print_document(given[0], Ended(WRONG_INPUT, error=("user", sentence)))
        return WRONG_INPUT
    module = importlib.import_module(f"raybench.commands.{given[0]}")
    code: int = module.main(given[1:])
    return code
