"""Import of the user's own code, conversion of its errors to UserError, and checks of its settings.

Settings are named arguments of a constructor or function. The settings of a workload are set under
the key `model` of a run spec, and can be searched: `space: {model: {hidden_units: [64, 128]}}`.

Files in the user's folder must not hide a package that raybench imports. Ray's workers search that
folder for modules first, and would run a script `optuna.py` instead of importing Optuna.
"""

import contextlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import all_suffixes
from pathlib import Path
from types import ModuleType
from typing import Any

from raybench.spec.errors import ErrorCode, UserError, did_you_mean
from raybench.spec.text import clean, shorten

NEVER_IMPORTED = {
    *("aifc", "antigravity", "cgi", "cgitb", "chunk", "crypt", "idlelib", "imaplib", "lib2to3"),
    *("mailbox", "mailcap", "nntplib", "poplib", "sched", "sndhdr", "sunau", "telnetlib", "this"),
    *("trace", "turtle", "turtledemo", "wave", "xdrlib"),
}
"""Modules of the standard library that neither raybench nor its dependencies import."""
PACKAGES = {
    *("PIL", "absl", "aiohttp", "alembic", "annotated_types", "attr", "attrs", "certifi"),
    *("charset_normalizer", "click", "cmaes", "colorful", "colorlog", "contourpy", "cycler"),
    *("dateutil", "distlib", "filelock", "flatbuffers", "fontTools", "frozenlist", "fsspec"),
    *("gast", "google", "greenlet", "grpc", "h5py", "idna", "jinja2", "joblib", "jsonschema"),
    *("keras", "kiwisolver", "mako", "markdown_it", "markupsafe", "matplotlib", "mdurl"),
    *("ml_dtypes", "mpmath", "msgpack", "multidict", "namex", "networkx", "numpy", "opencensus"),
    *("opt_einsum", "optree", "optuna", "packaging", "pandas", "platformdirs", "pooch"),
    *("prometheus_client", "propcache", "psutil", "pyarrow", "pydantic", "pydantic_core"),
    *("pygments", "pynvml", "pyparsing", "pytz", "ray", "raybench", "referencing", "requests"),
    *("rich", "rpds", "scipy", "six", "sklearn", "smart_open", "sqlalchemy", "sympy"),
    *("tensorboardX", "tensorflow", "termcolor", "threadpoolctl", "torch", "tqdm"),
    *("typing_extensions", "urllib3", "virtualenv", "wrapt", "yaml", "yarl"),
}
"""Packages that raybench and its direct and indirect dependencies import."""


def refuse_hiding_files(folder: Path) -> None:
    """Raise UserError if a file or package in a folder hides a module that raybench needs.

    Args:
        folder: Folder that will be the first on `sys.path`.
    """
    needed_modules = (sys.stdlib_module_names - NEVER_IMPORTED) | PACKAGES
    for entry in sorted(folder.iterdir()):
        name, suffix = entry.name.partition(".")[::2]
        is_module = f".{suffix}" in all_suffixes() and entry.is_file()
        is_package = not suffix and (entry / "__init__.py").is_file()
        is_harmless = name in sys.builtin_module_names or entry.resolve() == Path(_RAYBENCH_FOLDER)
        if name in needed_modules and (is_module or is_package) and not is_harmless:
            raise UserError(
                f"{clean(entry.name)} in {clean(str(folder))} hides the module {name}, which "
                "raybench needs; rename it.",
                ErrorCode.CONFLICT,
            )


_LIBRARIES = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib"))
_RAYBENCH_FOLDER = str(Path(__file__).resolve().parents[1])
MAX_ERROR = 300
"""Maximum number of characters of an exception's text in the message of a UserError; its `details`
contain the complete text."""


