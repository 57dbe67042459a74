"""Load plug-ins (agents, recipes, rewards, graph loaders) from entry points, and functions from users' files."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from oven_core.errors import ConfigError, UnknownNameError, reason
from oven_core.files import read_file

if TYPE_CHECKING:  # slow to import, and a command that loads no plug-in does not need it
    from importlib.metadata import EntryPoint


def find_plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of `oven.<group>` by name, sorted by name, without importing them."""
    return {point.name: point for point in _entry_points(f"oven.{group}", tuple(sys.path))}


@functools.lru_cache(maxsize=64)
def _entry_points(group: str, _path: tuple[str, ...]) -> list[EntryPoint]:
    """Return the entry points of a group, cached because finding them reads a file of every installed package.

    `_path` is only a cache key. Packages that are installed later are not found."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group), key=lambda point: point.name)


def load(group: str, kind: str, name: str) -> Any:
    """Import a plug-in. Raises UnknownNameError with similar names, or ConfigError if the import fails."""
    installed = find_plugins(group)
    if name not in installed:
        raise UnknownNameError(kind, name, installed)
    return import_object(kind, name, installed[name].value)


def import_object(kind: str, name: str, target: str) -> Any:
    """Import the object at `target` (`module:attribute`). Raises ConfigError, which mentions `kind` and `name`."""
    try:
        return resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the {kind} {name!r} ({target}) cannot be imported: {error}; "
            'check that its extra is installed, or run `pip install "oven-controller[all]"`'
        ) from error


def split_function(name_or_file: str) -> tuple[str, str] | None:
    """Split "FILE.py:FUNCTION" into file and function. Return None for the name of an entry point."""
    file, colon, function = name_or_file.rpartition(":")
    return (file, function) if colon and file.endswith(".py") else None


def resolve_function_name(owner: str, description: str, kind: str, group: str, name: str) -> str:
    """Check that a function exists, and return its name, with an absolute path if it is in a file.

    `name` is an entry point of `oven.<group>` or FILE.py:FUNCTION. The file is only parsed, because the learner imports
    it later. In errors, `owner` names the setting, `description` the function, and `kind` the kind of entry point.
    Raises ConfigError if the function does not exist."""
    file_and_function = split_function(name)
    if file_and_function is None:
        installed = find_plugins(group)
        if name not in installed:
            unknown = UnknownNameError(kind, name, installed)
            raise ConfigError(f"{owner}: {unknown} (or use your own function as FILE.py:FUNCTION)")
        return name
    file, function = file_and_function
    text = read_file(Path(file), f"{description}:")
    try:
        tree = ast.parse(text, file)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigError(f"{description}: {file}{line} is not valid Python") from error
    defined_names = [defined for node in tree.body for defined in _defined_names(node)]
    if function not in defined_names:
        raise ConfigError(f"{owner}: {UnknownNameError(f'function in {file}', function, defined_names)}")
    return f"{Path(file).absolute()}:{function}"


def _defined_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement binds and that could be functions."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def load_function(group: str, kind: str, name_or_file: str, *, description: str, module: str) -> Callable[..., Any]:
    """Import an entry point of `oven.<group>`, or FILE.py:FUNCTION. The file becomes the module `module`.

    `description` states the purpose of the function in errors. Raises ConfigError or UnknownNameError."""
    parts = split_function(name_or_file)
    loaded = load(group, kind, name_or_file) if parts is None else _load_from_file(description, module, *parts)
    if not callable(loaded):
        raise ConfigError(f"{description} ({name_or_file}) is a {type(loaded).__name__}, but must be a function")
    function: Callable[..., Any] = loaded
    return function


def _load_from_file(description: str, module: str, file: str, function: str) -> Any:
    spec = spec_from_file_location(module, Path(file))
    if spec is None or spec.loader is None:
        raise ConfigError(f"{description}: {file} is not a Python file")
    loaded = module_from_spec(spec)
    sys.modules[module] = loaded  # so that its objects can be pickled
    try:
        spec.loader.exec_module(loaded)
        return getattr(loaded, function)
    except Exception as error:
        raise ConfigError(f"{description}: {file} cannot be used: {reason(error)}") from error
