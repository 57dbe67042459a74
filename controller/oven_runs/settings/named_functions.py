"""Check a function that a setting names (an entry point or FILE.py:FUNCTION) without importing it."""

from __future__ import annotations

import ast
from pathlib import Path

from oven_core import plugins
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.files import read_file


def checked_function(owner: str, called: str, kind: str, group: str, name: str) -> str:
    """Return the function's name, with an absolute path if it is in a file.

    The file is parsed and not imported, which is up to the learner. `owner` and `called` describe the setting and the
    function in error messages. Raises ConfigError if the function does not exist.
    """
    file_and_function = plugins.split_function(name)
    if file_and_function is None:
        installed = plugins.points(group)
        if name not in installed:
            unknown = UnknownNameError(kind, name, installed)
            raise ConfigError(f"{owner}: {unknown} (or your own function as FILE.py:FUNCTION)")
        return name
    file, function = file_and_function
    text = read_file(Path(file), f"{called}:")
    try:
        tree = ast.parse(text, file)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigError(f"{called}: {file}{line} is not Python") from error
    defined = [defined for node in tree.body for defined in _defined(node)]
    if function not in defined:
        raise ConfigError(f"{owner}: {UnknownNameError(f'function in {file}', function, defined)}")
    return f"{Path(file).absolute()}:{function}"


def _defined(node: ast.stmt) -> list[str]:
    """The names that a module's statement binds and that could be functions."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []
