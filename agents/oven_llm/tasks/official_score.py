"""QASPER's official scores (Dasigi et al. 2021, arXiv 2105.03011): answer F1, evidence F1, by the best annotator.

What is odd in them is kept, so that figures compare with published ones: two texts that are both empty once normalised
score 0; evidence divides by the length of a list, so that a paragraph that stands twice lowers it; a question without a
prediction is 0 in both, and of no kind. The one difference: a kind that no question has is absent, not 0.
"""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oven_llm.tasks.example import KINDS, Kind, Prediction, Reference

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class Score:
    """Of one answer, each 0..1. `kind` is that of the annotator who agrees best, the first of equals."""

    answer_f1: float
    evidence_f1: float
    kind: Kind


@dataclass(frozen=True)
class Scores:
    """Means over questions, 0..1."""

    answer_f1: float
    by_kind: dict[Kind, float]
    evidence_f1: float
    missing: int
    """Questions without a prediction, which count as 0."""


def normalized(text: str) -> str:
    """Lower case, without punctuation (ASCII's) and articles, white space joined; SQuAD's rule."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(predicted: str, reference: str) -> float:
    """0..1, over the multisets of words."""
    mine, theirs = normalized(predicted).split(), normalized(reference).split()
    return _f1((Counter(mine) & Counter(theirs)).total(), len(mine), len(theirs))


def paragraph_f1(predicted: Sequence[str], reference: Sequence[str]) -> float:
    """0..1; 1 where there are none on either side."""
    if not predicted and not reference:
        return 1.0
    return _f1(len(set(predicted) & set(reference)), len(predicted), len(reference))


def _f1(same: int, predicted: int, reference: int) -> float:
    if not same:
        return 0.0
    precision, recall = same / predicted, same / reference
    return 2 * precision * recall / (precision + recall)


def without_figures(reference: Reference) -> Reference:
    """The reference with evidence from the text only: figures and tables are marked in the data. (A prediction's are
    kept, as by the official `--text_evidence_only`.)"""
    evidence = tuple(one for one in reference.evidence if "FLOAT SELECTED" not in one)
    return Reference(reference.answer, evidence, reference.kind)


def score(predicted: Prediction, references: Sequence[Reference]) -> Score:
    """Against each annotator, the best of each. Raises ValueError without references."""
    answers = [(token_f1(predicted.answer, one.answer), one.kind) for one in references]
    best, kind = max(answers, key=lambda found: found[0])
    return Score(best, max(paragraph_f1(predicted.evidence, one.evidence) for one in references), kind)


def scores(predicted: Mapping[str, Prediction], references: Mapping[str, Sequence[Reference]]) -> Scores:
    """Over all questions of `references`, by their ids. Raises ValueError without questions."""
    if not references:
        raise ValueError("there are no questions to score")
    found = {key: score(predicted[key], said) for key, said in references.items() if key in predicted}
    by_kind: dict[Kind, list[float]] = defaultdict(list)
    for one in found.values():
        by_kind[one.kind].append(one.answer_f1)
    return Scores(
        sum(one.answer_f1 for one in found.values()) / len(references),
        {kind: sum(by_kind[kind]) / len(by_kind[kind]) for kind in KINDS if kind in by_kind},
        sum(one.evidence_f1 for one in found.values()) / len(references),
        len(references) - len(found),
    )
