"""The command line `raybench COMMAND`: parses arguments, prints errors and JSON (`--json`), and
determines the exit code."""

import argparse
import contextlib
import errno
import logging
import os
import pkgutil
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Union, get_args, get_origin

import raybench
from raybench.cluster.signals import SIGNALS, Interrupt
from raybench.models.user_code import refuse_hiding_files
from raybench.spec.errors import DONE as DONE  # exit codes, also read as `cli.DONE` etc.
from raybench.spec.errors import FAILED as FAILED
from raybench.spec.errors import INTERRUPTED as INTERRUPTED
from raybench.spec.errors import NOT_REACHED as NOT_REACHED
from raybench.spec.errors import WRONG_INPUT as WRONG_INPUT
from raybench.spec.errors import (
    CommandError,
    Ended,
    ErrorCode,
    StudyError,
    UserError,
    did_you_mean,
    removed,
)
from raybench.spec.text import clean, redact_text, shorten

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from raybench.runs.options import Argument, Options
COMMANDS = {
    "tune": "search for the configuration that reaches the target fastest",
    "train": "train one run spec",
    "scale": "measure how training scales, or predict it from measurements",
    "plan": "choose which machines to rent for a training, how many, and at what cost",
    "diagnose": "find the bottleneck of a training, and the gain of each remedy",
    "compare": "test whether B is better than A, by paired runs",
    "forecast": "predict learning rate, batch and loss of a large run from small runs",
    "init": "inspect a dataset and write a search space for it",
    "import": "make a study of runs that another tool recorded",
    "report": "rebuild the tables and the page of a results folder, and print them",
    "doctor": "check hardware, drivers and network",
    "data": "list or remove the decoded datasets that are kept on this machine",
}
FUNCTIONS = {
    "tune": "raybench.search.tune:tune",
    "train": "raybench.runs.train:train",
    "scale": "raybench.commands.recorded:scale",
    "plan": "raybench.commands.recorded:plan",
    "diagnose": "raybench.runs.diagnose:diagnose",
    "compare": "raybench.runs.compare:compare",
    "forecast": "raybench.commands.forecast:forecast",
    "init": "raybench.commands.prepare:init",
    "import": "raybench.commands.recorded:import_runs",
    "report": "raybench.commands.recorded:report",
    "doctor": "raybench.commands.prepare:doctor",
    "data": "raybench.commands.prepare:data",
}
"""Functions that run the commands, as `module:name`, keyed by command name."""
WITH_RAY = ("tune", "train", "scale", "diagnose", "compare", "doctor")
"""Commands that start Ray; their functions also take an Interrupt."""
SHOW_LOG = "show_log"
"""Name of the parsed option `-v`, which all commands have; see `log_shown`."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Parser(argparse.ArgumentParser):
    """Argument parser of a command, which prints an error as one sentence."""

    def __init__(self, name: str) -> None:
        about = f"`python -m raybench.{name}`: {COMMANDS[name]}"
        super().__init__(prog=f"raybench {name}", description=about)
        self.name = name
        about = "print one JSON document to stdout; everything else goes to stderr"
        self.add_argument("--json", action="store_true", help=about)
        about = "print raybench's log messages to stderr, for example why a GPU was not listed"
        self.add_argument("-v", action="store_true", dest=SHOW_LOG, help=about)
        self._given: list[str] = []
        self._code = ErrorCode.INVALID_OPTION

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments; an option that no longer exists is an error.

        The arguments are stored, because `error` checks whether `--json` is among them.
        """
        self._given = list(sys.argv[1:] if args is None else args)
        parsed, unknown = super().parse_known_args(args, namespace)
        for option in (word.partition("=")[0] for word in unknown):
            if (problem := removed(f"{self.name} {option}")) is not None:
                self._code = ErrorCode.REMOVED
                self.error(f"{option}: {problem}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Print an error with a reference to `--help`, and exit with code 2."""
        sentence = f"{message}; see {self.prog} --help."
        print(f"raybench: {sentence}", file=sys.stderr)
        if "--json" in self._given:
            error = CommandError("user", sentence, self._code)
            _print_document(self.name, Ended(WRONG_INPUT, error=error))
        sys.exit(WRONG_INPUT)


def parser_of(name: str) -> Parser:
    """Return the parser of a command, built from the fields of its options class."""
    from raybench.runs.options import OPTIONS, Argument

    parser = Parser(name)
    for option, field in OPTIONS[name].model_fields.items():
        argument = next((item for item in field.metadata if isinstance(item, Argument)), Argument())
        keywords = {"help": _help(field), "default": argparse.SUPPRESS} | _parsing_options(
            field, argument
        )
        if argument.metavar is not None:
            keywords["metavar"] = argument.metavar
        if argument.is_positional:
            parser.add_argument(option, **keywords)
            continue
        flag = argument.flag or option.replace("_", "-")
        parser.add_argument(f"--{flag}", dest=option, required=field.is_required(), **keywords)
    return parser


def _parsing_options(field: "FieldInfo", argument: "Argument") -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` that determine how the value of an option is
    parsed."""
    kind, is_required = field.annotation, field.is_required()
    if get_origin(kind) in (Union, UnionType):
        kind = next(member for member in get_args(kind) if member is not NoneType)
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if argument.parse is None and get_origin(kind) in (list, dict):
        if argument.is_positional:
            return {"nargs": "+" if is_required else "*"}
        return {"action": "append"} if argument.nargs is None else {"nargs": argument.nargs}
    optional = {"nargs": "?"} if argument.is_positional and not is_required else {}
    return {"type": argument.parse or kind, **optional}


def _help(field: "FieldInfo") -> str:
    """Return the help text of an option: its docstring followed by the default value."""
    text = (field.description or "").removesuffix(".")
    if not text[1:2].isupper():
        text = text[:1].lower() + text[1:]
    default = field.get_default(call_default_factory=True)
    if not field.is_required() and default not in (None, False, [], {}):
        text += f" (default {default})"
    return text.replace("%", "%%")


def options_of(name: str, parsed: argparse.Namespace) -> "Options":
    """Convert parsed arguments to the options of a command.

    Raises:
        UserError: An argument has an invalid value.
    """
    from raybench.runs.options import OPTIONS
    from raybench.spec.documents import validate

    content = {key: value for key, value in vars(parsed).items() if key not in ("json", SHOW_LOG)}
    return validate(OPTIONS[name], content, name)


def run(name: str, arguments: Sequence[str]) -> int:
    """Parse the arguments of a command and run it; return the exit code.

    Signal handlers are installed first, because the command's imports take seconds.
    """
    interrupt = Interrupt()
    with interrupt.listening():
        try:
            parsed = parser_of(name).parse_args(arguments)
        except KeyboardInterrupt:
            return _print_error(INTERRUPTED, CommandError("interrupted", "interrupted.")).code
        with log_shown() if parsed.show_log else contextlib.nullcontext():
            return run_command(
                lambda: run_with_options(options_of(name, parsed), interrupt),
                json_of=name if parsed.json else None,
                is_silent=getattr(parsed, "progress", "") == "jsonl",
            )


@contextlib.contextmanager
def log_shown() -> Iterator[None]:
    """Print the log messages of this process to its original stderr, which commands redirect while
    Ray runs."""
    logger = logging.getLogger("raybench")
    with os.fdopen(os.dup(2), "w") as stream:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)


def run_with_options(options: "Options", interrupt: Interrupt) -> Ended:
    """Run the command to which the options belong; return how it ended."""
    name = options.OF
    if name in WITH_RAY:
        refuse_hiding_files(Path.cwd())  # before imports that these files would shadow
    with interrupt.heard():
        function = pkgutil.resolve_name(FUNCTIONS[name])
        ended: Ended = function(options, interrupt) if name in WITH_RAY else function(options)
    return ended


def run_command(
    command: Callable[[], Ended], *, json_of: str | None = None, is_silent: bool = False
) -> int:
    """Run a command; return its exit code.

    Args:
        command: Function that runs the command.
        json_of: Name of the command if `--json` is given; stdout then gets only the JSON document.
            None without `--json`.
        is_silent: With `json_of`, whether all other output is discarded instead of printed to
            stderr, so that stderr contains only the lines of `--progress jsonl`.
    """
    try:
        if json_of is None:
            return _run_safely(command).code
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(Path(os.devnull).open("w")) if is_silent else sys.stderr
            stack.enter_context(contextlib.redirect_stdout(stream))
            ended = _run_safely(command)
        _print_document(json_of, ended)
    except BrokenPipeError:
        if not _is_stdout_closed():
            raise  # another pipe broke
        return FAILED
    return ended.code


def _is_stdout_closed() -> bool:
    """Return whether the reader of stdout has closed the pipe, as `| head` does.

    If so, stdout is redirected to the null device, because Python would otherwise fail when it
    writes the rest of the output at exit.
    """
    poll = select.poll()
    poll.register(1, 0)
    is_closed = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return is_closed


def _print_document(command: str, ended: Ended) -> None:
    from raybench.report.as_json import document_of  # imported late, since pandas takes long

    try:
        document = document_of(command, ended)
    except (UserError, StudyError) as error:  # the results cannot be read
        document = document_of(
            command, Ended(ended.code, error=CommandError("study", _error_text(error)))
        )
    print(document.model_dump_json(indent=1))


def _run_safely(command: Callable[[], Ended]) -> Ended:
    """Run a command; an exception is converted to a printed sentence and an exit code."""
    try:
        return command()
    except UserError as error:
        problem = CommandError("user", _error_text(error), error.code)
        return _print_error(WRONG_INPUT, problem, _details(error))
    except StudyError as error:
        return _print_error(FAILED, CommandError("study", _error_text(error)))
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = shorten(clean(str(error.filename)), 60)
            sentence = f"{name}: is too long for a path."
            return _print_error(
                WRONG_INPUT, CommandError("user", sentence, ErrorCode.INVALID_VALUE)
            )
        if error.errno not in NO_ROOM:
            raise
        sentence = (
            f"the results can no longer be written ({error.strerror}); free some space and rerun "
            "the same command, which continues from what is recorded."
        )
        return _print_error(FAILED, CommandError("study", sentence))
    except KeyboardInterrupt:
        return _print_error(INTERRUPTED, CommandError("interrupted", "interrupted."))


def _print_error(code: int, error: CommandError, more: str = "") -> Ended:
    """Print an error, followed by the sentence `more`; return how the command ended."""
    print(f"raybench: {error.message}{more}", file=sys.stderr)
    return Ended(code, error=error)


def leave(code: int) -> NoReturn:
    """Exit the process with `code`; signals during the exit are ignored."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _error_text(error: Exception) -> str:
    """Return the message of an error with secrets masked, because all users of a cluster can read
    the output of a Ray job."""
    return redact_text(clean(str(error)), os.environ)


def _details(error: UserError) -> str:
    """Write the details of an error to a temporary file.

    Returns:
        A sentence that names the file; empty if there are no details.
    """
    if not error.details:
        return ""
    handle, name = tempfile.mkstemp(prefix="raybench-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(redact_text(error.details, os.environ))
    return f" The whole traceback: {name}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `raybench COMMAND ...`, which is the same as
    `python -m raybench.COMMAND ...`.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    width = max(map(len, COMMANDS))
    overview = "\n".join(f"  {name:<{width}}  {about}" for name, about in COMMANDS.items())
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: raybench COMMAND [--help], raybench --version\n\n{overview}")
        return DONE
    if words[0] == "--version":
        print(f"raybench {raybench.__version__}")
        return DONE
    if words[0] not in COMMANDS:
        sentence = f"unknown command '{clean(words[0])}'; {did_you_mean(words[0], COMMANDS)}"
        message = f"unknown command '{words[0]}'; there are:\n{overview}"
        code = ErrorCode.UNKNOWN_NAME
        if (problem := removed(words[0])) is not None:
            sentence = message = f"{words[0]}: {problem}."
            code = ErrorCode.REMOVED
        print(f"raybench: {message}", file=sys.stderr)
        if "--json" in words:
            error = CommandError("user", sentence, code)
            _print_document(words[0], Ended(WRONG_INPUT, error=error))
        return WRONG_INPUT
    return run(words[0], words[1:])


def run_module(name: str, command: str) -> None:
    """Run a command if its module is executed as `python -m raybench.COMMAND`.

    If the module is imported instead, and there is a function `raybench.COMMAND`, the function
    replaces the module in `sys.modules`, because the module would otherwise hide it.

    Args:
        name: `__name__` of the module.
        command: Name of the command.
    """
    if name == "__main__":
        leave(main([command, *sys.argv[1:]]))
    if name == f"raybench.{command}" and command in raybench.HOMES:
        sys.modules[name] = getattr(raybench, command)
