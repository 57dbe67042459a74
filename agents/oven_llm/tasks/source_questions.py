"""Questions about a Python module with answers that `ast` gives: spans, counts, yes or no, and none. Pure."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from oven_llm.tasks.example import NO, UNANSWERABLE, YES, Kind, Reference
from oven_llm.tasks.source_paragraphs import Definition, Function, Source

LONGEST_DEFAULT: Final = 40
"""Characters of a default value; a longer one is a text to compare, and not a span."""


@dataclass(frozen=True)
class Asked:
    question: str
    reference: Reference


Maker = Callable[[Source, Source, random.Random], Iterator[Asked]]
"""(module, another one, randomness) → questions, in an order drawn."""


def _shuffled(found: Sequence[Definition], draw: random.Random) -> list[Definition]:
    return draw.sample(list(found), len(found))


def default_values(module: Source, other: Source, draw: random.Random) -> Iterator[Asked]:
    """Spans: the default value of a parameter, as it is written."""
    for one in _shuffled(module.functions, draw):
        written = [(name, module.written(value)) for name, value in _defaults(one.node)]
        found = [(name, text) for name, text in written if len(text) <= LONGEST_DEFAULT and "\n" not in text]
        if found:
            name, text = draw.choice(found)
            asked = f"What is the default value of the parameter `{name}` of `{one.name}`?"
            yield Asked(asked, Reference(text, one.paragraphs, "extractive"))


def base_classes(module: Source, other: Source, draw: random.Random) -> Iterator[Asked]:
    """Spans, several of them at times: the classes that one derives from."""
    for one in _shuffled(module.classes, draw):
        assert isinstance(one.node, ast.ClassDef)
        if one.node.bases:
            bases = ", ".join(module.written(base) for base in one.node.bases)
            asked = f"Which classes does the class `{one.name}` name as its bases?"
            yield Asked(asked, Reference(bases, one.paragraphs[:1], "extractive"))


def parameter_counts(module: Source, other: Source, draw: random.Random) -> Iterator[Asked]:
    """Counts within one paragraph."""
    for one in _shuffled(module.functions, draw):
        assert isinstance(one.node, Function)
        if (count := len(_parameters(one.node))) > 1:
            asked = f"How many parameters does `{one.name}` take, with self and with those after * and **?"
            yield Asked(asked, Reference(str(count), one.paragraphs, "abstractive"))


def method_counts(module: Source, other: Source, draw: random.Random) -> Iterator[Asked]:
    """Counts over several paragraphs."""
    for one in _shuffled(module.classes, draw):
        assert isinstance(one.node, ast.ClassDef)
        methods = [step for step in ast.walk(one.node) if isinstance(step, Function)]
        direct = [step for step in one.node.body if isinstance(step, Function)]
        if len(direct) > 1 and len(methods) == len(direct):  # none in a branch or within another
            asked = f"How many methods does the body of the class `{one.name}` define?"
            evidence = tuple(dict.fromkeys(one.paragraphs[1:]))
            yield Asked(asked, Reference(str(len(direct)), evidence, "abstractive"))


def generators(module: Source, other: Source, draw: random.Random) -> Iterator[Asked]:
    """Yes or no, with even odds, where a module has both."""
    asked = "Is there a `yield` in the body of `{}` itself, outside of functions that it defines?"
    by_answer: dict[str, list[Asked]] = {YES: [], NO: []}
    for one in _shuffled(module.functions, draw):
        answer = YES if _yields(one.node) else NO
        by_answer[answer].append(Asked(asked.format(one.name), Reference(answer, one.paragraphs, "boolean")))
    yield from _even(by_answer, draw)


def own_methods(module: Source, other: Source, draw: random.Random) -> Iterator[Asked]:
    """Yes or no, with even odds: whether a class defines a method that a class of its module defines."""
    asked = "Does the body of the class `{}` define a method `{}`?"
    by_answer: dict[str, list[Asked]] = {YES: [], NO: []}
    methods = {one.name: [step.name for step in one.node.body if isinstance(step, Function)] for one in module.classes}
    every = sorted(set().union(*methods.values()))
    for one in _shuffled(module.classes, draw):
        known = _names(one.node)
        others = [name for name in every if name not in known]
        for answer, names in ((YES, methods[one.name]), (NO, others)):
            if names:
                found = asked.format(one.name, draw.choice(names))
                evidence = tuple(dict.fromkeys(one.paragraphs))
                by_answer[answer].append(Asked(found, Reference(answer, evidence, "boolean")))
    yield from _even(by_answer, draw)


def _even(by_answer: Mapping[str, Sequence[Asked]], draw: random.Random) -> Iterator[Asked]:
    """Pairs of a yes and a no, either first."""
    for pair in zip(*by_answer.values(), strict=False):
        yield from draw.sample(pair, 2)


def _names(node: ast.AST) -> set[str]:
    """All that a class binds or names, in its methods too: about none of these a No would be beyond doubt."""
    found = {one.name for one in ast.walk(node) if isinstance(one, Function | ast.ClassDef)}
    return found | {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def unknown_functions(module: Source, other: Source, draw: random.Random) -> Iterator[Asked]:
    """Unanswerable: about a function of another module, whose name this one does not have anywhere."""
    for asked in default_values(other, module, draw):
        name = asked.question.rsplit("`", 2)[1]
        if not module.words & set(name.split(".")):
            yield Asked(asked.question, Reference(UNANSWERABLE, (), "none"))


MAKERS: Final[tuple[tuple[Kind, Maker], ...]] = (
    ("extractive", default_values),
    ("abstractive", parameter_counts),
    ("boolean", generators),
    ("none", unknown_functions),
    ("boolean", own_methods),
    ("extractive", base_classes),
    ("abstractive", method_counts),
)
"""In the order in which questions are taken, one of each in turn."""


def _parameters(node: Function) -> list[ast.arg]:
    given = node.args
    stars = [one for one in (given.vararg, given.kwarg) if one is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *stars]


def _defaults(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(parameter, its default)."""
    assert isinstance(node, Function)
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    with_default = positional[len(positional) - len(given.defaults) :]
    for parameter, value in zip(with_default, given.defaults, strict=True):
        yield parameter.arg, value
    for parameter, other in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if other is not None:
            yield parameter.arg, other


def _yields(node: ast.AST) -> bool:
    waiting: list[ast.AST] = list(getattr(node, "body", ()))
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(one, Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(one)
    return False