@contextlib.contextmanager
def user_code_errors(
    what: str, advice: str = "", code: ErrorCode = ErrorCode.USER_CODE
) -> Iterator[None]:
    """Context manager that turns any exception except KeyboardInterrupt into a UserError.

    An exception that already is a UserError is not changed.

    Args:
        what: Start of the message; file, line and error follow in parentheses.
        advice: End of the message.
        code: Error code of the UserError.

    Raises:
        UserError: The user's code failed; `details` contains the complete traceback.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        text = shorten(" ".join(str(error).split()), MAX_ERROR)
        kind = f"{type(error).__name__}: {text}" if text else type(error).__name__
        if isinstance(error, SystemExit):
            kind = f"sys.exit({error.code!r})"
        place = user_code_place(traceback.extract_tb(error.__traceback__))
        place_text = f"{place}: " if place else ""
        raise UserError(
            f"{what} ({place_text}{kind}){advice}.", code, details=traceback.format_exc()
        ) from error


def user_code_place(steps: traceback.StackSummary) -> str:
    """Return "FILE, line NUMBER" for the innermost stack frame in the user's code; an empty string
    if there is no such frame."""
    frames = [
        step
        for step in steps
        if Path(step.filename).is_file()
        and not step.filename.startswith((*_LIBRARIES, _RAYBENCH_FOLDER))
        and "-packages" not in step.filename
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def known_settings(
    build: Callable[..., Any], num_passed: int = 0, *, takes_any: bool = True
) -> dict[str, Any] | None:
    """Return the settings that a constructor or function accepts, with their defaults.

    Args:
        build: The constructor or function.
        num_passed: Number of leading parameters that raybench passes itself.
        takes_any: Whether a parameter `**kwargs` means that any name is allowed. Otherwise, only
            named parameters are settings.

    Returns:
        Defaults by name (`inspect.Parameter.empty` for a required setting), or None if any name is
        allowed.
    """
    parameters = list(inspect.signature(build).parameters.values())[num_passed:]
    if takes_any and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    defaults = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.kind not in variadic
    }
    for parameter in parameters:
        # The default of a parameter of type float may be an int, as in `momentum: float = 0`.
        if "float" in str(parameter.annotation) and type(parameter.default) is int:
            defaults[parameter.name] = float(parameter.default)
    return defaults


def check_settings(
    defaults: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    source: str,
    *,
    key: str = "model",
) -> None:
    """Check settings against the parameters of a constructor or function.

    Args:
        defaults: Result of `known_settings`. A setting must have the same type as its default.
        settings: Settings by name.
        source: Name of the constructor or function in error messages.
        key: Key of the run spec that contains the settings.

    Raises:
        UserError: A setting is unknown, is missing, or has another type than its default.
    """
    if defaults is None:
        return
    for name, value in settings.items():
        if name not in defaults:
            otherwise = "" if defaults else "its constructor has no parameters."
            hint = did_you_mean(name, defaults, otherwise)
            raise UserError(
                f"{key}.{name}: {source} has no such setting; {hint}", ErrorCode.UNKNOWN_KEY
            )
        if not _has_type_of(defaults[name], value):
            raise UserError(
                f"{key}.{name}: {value!r} has another type than the default of {source}, "
                f"{defaults[name]!r}.",
                ErrorCode.INVALID_VALUE,
            )
    for name, default in defaults.items():
        if default is inspect.Parameter.empty and name not in settings:
            raise UserError(
                f"{source} needs {key}.{name}: set it under fixed.{key} or space.{key}.",
                ErrorCode.MISSING,
            )


def _has_type_of(default: Any, value: Any) -> bool:
    """Return whether a value has the type of a setting's default; True if that type is unknown."""
    if default is None or value is None or default is inspect.Parameter.empty:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, int | float):
        is_number = isinstance(value, int | float)
        return is_number and (isinstance(default, float) or float(value).is_integer())
    return not isinstance(default, str) or isinstance(value, str)


def import_user_module(module_name: str, source: str) -> ModuleType:
    """Import a user's module from the current folder or another folder on `sys.path`.

    Args:
        module_name: Name of the module.
        source: Start of the error message.

    Raises:
        UserError: The module cannot be imported.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    advice = "; run the command in the folder of the module, or correct the module"
    with user_code_errors(f"{source}: module '{module_name}' cannot be imported", advice=advice):
        return importlib.import_module(module_name)


def import_loop(name: str) -> Callable[[Any], object]:
    """Import the user's training function that `FILE.py:FUNCTION` names, and return it.

    The path FILE.py is relative to the current folder or to a folder on `sys.path`.

    Raises:
        UserError: The file or function is missing, or the file cannot be imported.
    """
    file, _, function = name.rpartition(":")
    if (path := loop_file(name)) is None:
        raise UserError(
            f"{name}: there is no file {file} in {Path.cwd()}; run the command in its folder.",
            ErrorCode.NOT_FOUND,
        )
    module = _import_file(path.resolve(), name)
    loop: Callable[[Any], object] | None = getattr(module, function, None)
    if isinstance(loop, type):
        raise UserError(
            f"{name}: {function} is a class; write a model as {path.stem}:{function}.",
            ErrorCode.INVALID_VALUE,
        )
    if not callable(loop):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UserError(
            f"{name}: {file} has no function {function}; {did_you_mean(function, functions)}",
            ErrorCode.UNKNOWN_NAME,
        )
    return loop


def loop_file(name: str) -> Path | None:
    """Find the file that `FILE.py:FUNCTION` names, in the current folder or a folder on `sys.path`.

    Returns:
        Path of the file; None if there is no such file.
    """
    file = name.rpartition(":")[0]
    folders = [Path.cwd(), *map(Path, sys.path)]
    return next((folder / file for folder in folders if (folder / file).is_file()), None)


_modules: dict[Path, ModuleType] = {}
"""Imported modules by path, since files in different folders may have the same name."""
_folders: list[Path] = []
"""Folders of the imported files, each of which has been put first on `sys.path`."""


def _import_file(path: Path, name: str) -> ModuleType:
    """Import a file, as a module of its package if it is in a package, and otherwise by its path.

    The error message begins with `name`.
    """
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts, folder = [folder.name, *parts], folder.parent
    _put_first_on_path(folder)
    if path in _modules:
        return _modules[path]
    with user_code_errors(f"{name}: {path.name} cannot be imported", advice="; correct it"):
        if len(parts) > 1:
            module = importlib.import_module(".".join(parts))
        else:  # by path, since another module may have the same name
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(path.stem, module)
            spec.loader.exec_module(module)
    _modules[path] = module
    return module


def _put_first_on_path(folder: Path) -> None:
    """Put a folder first on `sys.path`, before the folders of other imported files.

    A module that was imported from one of the other folders is removed from `sys.modules` if this
    folder has a file of the same name, so that the next import reads this folder's file. This is
    needed to run two versions of the user's code in the same process.
    """
    refuse_hiding_files(folder)
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    other_folders = [other_folder for other_folder in _folders if other_folder != folder]
    if folder not in _folders:
        _folders.append(folder)
    for key, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        for other_folder in other_folders:
            if (
                file.is_relative_to(other_folder)
                and (folder / file.relative_to(other_folder)).is_file()
            ):
                sys.modules.pop(key, None)
