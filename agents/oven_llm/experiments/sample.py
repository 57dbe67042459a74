"""The questions of an experiment, and what a model is told and given to read for each. Drawn by seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from oven_core.errors import ConfigError
from oven_llm.tasks.example import Document, Example


@dataclass(frozen=True)
class Posed:
    """An example as it is put to a model."""

    example: Example
    query: str
    context: tuple[str, ...]
    """Paragraphs: its document's, among those of other documents."""


def drawn(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """`count` of them in an order drawn; -1: all, in theirs. Raises ConfigError for 0 and for more than there are."""
    if count == -1:
        return list(examples)
    if count < 1:
        raise ConfigError(f"-n {count}: give how many questions, or -1 for all {len(examples)}")
    if count > len(examples):
        raise ConfigError(f"-n {count}: there are {len(examples)} questions; give at most so many, or -1 for all")
    return random.Random(seed).sample(list(examples), count)


def posed(
    examples: Sequence[Example], among: Sequence[Example], instructions: str, others: int, seed: int
) -> list[Posed]:
    """Each with the paragraphs of `others` documents drawn from those of `among`, in an order drawn. Raises ConfigError
    where there are not so many."""
    documents = list({one.document.id: one.document for one in among}.values())
    if not 0 <= others < len(documents):
        raise ConfigError(
            f"--num-distractors {others}: give 0 to {len(documents) - 1}; the data have {len(documents)} documents"
        )
    return [_posed(one, documents, instructions, others, random.Random(f"{seed} {one.id}")) for one in examples]


def _posed(
    example: Example, documents: Sequence[Document], instructions: str, others: int, draw: random.Random
) -> Posed:
    strangers = [one for one in documents if one.id != example.document.id]
    read = [example.document, *draw.sample(strangers, others)]
    draw.shuffle(read)
    query = f"About the document “{example.document.title}”: {example.question}\n\n{instructions}"
    paragraphs: list[str] = []
    for document in read:
        paragraphs += [f"# {document.title}", *document.paragraphs] if others else document.paragraphs
    return Posed(example, query, tuple(paragraphs))
