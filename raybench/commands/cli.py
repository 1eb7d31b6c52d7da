"""What all commands share: arguments, exit codes, and `raybench COMMAND`."""

import argparse
import errno
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import NoReturn

from raybench.cluster.signals import SIGNALS, Interrupt
from raybench.loggers.processes import LOGGERS
from raybench.spec.errors import DONE as DONE  # the exit codes, as commands say them
from raybench.spec.errors import FAILED as FAILED
from raybench.spec.errors import INTERRUPTED as INTERRUPTED
from raybench.spec.errors import NOT_REACHED as NOT_REACHED
from raybench.spec.errors import WRONG_INPUT as WRONG_INPUT
from raybench.spec.errors import StudyError, UserError
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
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence, like all of the user's mistakes."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; exit 2."""
        print(f"raybench: {message}; see {self.prog} --help.", file=sys.stderr)
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


def run_command(command: Callable[[], int]) -> int:
    """Run a command; the user's mistakes become one sentence and exit code 2."""
    try:
        return command()
    except UserError as error:
        print(f"raybench: {_shown(error)}{_details(error)}", file=sys.stderr)
        return WRONG_INPUT
    except StudyError as error:
        print(f"raybench: {_shown(error)}", file=sys.stderr)
        return FAILED
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = shorten(clean(str(error.filename)), 60)
            print(f"raybench: {name}: is too long for a path.", file=sys.stderr)
            return WRONG_INPUT
        if error.errno not in NO_ROOM:
            raise
        print(
            f"raybench: results cannot be written any more ({error.strerror}); make room and run "
            "the same command again, what is recorded is kept.",
            file=sys.stderr,
        )
        return FAILED
    except KeyboardInterrupt:
        print("raybench: interrupted.", file=sys.stderr)
        return INTERRUPTED


def run_interruptible(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    command: Callable[[argparse.Namespace, Interrupt], int],
) -> int:
    """Parse the arguments and run a command that can be interrupted; return its exit code.

    Signals are taken before anything that takes long is imported: `command` imports it.
    """
    interrupt = Interrupt()
    with interrupt.listening():
        options = parser.parse_args(arguments)
        return run_command(lambda: command(options, interrupt))


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
        return WRONG_INPUT
    module = importlib.import_module(f"raybench.commands.{given[0]}")
    code: int = module.main(given[1:])
    return code
