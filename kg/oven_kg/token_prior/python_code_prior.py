"""A token prior from a graph of Python sources, as the source experiment made one.

Nodes are names; a module or function CONTAINS what it defines, REQUIRES what it imports and calls, IS_A its bases,
CAUSES what it raises and SOLVES what it catches.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oven_core.protocol.token_scores import decode, encode, vocabulary_sha
from oven_kg.token_prior.label_scores import PREFIXES, node_importance, token_scores, top
from oven_kg.token_prior.prior import Longest

Triple = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class SourcePrior:
    """`scores` are what comes back from the `blob`, 4 bits each. Every node has an edge: it comes from one."""

    blob: bytes
    scores: dict[int, float]
    nodes: int
    edges: int


def source_prior(files: Sequence[Path], vocabulary: Sequence[str], k: int = 358) -> SourcePrior:
    """From the sources in `files`, for the tokens' texts by id. Files that are not Python are passed over. Raises
    ConfigError where no token is in a name."""
    triples = [triple for path in files for triple in triples_of(path)]
    nodes = sorted({end for src, _, dst in triples for end in (src, dst)})
    texts = {text: id_ for id_, text in reversed(list(enumerate(vocabulary))) if text}
    scores = token_scores(node_importance(nodes, triples), _labels, Longest(texts))
    sha = vocabulary_sha(vocabulary)
    blob = encode(top(scores, k), len(vocabulary), sha)
    return SourcePrior(blob, decode(blob, len(vocabulary), sha), len(nodes), len(set(triples)))


def triples_of(path: Path) -> Iterator[Triple]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return
    yield from _within(path.stem, tree)


def _within(owner: str, tree: ast.AST) -> Iterator[Triple]:
    for node in ast.iter_child_nodes(tree):
        inner = owner
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield owner, "CONTAINS", node.name
                inner = node.name
                if isinstance(node, ast.ClassDef):
                    yield from ((inner, "IS_A", name) for name in _names(node.bases))
            case ast.Import() | ast.ImportFrom():
                yield from ((owner, "REQUIRES", alias.name.rpartition(".")[2]) for alias in node.names)
            case ast.Call():
                yield from ((owner, "REQUIRES", name) for name in _names([node.func]))
            case ast.Raise(exc=ast.expr() as raised):
                called = raised.func if isinstance(raised, ast.Call) else raised
                yield from ((owner, "CAUSES", name) for name in _names([called]))
            case ast.ExceptHandler(type=ast.expr() as caught):
                kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
                yield from ((owner, "SOLVES", name) for name in _names(kinds))
        yield from _within(inner, node)


def _names(expressions: Iterable[ast.expr]) -> Iterator[str]:
    for expression in expressions:
        if isinstance(expression, ast.Name):
            yield expression.id
        elif isinstance(expression, ast.Attribute):
            yield expression.attr


AROUND: Final = (*PREFIXES, ".", "(")


def _labels(name: str) -> Iterator[str]:
    """A name and its parts, as they are in a program."""
    for word in dict.fromkeys((name, *name.split("_"))):
        if word:
            yield from (before + word for before in AROUND)
