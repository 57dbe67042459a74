"""Pairs: both rules, every reason for none, and that neither order nor repetition matters."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.traces import REPAIR, called, reply

from oven_llm.trace_replay.pairs import Mined, grouped, mined
from oven_runs.traces.records import Message, Reply, Trace

STUDENT = called("read", path="median.py")
OTHER, THIRD = called("submit"), called("read", path="test_median.py")
TRACE = REPAIR.model_copy(update={"steps": REPAIR.steps[:1]})


def mine(*replies: Reply, trace: Trace = TRACE) -> Mined:
    return mined([trace], grouped(replies))


def votes(*actions: Message | None, families: Sequence[str] = "abcdefg") -> list[Reply]:
    return [reply(TRACE, 0, family, action) for family, action in zip(families, actions, strict=False)]


def test_two_families_against_the_student_are_preferred_to_it() -> None:
    (item,) = mine(*votes(OTHER, OTHER, STUDENT)).pairs
    pair = item.pair
    assert (pair.rule, pair.chosen, pair.rejected) == ("teachers_over_student", OTHER, STUDENT)
    assert (pair.votes, pair.voters, pair.teachers) == (2, 3, ("a", "b"))
    assert pair.share == pytest.approx(2 / 3, abs=1e-6)
    assert (pair.state, pair.tools, pair.task) == (TRACE.state(0), TRACE.tools, "median")


def test_the_student_with_two_families_is_preferred_to_the_minority() -> None:
    (item,) = mine(*votes(STUDENT, STUDENT, THIRD)).pairs
    assert (item.pair.rule, item.pair.chosen, item.pair.rejected) == ("student_over_minority", STUDENT, THIRD)
    assert item.pair.teachers == ("c",)


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        ((), "not asked"),
        (votes(None, None, None), "no vote"),
        (votes(OTHER, None, None), "one family"),
        (votes(OTHER, THIRD, STUDENT), "split"),
        (votes(OTHER, THIRD), "split"),
        (votes(OTHER, OTHER, THIRD, THIRD), "split"),
        (votes(OTHER, OTHER, THIRD, STUDENT), "split"),
        (votes(STUDENT, STUDENT, STUDENT), "all agree"),
        (votes(*[called("read", path="median.py")] * 3), "all agree"),
        (votes(OTHER, OTHER, OTHER, families=("a1", "a2", "a3")), "one family"),
    ],
)
def test_states_without_a_pair_have_a_reason(replies: Sequence[Reply], why: str) -> None:
    result = mine(*replies)
    assert result.pairs == []
    assert result.abstentions == {why: 1}


def test_actions_with_the_same_outcome_make_no_pair() -> None:
    step = TRACE.steps[0].model_copy(update={"outcome": "same"})
    trace = TRACE.model_copy(update={"steps": (step,)})
    replies = [reply(trace, 0, family, OTHER, outcome="same") for family in "abc"]
    assert mine(*replies, trace=trace).abstentions == {"equivalent": 1}
    second = [reply(trace, 0, family, OTHER, outcome="other") for family in "abc"]
    assert len(mine(*second, trace=trace).pairs) == 1


def test_an_incomparable_student_action_makes_no_pair() -> None:
    step = TRACE.steps[0].model_copy(update={"action": called("write", path="x")})
    trace = TRACE.model_copy(update={"steps": (step,)})
    replies = [reply(trace, 0, family, OTHER) for family in "abc"]
    assert mine(*replies, trace=trace).abstentions == {"student: unknown_tool": 1}


def test_ignored_replies_are_counted_by_reason() -> None:
    wrong = Message.model_validate({"role": "assistant", "calls": [{"name": "read", "arguments": "median.py"}]})
    result = mine(
        *votes(OTHER, OTHER),
        reply(TRACE, 0, "c", wrong),
        reply(TRACE, 0, "d", None),
        reply(TRACE, 0, "e", OTHER, state="0" * 16),
        reply(TRACE, 0, "a", THIRD),
        reply(TRACE, 0, "f1", OTHER),
        reply(TRACE, 0, "f2", THIRD),
        reply(TRACE, 0, "a", OTHER, step=7),
    )
    assert result.ignored == {
        "reply: arguments_not_json": 1,
        "failure: timeout": 1,
        "reply: to another state": 1,
        "reply: given twice": 1,
        "family: a tie between its most common actions": 1,
    }
    assert result.unknown == 1
    assert result.families == {"a": 1, "b": 1}


def test_a_familys_vote_weighs_samples_and_teachers_equally() -> None:
    samples = [reply(TRACE, 0, "a1", item, sample=index) for index, item in enumerate([OTHER] * 9 + [THIRD])]
    samples += [reply(TRACE, 0, "a2", OTHER), reply(TRACE, 0, "b", OTHER)]
    (item,) = mine(*samples).pairs
    assert item.pair.share == pytest.approx((0.95 + 1) / 2)
    assert item.pair.teachers == ("a1", "a2", "b")


actions = st.sampled_from([STUDENT, OTHER, THIRD, None])


@given(
    st.lists(st.tuples(st.sampled_from(["a1", "a2", "b", "c"]), st.integers(0, 1), actions), max_size=8), st.randoms()
)
def test_the_order_of_replies_does_not_matter(
    values: list[tuple[str, int, Message | None]], chance: random.Random
) -> None:
    unique = {(name, sample): action for name, sample, action in values}
    replies = [reply(TRACE, 0, name, action, sample=sample) for (name, sample), action in unique.items()]
    again = chance.sample(replies, len(replies))
    assert mine(*replies) == mine(*again)
