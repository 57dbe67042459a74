"""What a supervisor is compared with on the same questions: the text cut to the worker's window, paragraphs found by
the question's words, and no model at all. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from oven_llm.experiments.keyword_retrieval import ranked
from oven_llm.experiments.sample import Posed
from oven_llm.tasks.example import UNANSWERABLE, YES, Prediction, prediction_of

Baseline = Literal["cut", "retrieval", "no_model"]
ASKED: Final[tuple[Literal["cut", "retrieval"], ...]] = ("cut", "retrieval")
"""Those that ask the worker, once for each question."""
BASELINES: Final[tuple[Baseline, ...]] = (*ASKED, "no_model")

CHARACTERS_PER_TOKEN: Final = 3
"""Of English and code, at least, with the usual tokenizers: a window is rather left with room than overrun."""
ROOM: Final = 0.75
"""Of the worker's window for the text; the rest is for the question and the answer."""
LONGEST_ANSWER: Final = 200
"""Characters of an answer without a model: a sentence of a paragraph."""

_YES_OR_NO: Final = re.compile(
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)\b", re.IGNORECASE
)


def window(worker_ctx_k: int) -> int:
    """Characters of text for a worker with so many thousand tokens."""
    return int(worker_ctx_k * 1000 * CHARACTERS_PER_TOKEN * ROOM)


def shown(baseline: Literal["cut", "retrieval"], posed: Posed, characters: int) -> list[str]:
    """The paragraphs that the worker reads, in the document's order: the first, or the best by BM25, that fit."""
    question, paragraphs = posed.example.question, posed.context
    order = range(len(paragraphs)) if baseline == "cut" else ranked(question, paragraphs)
    kept: list[int] = []
    left = characters
    for at in order:
        if len(paragraphs[at]) > left:
            break
        kept.append(at)
        left -= len(paragraphs[at]) + 2
    if not kept:  # one paragraph is longer than the window
        return [paragraphs[next(iter(order))][:characters]]
    return [paragraphs[at] for at in sorted(kept)]


def messages(posed: Posed, paragraphs: Sequence[str]) -> list[dict[str, str]]:
    """What the worker is asked at once. Evidence is asked for as numbers, which a small model can give."""
    numbered = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(paragraphs, 1))
    asked = (
        f"Answer from the paragraphs below.\n\n{numbered}\n\nAbout the document “{posed.example.document.title}”: "
        f"{posed.example.question}\n\nAnswer with one JSON object and nothing else: "
        '{"answer": "…", "evidence": [numbers of the paragraphs that show it]}. The answer is words of the text joined '
        f'by ", ", a short phrase, "Yes", "No", or "{UNANSWERABLE}" (with no evidence) if the paragraphs do not say.'
    )
    return [{"role": "user", "content": asked}]


def read(text: str, paragraphs: Sequence[str]) -> Prediction:
    """The worker's answer. What is not such an object is an answer without evidence, word for word."""
    begin, end = text.find("{"), text.rfind("}")
    try:
        found: Any = json.loads(text[begin : end + 1]) if begin >= 0 else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "answer" not in found:
        return Prediction(text.strip())
    named = found.get("evidence")
    numbers = dict.fromkeys(one for one in named if type(one) is int) if isinstance(named, list) else {}
    evidence = tuple(paragraphs[one - 1] for one in numbers if 1 <= one <= len(paragraphs))
    return Prediction(prediction_of(found["answer"]).answer, evidence)


def without_model(posed: Posed) -> Prediction:
    """Yes, to a question that asks yes or no; else the sentence of the best paragraph that shares most words with the
    question. The evidence is that paragraph."""
    question = posed.example.question
    best = posed.context[ranked(question, posed.context)[0]]
    if _YES_OR_NO.match(question):
        return Prediction(YES, (best,))
    sentences = [one for one in re.split(r"(?<=[.!?])\s+|\n", best) if one.strip()]
    sentence = sentences[ranked(question, sentences)[0]]
    return Prediction(sentence.strip()[:LONGEST_ANSWER], (best,))
