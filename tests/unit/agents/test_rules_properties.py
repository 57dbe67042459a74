"""What the rules promise for all curves: few false alarms, and findings that do not depend on units or on the log."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.simulated_curves import HEALTHY, ILL, record_of_curves, student
from tests.support.simulated_gauges import HEALTHY_GAUGES, ILL_GAUGES

from oven_agents.diagnosis import run_record
from oven_agents.diagnosis.engine import find_findings
from oven_agents.diagnosis.rules.sequential import ERROR_RATE, first_excess
from oven_agents.diagnosis.run_record import RunRecord

Draw = Callable[[random.Random], float]
SOUND, FAULTS = {**HEALTHY, **HEALTHY_GAUGES}, {**ILL, **ILL_GAUGES}
SEEDS = st.integers(0, 10_000)
LOSS_FAULTS = ("nan_loss", "jump", "blow_up", "zero_loss", "flat_loss", "clear_overfit")
"""Faults of a loss that have no natural level, unlike guessing among classes."""


def kinds(record: RunRecord) -> set[tuple[str, str, int | None]]:
    return {(finding.kind, finding.severity, finding.onset_step) for finding in find_findings(record)}


def laplace(rng: random.Random) -> float:
    return rng.choice((-1, 1)) * rng.expovariate(math.sqrt(2))


@pytest.mark.parametrize(
    "draw",
    [lambda rng: rng.gauss(0, 1), lambda rng: student(rng) / math.sqrt(3), laplace],
    ids=["normal", "student", "laplace"],
)
def test_noise_at_the_limit_raises_no_more_false_alarms_than_stated(draw: Draw) -> None:
    """A tenth of 1,500 runs would be 150 ± 12. The stated rate itself is too rare to be measured in a second."""
    rng = random.Random(11)
    runs = [[draw(rng) for _ in range(100)] for _ in range(1500)]
    for error_rate, limit in ((0.1, 150), (0.01, 15), (ERROR_RATE, 3)):
        assert sum(first_excess(values, 0.0, 1.0, error_rate) is not None for values in runs) <= limit


@given(shift=st.floats(3, 20), before=st.integers(0, 80), scale=st.floats(1e-6, 1e6), seed=SEEDS)
@settings(max_examples=60)
def test_a_lasting_rise_is_noticed_within_twenty_readings(shift: float, before: int, scale: float, seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.gauss(-3.0 if index < before else shift, 1) for index in range(before + 20)]
    index = first_excess([10 + scale * value for value in values], 10.0, scale)
    assert index is not None and index >= before


@given(values=st.lists(st.floats(-5, 0), max_size=200), outlier=st.integers(0, 199))
@settings(max_examples=60)
def test_one_outlier_is_never_a_rise(values: list[float], outlier: int) -> None:
    values[outlier : outlier + 1] = [1e300]
    assert first_excess(values, 0.0, 1.0) is None


@given(family=st.sampled_from(LOSS_FAULTS), factor=st.sampled_from((1e-6, 0.01, 7.0, 1e9)), seed=SEEDS)
@settings(max_examples=40)
def test_the_unit_of_a_loss_does_not_matter(family: str, factor: float, seed: int) -> None:
    curves = ILL[family].curves(200, 0.45, random.Random(seed))
    scaled = {name: [factor * value for value in values] for name, values in curves.items()}
    names = [{kind for kind, *_ in kinds(record_of_curves(each))} for each in (curves, scaled)]
    assert names[0] == names[1]


@given(family=st.sampled_from([*SOUND, *FAULTS]), seed=SEEDS, scale=st.floats(-1e6, 1e6))
@settings(max_examples=40)
def test_a_metric_without_a_direction_changes_nothing(family: str, seed: int, scale: float) -> None:
    rng = random.Random(seed)
    curves = SOUND[family](200, rng) if family in SOUND else FAULTS[family].curves(200, 0.4, rng)
    own = {"mine/gauge": [scale * student(rng) for _ in range(200)], "mine/broken": [math.nan] * 200}
    assert kinds(record_of_curves(curves)) == kinds(record_of_curves(curves | own))


@pytest.mark.parametrize("family", FAULTS)
def test_a_thinned_record_gives_the_same_kinds(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    curves = FAULTS[family].curves(4000, sum(FAULTS[family].shares) / 2, random.Random(family))
    full = record_of_curves(curves)
    monkeypatch.setattr(run_record, "MAX_READINGS", 1024)
    thinned = record_of_curves(curves)
    assert len(thinned.ticks) <= 1024 < len(full.ticks)
    advice = [{kind for kind, severity, _ in kinds(record) if severity != "note"} for record in (full, thinned)]
    assert advice[0] == advice[1] and FAULTS[family].kind in advice[1]


@given(seed=SEEDS, length=st.integers(1, 60), family=st.sampled_from([*SOUND, *FAULTS]))
@settings(max_examples=60)
def test_any_part_of_a_run_can_be_judged(seed: int, length: int, family: str) -> None:
    """A live run is judged again and again, from its first reading on."""
    rng = random.Random(seed)
    curves = SOUND[family](60, rng) if family in SOUND else FAULTS[family].curves(60, 0.4, rng)
    for finding in find_findings(record_of_curves({name: values[:length] for name, values in curves.items()})):
        assert finding.message.isprintable() and 0 < len(finding.message) <= 803
        assert 1 <= finding.onset_step <= length
