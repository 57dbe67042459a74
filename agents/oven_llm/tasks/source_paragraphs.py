"""A Python module's source as a document: its sections, paragraphs and definitions, by `ast`. Pure."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef
TOP = "Top level"


@dataclass(frozen=True)
class Paragraph:
    """Consecutive lines of a source, without the blank lines around them."""

    section: str
    text: str
    nodes: tuple[ast.stmt, ...]
    """The statements whose lines these are; of a class's head, the class."""


@dataclass(frozen=True)
class Definition:
    """A function, method or class that is defined once in its module."""

    name: str
    """`function`, `Class` or `Class.method`."""
    node: Function | ast.ClassDef
    paragraphs: tuple[str, ...]
    """The one that it is in; of a class, its head and those of all its methods."""


@dataclass(frozen=True)
class Source:
    """One module. `paragraphs` cover all of its statements."""

    module: str
    text: str
    lines: tuple[str, ...]
    paragraphs: tuple[Paragraph, ...]
    functions: tuple[Definition, ...]
    classes: tuple[Definition, ...]
    words: frozenset[str]
    """All names in its text, comments included."""

    def written(self, node: ast.expr) -> str:
        """An expression as the source has it."""
        if node.lineno == node.end_lineno:  # get_source_segment splits the whole text each time
            return self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()
        return ast.get_source_segment(self.text, node) or ast.unparse(node)


def source_of(module: str, text: str) -> Source:
    """Raises SyntaxError and ValueError for what is not Python."""
    tree, lines = ast.parse(text), text.split("\n")  # splitlines() also parts at a form feed
    paragraphs = list(_paragraphs(tree.body, lines))
    where = {node: paragraph.text for paragraph in paragraphs for node in paragraph.nodes}
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef)]
    methods = {one.name: [step for step in one.body if isinstance(step, Function)] for one in classes}
    bound = _bound(tree)
    top = [one for one in tree.body if isinstance(one, Function)]
    functions = [Definition(one.name, one, (where[one],)) for one in top if bound[one.name] == 1]
    for one in classes:
        inside = _bound(one)
        functions += [
            Definition(f"{one.name}.{method.name}", method, (where[method],))
            for method in methods[one.name]
            if inside[method.name] == 1 and bound[one.name] == 1
        ]
    known = [
        Definition(one.name, one, (where[one], *(where[method] for method in methods[one.name])))
        for one in classes
        if bound[one.name] == 1
    ]
    return Source(
        module,
        text,
        tuple(lines),
        tuple(paragraphs),
        tuple(functions),
        tuple(known),
        frozenset(re.findall(r"\w+", text)),
    )


def _paragraphs(body: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[Paragraph]:
    """A function each; a class's head, and its methods each; what stands between, as it is parted by blank lines."""
    for part in _parts(body, lines):
        first = part[0]
        if not isinstance(first, ast.ClassDef):
            yield Paragraph(TOP, _cut(lines, part[0], part[-1]), part)
            continue
        section = f"class {first.name}"
        methods = [step for step in first.body if isinstance(step, Function)]
        begin = _begin(first)
        until = min((_begin(step) for step in methods), default=_end(first) + 1) - 1
        yield Paragraph(section, _text(lines, begin, until), (first,))
        for part in _parts([step for step in first.body if step in methods or step.lineno > until], lines):
            yield Paragraph(section, _cut(lines, part[0], part[-1]), part)


def _parts(body: Sequence[ast.stmt], lines: Sequence[str]) -> Iterator[tuple[ast.stmt, ...]]:
    """Runs of statements: a function or class alone, others together until a blank line."""
    held: list[ast.stmt] = []
    for node in body:
        alone = isinstance(node, Function | ast.ClassDef)
        if held and (alone or any(not line.strip() for line in lines[_end(held[-1]) : _begin(node) - 1])):
            yield tuple(held)
            held = []
        if alone:
            yield (node,)
        else:
            held.append(node)
    if held:
        yield tuple(held)


def _begin(node: ast.stmt) -> int:
    """Its first line, from 1, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _end(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _cut(lines: Sequence[str], first: ast.stmt, last: ast.stmt) -> str:
    return _text(lines, _begin(first), _end(last))


def _text(lines: Sequence[str], first: int, last: int) -> str:
    """Lines `first` to `last`, from 1."""
    return "\n".join(lines[first - 1 : last]).strip("\n").rstrip()


def _bound(scope: ast.Module | ast.ClassDef) -> Counter[str]:
    """How often each name is bound in a scope: by def, class, import, or as a target, in its branches, too."""
    found: Counter[str] = Counter()
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.ClassDef):
            found[node.name] += 1
            continue  # what is inside binds in another scope
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found[node.id] += 1
        elif isinstance(node, ast.alias):
            found[(node.asname or node.name).split(".")[0]] += 1
        waiting += ast.iter_child_nodes(node)
    return found
