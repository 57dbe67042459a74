"""The graph of Python sources: names, and which of them define, import, call, raise and catch which.

A module or function CONTAINS its definitions, REQUIRES its imports and calls, IS_A its bases, CAUSES the exceptions
that it raises and SOLVES those that it catches.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

Triple: TypeAlias = tuple[str, str, str]


def triples_of(path: Path) -> Iterator[Triple]:
    """The triples of one source file; none if it is not valid Python."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return
    yield from _triples(path.stem, tree)


def _triples(owner: str, tree: ast.AST) -> Iterator[Triple]:
    for node in ast.iter_child_nodes(tree):
        inner_owner = owner
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield owner, "CONTAINS", node.name
                inner_owner = node.name
                if isinstance(node, ast.ClassDef):
                    yield from ((node.name, "IS_A", base) for base in _names(node.bases))
            case ast.Import() | ast.ImportFrom():
                yield from ((owner, "REQUIRES", alias.name.rpartition(".")[2]) for alias in node.names)
            case ast.Call():
                yield from ((owner, "REQUIRES", name) for name in _names([node.func]))
            case ast.Raise(exc=ast.expr() as exception):
                exception_type = exception.func if isinstance(exception, ast.Call) else exception
                yield from ((owner, "CAUSES", name) for name in _names([exception_type]))
            case ast.ExceptHandler(type=ast.expr() as handled):
                exception_types = handled.elts if isinstance(handled, ast.Tuple) else [handled]
                yield from ((owner, "SOLVES", name) for name in _names(exception_types))
        yield from _triples(inner_owner, node)


def _names(expressions: Iterable[ast.expr]) -> Iterator[str]:
    for expression in expressions:
        if isinstance(expression, ast.Name):
            yield expression.id
        elif isinstance(expression, ast.Attribute):
            yield expression.attr
