"""Gates and tiers on recorded replays."""

from __future__ import annotations

import random

import pytest
from tests.support.scripted_replay import Skills, scripted
from tests.support.traces import REPAIR, called, reply

from oven_llm.trace_replay.gate import NEEDS, NOTHING, Curve, RecordedReplay, cheapest, curve, replayed, tiers
from oven_llm.trace_replay.pairs import grouped
from oven_runs.traces.records import Reply, Sampled, Trace

OTHER = called("submit")


def replies_to(traces: list[Trace], unsure: list[bool], **more: object) -> list[Reply]:
    """Three teachers, the first of them cheap; at states where `unsure` says so, all act otherwise than the student."""
    replies = []
    for trace in traces:
        for number, step in enumerate(trace.steps):
            action = OTHER if unsure[number] else step.action
            for name, usd in (("a", 0.001), ("b", 0.01), ("c", 0.01)):
                replies.append(reply(trace, number, name, action, **{"usd": usd, **more}))
    return replies


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """Twelve, each with four steps; the policy is unsure at the second."""
    unsure = Sampled(ids=(1, 2), logprobs=(-1.0, -2.0))
    sure = Sampled(ids=(1, 2), logprobs=(-0.1, -0.1), entropies=(0.2, 0.2))
    first = REPAIR.steps[0]
    steps = tuple(
        first.model_copy(
            update={"sampled": unsure if number == 1 else sure, "own": (OTHER, first.action) if number == 1 else ()}
        )
        for number in range(4)
    )
    return [
        REPAIR.model_copy(update={"id": f"t{number}", "steps": steps, "solved": number % 2 == 0})
        for number in range(12)
    ]


def judged(replay: RecordedReplay, gate: str) -> Curve:
    result = curve(replay, gate)
    assert isinstance(result, Curve), result
    return result


def test_a_gate_that_cannot_be_judged_has_a_reason_and_no_figure(traces: list[Trace]) -> None:
    replay = replayed(traces, grouped(replies_to(traces, [False, True, False, False])))
    bare = [
        item.model_copy(
            update={
                "steps": tuple(number.model_copy(update={"own": (), "sampled": None}) for number in item.steps),
                "solved": None,
            }
        )
        for item in traces
    ]
    lacking = replayed(bare, grouped(replies_to(bare, [False, True, False, False])))
    assert {name: curve(lacking, name) for name in NEEDS} == dict(NEEDS)
    unsolved = [item.model_copy(update={"solved": False}) for item in traces]
    alike = replayed(unsolved, grouped(replies_to(unsolved, [False, True, False, False])))
    assert curve(alike, "failed") == "all states have the same score 1"
    assert curve(replayed(traces, grouped(replies_to(traces, [False] * 4))), "entropy") == NOTHING
    single = replayed(traces[:1], grouped(replies_to(traces[:1], [False, True, False, False])))
    assert (judged(single, "entropy").low, judged(single, "entropy").high) == (None, None), "all draws are the same"
    assert judged(replay, "entropy").low is not None


def test_an_ideal_gate_asks_first_where_pairs_are(traces: list[Trace]) -> None:
    replay = replayed(traces, grouped(replies_to(traces, [False, True, False, False])))
    knows, by_chance = judged(replay, "entropy"), judged(replay, "random")
    shares = [point.pairs for point in knows.points]
    assert shares == pytest.approx([0, 0.4, 0.8, *[1.0] * 8]), "a quarter of the cost has all pairs"
    assert [point.cost for point in knows.points] == pytest.approx([item / 10 for item in range(11)])
    assert knows.gain == pytest.approx(0.375)
    assert knows.unscored == 0
    assert knows.low is not None and knows.low > 0
    assert by_chance.low is not None and by_chance.high is not None
    assert by_chance.low < 0 < by_chance.high
    assert judged(replay, "disagreement").unscored == 36


def test_an_always_right_cheap_tier_keeps_all_pairs(traces: list[Trace]) -> None:
    replay = replayed(traces, grouped(replies_to(traces, [False, True, False, False])))
    assert cheapest(replay) == "a"
    silent = [
        item.model_copy(update={"action": None, "failure": "auth", "usd": None}) if item.teacher == "a" else item
        for replies_of_state in grouped(replies_to(traces, [False, True, False, False])).values()
        for item in replies_of_state
    ]
    assert cheapest(replayed(traces, grouped(silent))) == "b", "a cost nothing, and said nothing"
    result = tiers(replay, ["a"])
    assert result is not None
    assert (result.others_asked, result.pairs) == (0.25, 1.0)
    assert result.cost == pytest.approx((0.001 + 0.25 * 0.02) / 0.021)
    everyone = tiers(replay, ["a", "b", "c"])
    assert everyone is not None
    assert everyone.cost == pytest.approx(1)
    assert everyone.pairs == 1.0


def test_a_skilled_tier_keeps_pairs_against_the_student_and_loses_minorities() -> None:
    drawn = scripted(Skills(student=0.4, families=(0.9, 0.9, 0.1)), 300, random.Random(1))
    replay = replayed(drawn.traces, grouped(drawn.replies))
    skilled, unskilled = tiers(replay, ["a"]), tiers(replay, ["c"])
    assert skilled is not None
    assert unskilled is not None
    assert skilled.by_rule["teachers_over_student"] > 0.95
    assert skilled.by_rule["student_over_minority"] < 0.3
    assert skilled.others_asked < unskilled.others_asked


def test_an_unknown_price_is_counted_in_tokens(traces: list[Trace]) -> None:
    replies = replies_to(traces, [True] * 4)
    replies[5] = replies[5].model_copy(update={"usd": None})
    replay = replayed(traces, grouped(replies))
    assert replay.unit == "tokens"
    assert sum(item.cost for item in replay.states) == len(replies) * 110
    assert replayed(traces, grouped(replies_to(traces, [True] * 4, usd=0.0))).unit == "tokens", "local models are free"
    failed = reply(traces[0], 0, "a", None, usd=None)
    priced = replayed(traces, grouped([failed, *replies_to(traces, [True] * 4)[1:]]))
    assert (priced.unit, priced.unpriced_failures) == ("usd", 1)
