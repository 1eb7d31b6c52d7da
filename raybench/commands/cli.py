"""Base of all commands: arguments, exit codes, and `raybench COMMAND`."""

import argparse
import contextlib
import errno
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin

import raybench
from raybench.cluster.signals import SIGNALS, Interrupt
from raybench.models.hidden import refuse_hiding_files
from raybench.spec.errors import DONE as DONE  # the exit codes, as commands say them
from raybench.spec.errors import FAILED as FAILED
from raybench.spec.errors import INTERRUPTED as INTERRUPTED
from raybench.spec.errors import NOT_REACHED as NOT_REACHED
from raybench.spec.errors import WRONG_INPUT as WRONG_INPUT
from raybench.spec.errors import Ended, StudyError, UserError, did_you_mean
from raybench.spec.removed import removed
from raybench.spec.text import clean, redact_text, shorten

if TYPE_CHECKING:
    from raybench.runs.options import Options

COMMANDS = {
    "tune": "search for the configuration that reaches the target soonest",
    "train": "train one run spec",
    "scale": "measure how a training scales, or predict it from measurements",
    "plan": "say which machines to hire for a training, how many, and for how much",
    "diagnose": "say what bounds a training, and what a change would bring",
    "compare": "say whether B is better than A, by pairs of runs",
    "transfer": "plan the few trials of a large model from searches of small ones",
    "init": "look at your data, and write a space file for them",
    "report": "write tables and page of a results folder anew, and print them",
    "doctor": "say what this machine or cluster will really use, and what will not work",
    "data": "list the decoded datasets that this machine keeps, remove some",
}
HOMES = {
    "tune": "raybench.search.tune",
    "train": "raybench.runs.train",
    "scale": "raybench.commands.scale",
    "diagnose": "raybench.runs.diagnose",
    "compare": "raybench.runs.compare",
}
"""Modules of the functions of commands that take options; imported once signals are
taken."""
Command = Callable[[Any], Ended]
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence, like all of the user's mistakes."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.add_argument(
            "--json", action="store_true", help="one document on stdout, all else on stderr"
        )
        self._given: list[str] = []
        self.kind: type[Options] | None = None
        """Class of options that the arguments are made of, if any."""

    @property
    def name(self) -> str:
        """The command's name."""
        return self.prog.split()[-1]

    def run(self, arguments: Sequence[str] | None, command: Command) -> int:
        """Parse the arguments and run the command; return its exit code."""
        given = self.parse_args(arguments)
        options = given if self.kind is None else self.options(given)
        return run_command(
            lambda: command(options),
            json_of=self.name if given.json else None,
            is_silent=getattr(given, "progress", "") == "jsonl",
        )

    def options(self, given: argparse.Namespace) -> Any:
        """Return what was given as the command's own class of options."""
        assert self.kind is not None
        return self.kind(**{name: getattr(given, name) for name in self.kind.model_fields})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Keep what was given: an error must know whether a document is wanted. Refuse options that
        were removed."""
        self._given = list(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(args, namespace)
        for option in (word.partition("=")[0] for word in unknown):
            if (problem := removed(f"{self.name} {option}")) is not None:
                self.error(f"{option}: {problem}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; exit 2."""
        sentence = f"{message}; see {self.prog} --help."
        print(f"raybench: {sentence}", file=sys.stderr)
        if "--json" in self._given:
            _print_document(self.name, Ended(WRONG_INPUT, error=("user", sentence)))
        sys.exit(WRONG_INPUT)


