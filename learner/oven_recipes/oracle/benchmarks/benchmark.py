"""A benchmark: a question, texts with labels from its published files, and template texts in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from oven_recipes.oracle.benchmark_templates import QUESTIONS

YES = "yes"
NO = "no"
TRUE = frozenset({YES})
"""The labels of a text with the answer yes, if the question names no label."""
FALSE: frozenset[str] = frozenset()


class Labelled(NamedTuple):
    """A text and its labels. `where` is its file and line, or empty."""

    text: str
    labels: frozenset[str]
    where: str = ""


class Item(NamedTuple):
    """A text, a question about it, the right answer (`yes` or `no`), and where the text is from."""

    text: str
    question: str
    answer: str
    where: str = ""


@dataclass(frozen=True)
class Benchmark:
    """One benchmark. `read` yields one published file's texts and raises ConfigError for faults in it."""

    name: str
    files: tuple[str, ...]
    """Names of the published files, as patterns below the benchmark's folder: the first that fits is read. Test parts
    come before training parts, which a model may know, and before files of another layout that are published beside."""
    layout: str
    """The published layout in a few words, for messages and help."""
    read: Callable[[Path], Iterator[Labelled]]
    templates: Callable[[], Iterator[Labelled]]

    def questions(self, labels: frozenset[str]) -> Iterator[tuple[str, str]]:
        """Return each question with its answer for a text with these labels."""
        question = QUESTIONS[self.name]
        for label in question.labels or (YES,):
            yield question.wording.format(label), YES if label in labels else NO


def two_sentences(first: str, second: str) -> str:
    """Return a premise and a hypothesis as one text."""
    return f"first: {first} second: {second}"
