"""Checks names: `python docs/names.py` lists variables, fields, functions and classes with names that say nothing.

A bare participle or preposition (`found`, `given`, `at`) does not tell a reader what the value holds. Exit code 1 if
one of the packages, the tests or the benches has such a name. Arguments are beginnings of paths to check.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("controller", "agents", "learner", "kg", "tui", "bench", "tests")
BANNED: Final = frozenset(
    (
        *("found", "said", "told", "asked", "given", "kept", "taken", "heard", "spoken", "left", "of", "at", "one"),
        *("some", "place", "other", "Found", "Said", "Told", "Asked", "Given", "Kept", "Taken", "Heard", "Spoken"),
        *("Left", "One", "Place", "Other"),
    )
)
"""Add to it what proves unclear; every entry is checked in every kind of name."""
BANNED_IN_PRODUCT: Final = frozenset(
    (
        *("most", "near", "far", "apart", "aside", "saw", "made", "taught", "worth", "sure", "few", "what", "where"),
        *("tell", "hear", "lives", "way", "without", "called", "carried", "wanted", "drawn"),
    )
)
"""Names that tests and benches still have."""
FORMAT_KEYS: Final = frozenset({("kg/oven_kg/graph/graph_yaml.py", "at")})
"""Fields that are keys of a file format, as (path, name)."""


class BannedName(NamedTuple):
    path: str
    line: int
    name: str


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that `tree` binds, with its line: variables, parameters, fields, attributes, functions, classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name


def banned_names(path: Path) -> list[BannedName]:
    """The banned names that one file binds. A leading underscore does not excuse a name."""
    relative = path.relative_to(ROOT).as_posix()
    banned = BANNED if relative.startswith(("bench/", "tests/")) else BANNED | BANNED_IN_PRODUCT
    names = bound_names(ast.parse(path.read_text(), str(path)))
    return [
        BannedName(relative, line, name)
        for line, name in names
        if name.lstrip("_") in banned and (relative, name) not in FORMAT_KEYS
    ]


def main(prefixes: list[str]) -> int:
    """Print the banned names in the files whose paths begin with one of `prefixes` (default: in all files)."""
    files = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    errors = [
        error
        for file in files
        if not prefixes or file.relative_to(ROOT).as_posix().startswith(tuple(prefixes))
        for error in banned_names(file)
    ]
    for error in errors:
        print(f"{error.path}:{error.line}: the name {error.name!r} says nothing: name what it holds")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
