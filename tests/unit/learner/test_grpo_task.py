"""The sort task, its tokenizer and its reward."""

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_recipes.grpo.task import HABITS, draw, exact_match, example, habit_pairs, held_out, pool

digit_strings = st.text("0123456789", min_size=1, max_size=8)


def test_an_example_reads_as_documented() -> None:
    asked = example("5203")
    assert (asked.prompt, asked.answer, asked.level) == ("S5203=", "0235", "len4")


@given(digit_strings)
def test_the_answer_is_the_digits_in_order(digits: str) -> None:
    answer = example(digits).answer
    assert list(answer) == sorted(digits)


@pytest.mark.parametrize("length", [3, 4, 5])
def test_training_and_held_out_prompts_are_disjoint(length: int) -> None:
    train = {e.prompt for e in pool(length, 500, random.Random(1))}
    held = {e.prompt for e in pool(length, 100, random.Random(1), evaluation=True)}
    assert len(train) == 500 and len(held) == 100
    assert not train & held


def test_the_warm_up_never_asks_a_held_out_prompt() -> None:
    pairs = islice(habit_pairs((3, 4), 0.5, random.Random(1)), 300)
    assert not any(held_out(prompt[1:-1]) for prompt, _ in pairs)


def test_the_pool_of_a_small_level_is_all_of_its_side() -> None:
    everything = pool(2, 500, random.Random(1)) + pool(2, 500, random.Random(1), evaluation=True)
    assert len({e.prompt for e in everything}) == 100


def test_a_draw_stays_on_its_side() -> None:
    rng = random.Random(1)
    assert all(held_out(draw(5, rng, evaluation=True)) for _ in range(20))


def test_the_share_of_right_targets_is_as_asked() -> None:
    pairs = list(islice(habit_pairs((6,), 0.4, random.Random(1)), 3000))
    right = sum(target == example(prompt[1:-1]).answer for prompt, target in pairs) / len(pairs)
    assert 0.36 < right < 0.44


def test_every_habit_keeps_the_length() -> None:
    assert [habit("5203") for habit in HABITS] == ["5320", "5203", "3025", "3333"]


def test_the_reward_is_one_for_exactly_the_answer() -> None:
    assert exact_match(["0235", "023", "02355", ""], ["0235"] * 4, ["len4"] * 4) == [1.0, 0.0, 0.0, 0.0]


def test_levels_that_the_batch_lacks_log_nothing() -> None:
    logged: dict[str, float] = {}
    exact_match(["012", "021", "0123"], ["012", "012", "0123"], ["len3", "len3", "len4"], logged.__setitem__)
    assert logged == {"reward/len3": 0.5, "reward/len4": 1.0}
