"""Write a knowledge graph of Python code as triples for `kg import`: definitions, calls, raised and caught exceptions.

python examples/code_graph.py SOURCES > code.csv
oven-controller kg import code.csv --to code --cut-cycles
oven-controller kg info code

A module or function CONTAINS its definitions, REQUIRES its imports and calls, IS_A its bases, CAUSES the exceptions
that it raises and SOLVES those that it catches.
"""

from __future__ import annotations

import ast
import csv
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


def main(folders: list[str]) -> None:
    if not folders:
        raise SystemExit("usage: code_graph.py FOLDER…; give folders with Python sources")
    rows = csv.writer(sys.stdout)
    rows.writerow(("source", "relation", "target"))
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, ValueError):  # not Python, or not UTF-8
                continue
            rows.writerows(triple for triple in triples(path.stem, tree) if all(triple))


def triples(owner: str, tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Return the triples of a syntax tree that belongs to the module, class or function `owner`."""
    for node in ast.iter_child_nodes(tree):
        inner_owner = owner
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield owner, "CONTAINS", node.name
                inner_owner = node.name
                if isinstance(node, ast.ClassDef):
                    yield from ((node.name, "IS_A", base) for base in names(node.bases))
            case ast.Import() | ast.ImportFrom():
                yield from ((owner, "REQUIRES", alias.name.rpartition(".")[2]) for alias in node.names)
            case ast.Call():
                yield from ((owner, "REQUIRES", name) for name in names([node.func]))
            case ast.Raise(exc=ast.expr() as exception):
                exception_type = exception.func if isinstance(exception, ast.Call) else exception
                yield from ((owner, "CAUSES", name) for name in names([exception_type]))
            case ast.ExceptHandler(type=ast.expr() as handled):
                exception_types = handled.elts if isinstance(handled, ast.Tuple) else [handled]
                yield from ((owner, "SOLVES", name) for name in names(exception_types))
        yield from triples(inner_owner, node)


def names(expressions: Iterable[ast.expr]) -> Iterator[str]:
    """Return the last name of each expression that is a name or an attribute."""
    for expression in expressions:
        if isinstance(expression, ast.Name):
            yield expression.id
        elif isinstance(expression, ast.Attribute):
            yield expression.attr


if __name__ == "__main__":
    main(sys.argv[1:])
