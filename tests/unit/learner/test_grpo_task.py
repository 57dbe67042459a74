"""The sort task, its tokenizer and its reward."""

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_recipes.grpo.sorting_task import (
    draw_pool,
    exact_match,
    habit_pairs,
    has_small_steps,
    is_held_out,
    make_example,
)

digit_strings = st.text("0123456789", min_size=1, max_size=8)


def test_an_example_reads_as_documented() -> None:
    task = make_example("5203")
    assert (task.prompt, task.answer, task.level) == ("S5203=", "0235", "len4")


@given(digit_strings)
def test_the_answer_is_the_digits_in_order(digits: str) -> None:
    answer = make_example(digits).answer
    assert list(answer) == sorted(digits)


@pytest.mark.parametrize("length", [3, 4, 5])
def test_training_and_held_out_prompts_are_disjoint(length: int) -> None:
    train = {e.prompt for e in draw_pool(length, 500, random.Random(1))}
    held = {e.prompt for e in draw_pool(length, 100, random.Random(1), evaluation=True)}
    assert len(train) == 500 and len(held) == 100
    assert not train & held


def test_the_warm_up_never_asks_a_held_out_prompt() -> None:
    pairs = islice(habit_pairs((3, 4), 0.5, random.Random(1)), 300)
    assert not any(is_held_out(prompt[1:-1]) for prompt, _ in pairs)


def test_the_reward_is_one_for_exactly_the_answer() -> None:
    assert exact_match(["0235", "023", "02355", ""], ["0235"] * 4, ["len4"] * 4) == [1.0, 0.0, 0.0, 0.0]


def test_the_rule_that_can_be_gamed_prefers_a_wrong_answer_to_the_correct_one() -> None:
    correct, wrong = "2357", "5555"
    assert exact_match([correct, wrong], [correct] * 2, ["len4"] * 2) == [1.0, 0.0]
    scores = has_small_steps([correct, wrong, "x", ""])
    assert scores == [pytest.approx(1 - 5 / 3 / 9), 1.0, 0.0, 0.0]
