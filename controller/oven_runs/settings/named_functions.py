"""Functions that a setting names, an entry point or FILE.py:FUNCTION, checked without importing them."""

from __future__ import annotations

import ast
from pathlib import Path

from oven_core import plugins
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.files import read_file


def checked_function(owner: str, called: str, kind: str, group: str, given: str) -> str:
    """As it is passed on, with an absolute path. The file is parsed, not imported: that is the learner's. `owner`: what
    names it, and `called` it itself, for messages. Raises ConfigError for one that is not there."""
    place = plugins.split_function(given)
    if place is None:
        known = plugins.points(group)
        if given not in known:
            nearest = UnknownNameError(kind, given, known)
            raise ConfigError(f"{owner}: {nearest} (a function of yours: FILE.py:FUNCTION)")
        return given
    file, function = place
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
    """The names that a statement of a module gives to something that could be called."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []
