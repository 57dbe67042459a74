"""How an outcome moves reputations: by example, by property, and the bound that the documentation states."""

import math
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oven_core.mesh.measurements import measure_effect
from oven_core.mesh.reputation import Stance, is_clearly_worse, merit, success, updated_reputations
from oven_core.protocol.rules import Rules

unit = st.floats(0, 1)
real = st.floats(-1e100, 1e100)
size = st.floats(0, 1e100)
stances = st.sampled_from(["propose", "for", "against"])
names = st.text("abcdef", min_size=1, max_size=3)


def outcomes_until_silent(
    confidence: float, rules: Rules, reputation: float = 1.0, between: int = 0, most: int = 1000
) -> int | None:
    """Return N(p): after how many outcomes without success an agent that backs them at this confidence is below
    `rules.least_reputation`, with `between` outcomes of other agents before each. None if forgetting keeps it above."""
    for count in range(1, most + 1):
        for merits in (*[{}] * between, {"": merit("propose", confidence, 0.0)}):
            reputation = updated_reputations({"": reputation}, (), merits, rules)[""]
        if reputation < rules.least_reputation:
            return count
    return None


@given(real, size, size)
def test_success_is_a_share_and_grows_with_the_gain(gain: float, noise: float, promised: float) -> None:
    y = success(gain, noise, promised)
    assert 0 <= y <= 1
    assert success(math.nextafter(gain, math.inf), noise, promised) >= y
    assert success(gain, noise, promised * 2) <= y
    if is_clearly_worse(gain, noise):
        assert y == 0


@given(stances, unit, unit, unit)
def test_merit_is_bounded_and_monotone(stance: Stance, confidence: float, y: float, other_y: float) -> None:
    low, high = sorted((y, other_y))
    worse, better = merit(stance, confidence, low), merit(stance, confidence, high)
    if stance == "against":
        worse, better = better, worse
    assert -1 <= worse <= better + 1e-12 and better <= 1


@given(unit)
def test_being_right_pays_and_being_wrong_costs_more_with_confidence(confidence: float) -> None:
    earns = merit("propose", confidence, 1)
    assert earns == 0 if confidence < 0.5 else earns >= 0.5, "credit needs a stake"
    assert merit("propose", confidence, 0) <= -0.5
    assert merit("propose", confidence, 0) == pytest.approx(-min(1, 2 * max(confidence, 0.5) ** 2))
    assert merit("against", confidence, 0) == pytest.approx(earns)
    assert merit("for", confidence, 1) == earns / 2
    assert merit("for", confidence, 0) == merit("propose", confidence, 0)
    assert merit("propose", confidence, 0.5) <= 0, "nobody gains by what says nothing"


@example({"a": 1.4e308}, set(), {"a": 1.0}, Random(1))
@given(st.dictionaries(names, st.floats()), st.sets(names), st.dictionaries(names, st.floats(-1, 1)), st.randoms())
def test_reputations_stay_in_bounds_whatever_the_order(
    reputations: object, known: set[str], merits: object, random: object
) -> None:
    assert isinstance(reputations, dict) and isinstance(merits, dict)
    rules = Rules()
    after = updated_reputations(reputations, known, merits, rules)
    assert all(0 <= value <= rules.reputation_most for value in after.values())
    assert set(after) == {*reputations, *known, *merits}
    shuffled = [dict(sorted(part.items(), reverse=True)) for part in (reputations, merits)]
    assert updated_reputations(shuffled[0], sorted(known, reverse=True), shuffled[1], rules) == after
    for agent in after:
        alone = {agent: reputations[agent]} if agent in reputations else {}
        assert (
            updated_reputations(alone, (agent,), {agent: merits[agent]} if agent in merits else {}, rules)[agent]
            == after[agent]
        )


@given(st.floats(0, 2))
def test_forgetting_moves_reputations_back_to_one(reputation: float) -> None:
    held, rules = {"a": reputation}, Rules()
    for _ in range(2000):
        after = updated_reputations(held, (), {}, rules)
        assert abs(after["a"] - 1) <= abs(held["a"] - 1)
        held = after
    assert held["a"] == pytest.approx(1, abs=0.01)


@given(st.floats(0, 1), st.floats(0, 2), st.floats(0.5, 1))
def test_a_persistently_wrong_agent_falls_silent_within_the_bound(confidence: float, start: float, rate: float) -> None:
    """Whatever it starts with, and with anything worse than the least harm in between."""
    rules = Rules()
    bound = outcomes_until_silent(confidence, rules, rules.reputation_most)
    assert bound is not None
    held = {"a": start}
    for _ in range(bound):
        held = updated_reputations(held, (), {"a": merit("propose", confidence, 0.0)}, rules)
    assert held["a"] < rules.least_reputation
    surer = outcomes_until_silent(min(1.0, confidence + rate / 2), rules, rules.reputation_most)
    assert surer is not None and surer <= bound


def test_the_bound_is_what_the_documentation_says() -> None:
    page = (Path(__file__).parents[3] / "docs" / "deciding.md").read_text()
    rules = Rules()
    for confidence in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        counts = [
            outcomes_until_silent(confidence, rules, start, between) for start in (1.0, 2.0) for between in (0, 5)
        ]
        assert f"| {confidence} | {' | '.join(map(str, counts))} |" in page


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_an_effect_does_not_depend_on_order_and_follows_the_sign(before: list[float], after: list[float]) -> None:
    seen = measure_effect(before, after, 1, before)
    assert measure_effect(before[::-1], after[::-1], 1, before[::-1]) == seen
    turned = measure_effect(before, after, -1, before)
    assert (turned.gain, turned.noise) == (-seen.gain, seen.noise) and seen.noise >= 0