def parser_of(name: str, about: str | None) -> Parser:
    """Return a command's parser: arguments, defaults and help are those of its options."""
    from raybench.runs.options import METAVARS, OPTIONS, POSITIONAL, TIME, duration

    result = Parser(prog=f"raybench {name}", description=about)
    result.kind = kind = OPTIONS[name]
    for option, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True)
        types = [one for one in get_args(field.annotation) if one is not NoneType]
        words: dict[str, Any] = {"metavar": METAVARS.get(option), "default": default}
        text = (field.description or "").removesuffix(".").replace("%", "%%")
        words["help"] = text if text[1:2].isupper() else text[:1].lower() + text[1:]
        if default not in (None, False, []):
            words["help"] += f" (default {str(default).replace('%', '%%')})"
        if field.annotation is bool:
            words = {"action": "store_true", "help": words["help"]}
        elif get_origin(field.annotation) is Literal:
            words["choices"] = types
        elif get_origin(field.annotation) is list:
            words |= {"nargs": "*"} if option in POSITIONAL else {"action": "append"}
        else:
            is_time = words["metavar"] == TIME
            words["type"] = duration if is_time else (types or [field.annotation])[0]
            words |= {"nargs": "?"} if option in POSITIONAL else {}
        if option in POSITIONAL:
            result.add_argument(option, **words)
            continue
        flag = "set" if option == "settings" else option.replace("_", "-")
        result.add_argument(f"--{flag}", dest=option, **words)
    return result


def run_command(
    command: Callable[[], Ended], *, json_of: str | None = None, is_silent: bool = False
) -> int:
    """Run a command; return its exit code.

    `json_of` is the command's name where `--json` asks for its document, the only thing on stdout
    then. What else is printed goes to stderr, or `is_silent` nowhere: lines of JSON are there.
    """
    if json_of is None:
        return _ended(command).code
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(Path(os.devnull).open("w")) if is_silent else sys.stderr
        stack.enter_context(contextlib.redirect_stdout(other))
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
    parser: Callable[[], Parser],
    arguments: Sequence[str] | None,
    command: Callable[[Any, Interrupt], Ended],
) -> int:
    """Parse the arguments and run a command that can be interrupted; return its exit code.

    Signals are taken before anything that takes long is imported: `parser` and `command` do.
    """
    interrupt = Interrupt()

    def interruptible(options: Any) -> Ended:
        with interrupt.heard():
            return command(options, interrupt)

    with interrupt.listening():
        try:
            found = parser()
        except KeyboardInterrupt:
            return _said(INTERRUPTED, "interrupted", "interrupted.").code
        return found.run(arguments, interruptible)


def run_asked(options: "Options", interrupt: Interrupt) -> Ended:
    """Do what is asked for; return how it ended."""
    refuse_hiding_files(Path.cwd())  # before what it hides is imported
    name = options.OF
    function = getattr(importlib.import_module(HOMES[name]), name)
    ended: Ended = function(options, interrupt)
    return ended


class OptionsCommand:
    """A command whose arguments are a class of `raybench.runs.options`."""

    def __init__(self, name: str, about: str | None = None) -> None:
        self.name = name
        self.about = about or f"`python -m raybench.{name}`: {COMMANDS[name]}"

    def parser(self) -> Parser:
        """Return the command's arguments."""
        return parser_of(self.name, self.about)

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command and return its exit code."""
        return run_interruptible(self.parser, arguments, run_asked)


OF_OPTIONS = {name: OptionsCommand(name) for name in ("tune", "train", "diagnose", "compare")}
tune, train, diagnose, compare = OF_OPTIONS.values()


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
        print(f"raybench {raybench.__version__}")
        return DONE
    if given[0] not in COMMANDS:
        sentence = f"unknown command '{clean(given[0])}'; {did_you_mean(given[0], COMMANDS)}"
        shown = f"unknown command '{given[0]}'; there are:\n{overview}"
        if (problem := removed(given[0])) is not None:
            sentence = shown = f"{given[0]}: {problem}."
        print(f"raybench: {shown}", file=sys.stderr)
        if "--json" in given:
            _print_document(given[0], Ended(WRONG_INPUT, error=("user", sentence)))
        return WRONG_INPUT
    module = f"raybench.commands.{given[0]}"
    command = OF_OPTIONS.get(given[0]) or importlib.import_module(module)
    code: int = command.main(given[1:])
    return code


def run_module(name: str, command: str, function: Any = None) -> None:
    """Be `python -m raybench.COMMAND` where the calling module's `name` says so.

    Imported, a module that is named like a `function` of the package becomes that function.
    """
    if name == "__main__":
        leave(main([command, *sys.argv[1:]]))
    if function is not None and name == f"raybench.{command}":
        sys.modules[name] = function
