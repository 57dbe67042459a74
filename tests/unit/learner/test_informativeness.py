"""The rule of known answers: wrong, right, right and saying what, and no word where nothing is known."""

from __future__ import annotations

import pytest

from oven_learner.rewards.informativeness import informativeness, score_answer

WHAT, RIGHT = ["yes cooking", "cooking"], ["yes", "yes home"]


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("cooking", 1.0),
        ("  Cooking. ", 1.0),
        ("Yes: cooking!", 1.0),
        ("yes", 0.5),
        ("Yes, home.", 0.5),
        ("no", 0.0),
        ("", 0.0),
        ("...", 0.0),
        # Every answer at once, and right ones with something beside them, are not the right one.
        ("cooking gardening", 0.0),
        ("yes no", 0.0),
        ("cookingcooking", 0.0),
        ("yes yes", 0.0),
    ],
)
def test_the_whole_answer_has_to_be_a_known_one(answer: str, worth: float) -> None:
    assert score_answer(answer, WHAT, RIGHT) == worth


def test_without_known_answers_the_rule_abstains() -> None:
    scores = informativeness(["yes", "yes", "yes", "yes"], [WHAT, [], [], None], [RIGHT, [], ["yes"], None])
    assert scores == [0.5, None, 0.5, None]
    assert informativeness(["yes"]) == [None]
