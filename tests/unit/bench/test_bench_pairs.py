"""The bench's figures from made-up results, and the interval behind its verdict."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_bench.statistics import Word, paired, t_quantile, word
from oven_bench.training.paired_runs import START, figures
from oven_bench.training.recipe_run import Episode, Result


def results(swarm: list[float], alone: list[float]) -> list[Result]:
    return [
        Result(Episode(arm, START, seed, 10, "home"), accuracy, 2 if arm == "swarm" else 0, 1.0)
        for arm, values in (("alone", alone), ("swarm", swarm))
        for seed, accuracy in reversed(list(enumerate(values, 1)))
    ]


def test_the_figures_are_paired_by_seed() -> None:
    found = figures(results([0.90, 0.80, 0.94], [0.80, 0.72, 0.82]))
    assert found == {
        "start": START, "seeds": 3, "mean_swarm": 0.88, "mean_alone": 0.78, "difference": 0.1, "difference_low": 0.0503,
        "difference_high": 0.1497, "decisions_per_run": 2.0, "verdict": "HELPS",
    }  # fmt: skip


def test_a_difference_that_was_not_found_is_no_effect_only_where_one_would_have_been() -> None:
    assert figures(results([0.9, 0.8, 0.7], [0.8, 0.9, 0.7]))["verdict"] == "INCONCLUSIVE"
    assert figures(results([0.5, 0.5, 0.5], [0.6, 0.7, 0.61]))["verdict"] == "INCONCLUSIVE"
    assert figures(results([0.9, 0.8, 0.7], [0.9, 0.8, 0.7]))["verdict"] == "NO EFFECT", "the same bits"
    assert figures(results([0.9, 0.8, 0.7], [0.901, 0.8, 0.699]))["verdict"] == "NO EFFECT"
    assert figures(results([0.5, 0.5, 0.5], [0.6, 0.62, 0.61]))["verdict"] == "HARMS"
    with pytest.raises(ValueError, match="at least 2"):
        paired([0.9], [0.8])


def test_the_quantile_goes_on_where_the_table_ends() -> None:
    assert [t_quantile(n) for n in (1, 4, 30)] == pytest.approx([12.706, 2.776, 2.042], abs=5e-4)
    assert t_quantile(31) == pytest.approx(2.0395, abs=5e-4)
    assert t_quantile(120) == pytest.approx(1.9799, abs=5e-4)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=40))
def test_the_interval_holds_the_mean_and_turns_with_the_arms(pairs: list[tuple[float, float]]) -> None:
    one, other = [list(side) for side in zip(*pairs, strict=True)]
    found, turned = paired(one, other), paired(other, one)
    assert found.low <= found.mean <= found.high
    assert math.isclose(found.low, -turned.high, abs_tol=1e-12)
    opposite: dict[Word, Word] = {"HELPS": "HARMS", "HARMS": "HELPS"}
    said = word(found.low, found.high, 0.02)
    assert word(turned.low, turned.high, 0.02) == opposite.get(said, said)


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0.001, 1))
def test_the_word_for_an_interval(low: float, width: float, smallest: float) -> None:
    """An interval with an effect of interest in it is never called NO EFFECT, nor one without 0 INCONCLUSIVE."""
    high = low + width
    said = word(low, high, smallest)
    assert (said in ("HELPS", "HARMS")) == (not low <= 0 <= high)
    assert (said == "NO EFFECT") == (low <= 0 <= high and max(-low, high) < smallest)
