"""Offline prompts and questions, the file of real ones, and the words of the model made on the spot."""

import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("transformers")

from oven_learner.rewards.informativeness import score_answer
from oven_recipes.oracle.benchmark_items import items
from oven_recipes.oracle.questions import QuestionedPrompt
from oven_recipes.oracle.small_model import CONTEXT_LENGTH, benchmark_rows, build_tokenizer, collate, template_rows
from oven_recipes.oracle.template_questions import is_held_out, template_dataset
from oven_recipes.oracle.template_words import ATTRIBUTES, QUESTIONS

SEED = 3


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture(scope="module")
def prompts() -> list[QuestionedPrompt]:
    return template_dataset(SEED)


def test_a_thousand_prompts_have_eight_thousand_questions_half_open_and_half_of_the_rest_denied(
    prompts: list[QuestionedPrompt],
) -> None:
    questions = [question for prompt in prompts for question in prompt.questions]
    assert len({prompt.prompt for prompt in prompts}) == 1000
    words = Counter(question.answer.specific[0].split()[0] for question in questions if question.answer)
    assert (len(questions), words["yes"], words["no"]) == (8000, 2000, 2000)
    assert {len(prompt.prompt.split()) for prompt in prompts} <= set(range(8, 26))


def test_answers_follow_from_the_text(prompts: list[QuestionedPrompt]) -> None:
    """Those whose values are words of the text: who, where, how many."""
    seen = 0
    for prompt in prompts[:200]:
        for question in prompt.questions:
            assert question.answer is not None
            for name in ("person", "place", "number"):
                if question.text in ATTRIBUTES[name].open:
                    assert question.answer.specific[0] in prompt.prompt.split()
                    assert not set(question.answer.wrong) & {*question.answer.specific, *question.answer.vague}
                    seen += 1
    assert seen > 100


@pytest.mark.parametrize(
    ("answer", "informative"),
    [
        ("no six", 1.0),
        ("No, six.", 1.0),
        ("no", 0.5),
        ("no several", 0.5),
        ("yes", 0.0),
        ("no two", 0.0),
        ("six no", 0.0),
        ("", 0.0),
    ],
)
def test_a_right_answer_scores_half_and_an_explained_one_scores_full(answer: str, informative: float) -> None:
    assert score_answer(answer, ("no six",), ("no", "no several")) == informative


def test_pre_training_never_sees_what_is_held_out_and_its_rows_fit(tokenizer: Any) -> None:
    apart = {item.text for benchmark in QUESTIONS for item in items(benchmark, held_out=True)}
    ours, theirs = template_rows(random.Random(1)), benchmark_rows(random.Random(1))
    rows = [*(next(ours) for _ in range(50)), *(next(theirs) for _ in range(200))]
    texts = [row[row[0][0].startswith("Layer:")][0] for row in rows]
    assert not any(is_held_out(text) for text in texts[:50]) and not apart & set(texts)
    ids, weights = collate(rows, tokenizer)
    assert ids.shape == weights.shape and ids.shape[1] < CONTEXT_LENGTH
    assert tokenizer.unk_token_id not in ids
    assert bool((weights[ids == tokenizer.pad_token_id] == 0).all()) and float(weights.max()) == 1
