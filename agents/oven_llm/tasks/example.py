"""A question about a document, what annotators answered, and what a system answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, get_args

Kind = Literal["extractive", "abstractive", "boolean", "none"]
"""A span or several of the document; words that it does not have; yes or no; the document does not say."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
UNANSWERABLE: Final = "Unanswerable"
YES: Final = "Yes"
NO: Final = "No"


@dataclass(frozen=True)
class Reference:
    """One annotator's answer. `evidence`: whole paragraphs of the document."""

    answer: str
    evidence: tuple[str, ...]
    kind: Kind


@dataclass(frozen=True)
class Document:
    """`paragraphs` in the document's order, with a heading's line before those of its section."""

    id: str
    title: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """A question; `references` has at least one entry."""

    id: str
    document: Document
    question: str
    references: tuple[Reference, ...]


@dataclass(frozen=True)
class Prediction:
    """What a system answered; an empty answer is one, too."""

    answer: str
    evidence: tuple[str, ...] = ()


class Task(Protocol):
    """What an entry point of oven.tasks is. Answers are scored as QASPER's are (official_score.py)."""

    name: str
    instructions: str
    """How an answer is to be given, for a model."""

    def examples(self, data: Path | None, seed: int, count: int) -> list[Example]:
        """All of the file's, or of `count` made from `seed` where the task makes its own and `data` is None. Raises
        ConfigError where there is no file, or it is damaged."""
        ...


def prediction_of(answer: Any) -> Prediction:
    """What FINAL was called with, read as the instructions ask for it: `{"answer": …, "evidence": […]}`, or the answer
    alone. True and False are yes and no; items of a list are joined by ", ", as spans are; None is an empty answer."""
    evidence: tuple[str, ...] = ()
    if isinstance(answer, dict) and "answer" in answer:
        said = answer.get("evidence")
        listed = said if isinstance(said, list) else [said]
        evidence = tuple(one for one in listed if isinstance(one, str) and one)
        answer = answer["answer"]
    return Prediction(_text(answer), evidence)


def _text(answer: Any) -> str:
    if answer is None:
        return ""
    if isinstance(answer, bool):
        return YES if answer else NO
    if isinstance(answer, list):
        return ", ".join(_text(one) for one in answer)
    return str(answer)
