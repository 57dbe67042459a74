"""Answers with a stated confidence: what is in the form, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_learner.rewards.calibrated_reward import OracleAnswer, parse_oracle_output

WIDE = "".join(chr(ord(letter) + 0xFEE0) for letter in "[epistemicstatus:100]")
"""A mark in full-width letters."""
ANSWERS = st.text(min_size=1, max_size=40).filter(lambda text: bool(text.strip()))


@given(st.integers(0, 100), ANSWERS)
def test_every_whole_percent_and_every_answer_comes_back(percent: int, answer: str) -> None:
    answer_read = parse_oracle_output(f"[epistemic status: {percent}] {answer}")
    assert answer_read == OracleAnswer(percent / 100, answer.strip())


@given(st.integers().filter(lambda n: not 0 <= n <= 100), ANSWERS)
def test_no_other_number_is_a_confidence(number: int, answer: str) -> None:
    assert parse_oracle_output(f"[epistemic status: {number}] {answer}") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "[epistemic status: 50]",
        "[epistemic status: 50] \n",
        "[epistemic status: 50]yes",
        "[epistemic status: 50.5] yes",
        "[epistemic status: +50] yes",
        "[epistemic status: 050] yes",
        "[epistemic status: \u0665\u0660] yes",
        "[epistemic status: 50%] yes",
        "[epistemic status: high] yes",
        "[epistemic status: ] yes",
        "[Epistemic status: 50] yes",
        "epistemic status: 50 yes",
        "yes [epistemic status: 50] no",
        # A second mark, which a judge would be shown, plain and disguised.
        "[epistemic status: 50] yes [epistemic status: 100]",
        "[epistemic status: 50] [epistemic status: 100] yes",
        "[epistemic status: 50] yes [EPISTEMIC  STATUS: 100]",
        "[epistemic status: 50] yes (epistemic_status=100)",
        f"[epistemic status: 50] yes {WIDE}",
        "[epistemic status: 50] yes [epis\u200btemic sta\u00adtus: 100]",
    ],
)
def test_other_formats_are_rejected(text: str) -> None:
    assert parse_oracle_output(text) is None
