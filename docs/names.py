"""Checks names: `python docs/names.py` lists variables, fields, functions and classes with names that say nothing.

A bare participle or preposition (`found`, `given`, `at`) does not tell a reader what the value holds. `STRICT`
packages must have none; elsewhere the count may only fall: `python docs/names.py --counts` prints it by package. Exit
code 1 if a strict package has a banned name, or another package has more than its limit.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
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
STRICT: Final = (
    "controller/oven_core/",
    "agents/oven_agents/sdk/",
    "agents/oven_agents/runtime/",
    "agents/oven_agents/shipped/",
    "learner/oven_learner/client/",
    "learner/oven_learner/link/",
)
"""Beginnings of paths in which no banned name is allowed: the files that people read first."""


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
    names = bound_names(ast.parse(path.read_text(), str(path)))
    return [BannedName(relative, line, name) for line, name in names if name.lstrip("_") in BANNED]


def package_of(path: str) -> str:
    """The package of a file, or the folder for files outside packages: `controller/oven_core`, `tests`."""
    parts = path.split("/")
    return parts[0] if parts[0] == "tests" else "/".join(parts[:2])


def main(arguments: list[str]) -> int:
    """Print banned names in strict packages and the counts of all packages; return the exit code."""
    files = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    hits = [hit for file in files for hit in banned_names(file)]
    prefixes = tuple(argument for argument in arguments if not argument.startswith("-"))
    if prefixes:
        for hit in hits:
            if hit.path.startswith(prefixes):
                print(f"{hit.path}:{hit.line}: {hit.name}")
        return 0
    errors = [hit for hit in hits if hit.path.startswith(STRICT)]
    for hit in errors:
        print(f"{hit.path}:{hit.line}: the name {hit.name!r} says nothing: name what it holds")
    if "--counts" in arguments:
        for package, count in sorted(Counter(package_of(hit.path) for hit in hits).items()):
            print(f"{package:32} {count}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
