"""The order of remedies by a draw: the same for a seed, and as often as what is known of them says."""

from __future__ import annotations

import math
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core.protocol.graph_requests import DiagnoseRequest, Diagnosis, OutcomeReport, Symptom
from oven_kg.reasoning.posteriors import TRIED
from oven_kg.reasoning.thompson import Draw
from oven_kg.service.endpoints import Answers, answers

SPIKE = (Symptom(id="loss_spike"),)
BACK, CUT = ("run.rollback",), ("optimizer.lr_scale:down",)


def taught() -> Answers:
    """Two remedies, tried for one symptom, of which one did somewhat better."""
    held = answers()
    assert isinstance(held, Answers)
    for n in range(8):
        for name, changes, good in (("back", BACK, 5), ("cut", CUT, 4)):
            held.take(OutcomeReport(id=f"{name}{n}", changes=changes, symptoms=SPIKE, success=float(n < good)))
    return held


def diagnosis(held: Answers, draw: str = "") -> Diagnosis:
    answer = held("diagnose", DiagnoseRequest(symptoms=SPIKE, k=50, draw=draw).wire())
    assert answer is not None
    return Diagnosis.model_validate_json(answer)


@given(st.text(max_size=8), st.text(max_size=8), st.floats(0, 1), st.floats(0, 1000))
def test_a_draw_is_the_seeds_and_the_keys(seed: str, key: str, mean: float, n: float) -> None:
    found = Draw(seed).beta(key, mean, n)
    assert 0 <= found <= 1 and found == Draw(seed).beta(key, mean, n)
    if mean in (0, 1) or not n:
        assert found == mean


@pytest.mark.parametrize(("mean", "n"), [(0.5, 2.0), (0.7, 8.0), (0.1, 3.0), (0.95, 40.0)])
def test_draws_have_the_mean_and_the_variance_of_the_distribution(mean: float, n: float) -> None:
    found = [Draw(str(seed)).beta("edge", mean, n) for seed in range(4000)]
    variance = mean * (1 - mean) / (n + 1)
    assert abs(fmean(found) - mean) < 4 * math.sqrt(variance / 4000)
    assert pvariance(found) == pytest.approx(variance, rel=0.12)


def test_of_even_odds_worth_two_observations_every_value_is_as_likely() -> None:
    found = sorted(Draw(str(seed)).beta("edge", 0.5, 2.0) for seed in range(2000))
    furthest = max(abs(value - (at + 0.5) / 2000) for at, value in enumerate(found))
    assert furthest < 1.95 / math.sqrt(2000), "Kolmogorov and Smirnov, at one in a thousand"


def test_the_same_seed_gives_the_same_answer() -> None:
    for held in (answers(), taught()):
        assert isinstance(held, Answers)
        assert diagnosis(held, "a") == diagnosis(held, "a")
        assert len({tuple(remedy.id for remedy in diagnosis(held, str(seed)).remedies) for seed in range(20)}) > 5
        assert diagnosis(held).causes == diagnosis(held, "a").causes, "what is diagnosed is not drawn"


def test_without_a_seed_the_request_and_the_answer_are_as_ever() -> None:
    assert b"draw" not in DiagnoseRequest(symptoms=SPIKE).wire()
    held = taught()
    assert diagnosis(held) == diagnosis(held)


def test_a_remedy_comes_first_as_often_as_it_is_probably_the_better_one() -> None:
    held = taught()
    known = {remedy.changes: remedy for remedy in diagnosis(held).remedies if remedy.changes in (BACK, CUT)}
    shapes = {}
    for changes, remedy in known.items():
        mean, n = 1 - math.exp(-remedy.score), TRIED + 8.0
        shapes[changes] = mean * n, (1 - mean) * n
    expected = _ahead(shapes[BACK], shapes[CUT])
    assert 0.55 < expected < 0.95
    wins, draws = 0, 300
    for seed in range(draws):
        scores = {remedy.changes: remedy.score for remedy in diagnosis(held, f"run/{seed}").remedies}
        wins += scores.get(BACK, 0.0) > scores.get(CUT, 0.0)
    assert abs(wins / draws - expected) < 4 * math.sqrt(expected * (1 - expected) / draws)


def test_what_was_tried_often_is_drawn_close_to_its_mean() -> None:
    few, many = taught(), taught()
    for n in range(400):
        many.take(OutcomeReport(id=f"more{n}", changes=BACK, symptoms=SPIKE, success=float(n % 8 < 5)))
    spread = []
    for held in (few, many):
        scores = [_score(diagnosis(held, str(seed))) for seed in range(40)]
        spread.append(pvariance(scores))
    assert spread[1] < spread[0] / 10


def _score(found: Diagnosis) -> float:
    return next((remedy.score for remedy in found.remedies if remedy.changes == BACK), 0.0)


def _ahead(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The probability that a Beta variable is above another, by the midpoint rule."""
    steps = 4000
    points = [(at + 0.5) / steps for at in range(steps)]
    below, found = 0.0, 0.0
    for x in points:
        part = _density(other, x) / steps
        found += _density(one, x) / steps * (below + part / 2)
        below += part
    return found


def _density(shape: tuple[float, float], x: float) -> float:
    a, b = shape
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + (a - 1) * math.log(x) + (b - 1) * math.log(1 - x)
    return math.exp(log)
