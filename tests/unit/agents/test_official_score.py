"""QASPER's scores on cases that were worked by hand, and the oddities of the official script."""

from __future__ import annotations

import pytest

from oven_llm.tasks.example import Kind, Prediction, Reference, prediction_of
from oven_llm.tasks.official_score import normalized, paragraph_f1, score, scores, token_f1, without_figures

EXACT = 1e-12
P, Q, R = "first paragraph", "second paragraph", "third paragraph"


@pytest.mark.parametrize(
    ("predicted", "reference", "f1"),
    [
        ("the BLEU score, and ROUGE", "BLEU, ROUGE", 2 / 3),  # 2 of 4 words, 2 of 2
        ("It uses 3 layers", "three layers are used", 1 / 4),
        ("Yes.", "Yes", 1.0),
        ("yes, it does", "Yes", 1 / 2),  # 1 of 3, 1 of 1
        ("No", "Yes", 0.0),
        ("unanswerable", "Unanswerable", 1.0),
        ("b b", "b", 2 / 3),  # words are counted as often as they stand
        ("state-of-the-art", "state of the art", 0.0),  # the hyphens go before the articles do
        ("an A, the THE", "a", 0.0),  # nothing is left on either side
        ("", "", 0.0),
        ("", "Yes", 0.0),
        ("“quoted”", "quoted", 0.0),  # only ASCII's punctuation goes
        ("1,234.5", "12345", 1.0),
    ],
)
def test_answers_are_compared_word_by_word(predicted: str, reference: str, f1: float) -> None:
    assert token_f1(predicted, reference) == pytest.approx(f1, abs=EXACT)


def test_articles_go_after_the_punctuation() -> None:
    assert normalized("The  cat's\tan-A hat ") == "cats ana hat"


@pytest.mark.parametrize(
    ("predicted", "reference", "f1"),
    [
        ([], [], 1.0),
        ([P], [], 0.0),
        ([], [P], 0.0),
        ([P, Q], [P], 2 / 3),
        ([P, P], [P], 2 / 3),  # a paragraph that stands twice lowers it
        ([P, P], [P, P], 1 / 2),
        ([P, Q], [Q, R], 1 / 2),
        (["First paragraph"], [P], 0.0),  # letter by letter
    ],
)
def test_evidence_is_compared_by_whole_paragraphs(predicted: list[str], reference: list[str], f1: float) -> None:
    assert paragraph_f1(predicted, reference) == pytest.approx(f1, abs=EXACT)


def answers(*given: tuple[str, tuple[str, ...], Kind]) -> list[Reference]:
    return [Reference(*one) for one in given]


def test_the_best_annotator_counts_of_answers_and_of_evidence_alike_and_the_first_of_equals_gives_the_kind() -> None:
    found = score(Prediction("two layers", (Q,)), answers(("two", (Q,), "abstractive"), ("layers", (P,), "extractive")))
    assert found.answer_f1 == pytest.approx(2 / 3, abs=EXACT)
    assert (found.evidence_f1, found.kind) == (1.0, "abstractive")
    other = score(Prediction("yes", (P,)), answers(("No", (P,), "boolean"), ("yes it is", (Q, R), "extractive")))
    assert other.answer_f1 == pytest.approx(1 / 2, abs=EXACT)
    assert (other.evidence_f1, other.kind) == (1.0, "extractive")


def test_a_missing_prediction_is_zero_and_of_no_kind() -> None:
    references = {
        "spans": answers(("CRF, BiLSTM", (P,), "extractive")),
        "free": answers(("93.4 F1", (Q,), "abstractive")),
        "yes": answers(("Yes", (Q, R), "boolean"), ("Unanswerable", (), "none")),
        "none": answers(("Unanswerable", (), "none")),
        "missing": answers(("No", (R,), "boolean")),
    }
    predicted = {
        "spans": Prediction("BiLSTM", (P,)),  # 1 of 1, 1 of 2: 2/3
        "free": Prediction("it has 93.4 F1", (P, Q)),  # 2 of 4, 2 of 2: 2/3; evidence 2/3
        "yes": Prediction("Yes", (Q,)),  # 1; evidence 2/3
        "none": Prediction("Unanswerable"),  # 1; evidence 1
        "of another file": Prediction("Yes"),
    }
    found = scores(predicted, references)
    assert found.answer_f1 == pytest.approx((2 / 3 + 2 / 3 + 1 + 1) / 5, abs=EXACT)
    assert found.evidence_f1 == pytest.approx((1 + 2 / 3 + 2 / 3 + 1) / 5, abs=EXACT)
    assert found.by_kind == pytest.approx(
        {"extractive": 2 / 3, "abstractive": 2 / 3, "boolean": 1.0, "none": 1.0}, abs=EXACT
    )
    assert found.missing == 1


def test_without_figures_only_the_reference_loses_paragraphs() -> None:
    reference = without_figures(Reference("4", (P, "FLOAT SELECTED: Table 1"), "abstractive"))
    assert score(Prediction("4", (P,)), [reference]).evidence_f1 == 1.0
    assert score(Prediction("4", (P, "FLOAT SELECTED: Table 1")), [reference]).evidence_f1 == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("answer", "predicted"),
    [
        ("text", Prediction("text")),
        (0, Prediction("0")),
        ("", Prediction("")),
        (None, Prediction("")),
        (True, Prediction("Yes")),
        ({"answer": False, "evidence": [P, Q]}, Prediction("No", (P, Q))),
        ({"answer": ["CRF", 2], "evidence": P}, Prediction("CRF, 2", (P,))),
        ({"answer": "x", "evidence": [1, None, "", P]}, Prediction("x", (P,))),
        ({"other": 1}, Prediction("{'other': 1}")),
    ],
)
def test_what_final_was_called_with_is_read_as_an_answer(answer: object, predicted: Prediction) -> None:
    assert prediction_of(answer) == predicted
