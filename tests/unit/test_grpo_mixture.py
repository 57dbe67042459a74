"""The live mixture: repeatable, close to its weights, changeable."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from oven_learner.recipes.grpo.mixture import LevelMixture, MixtureSampler

LEVELS = ("len3", "len4", "len5")
POOLS = {"len3": range(0, 10), "len4": range(10, 20), "len5": range(20, 30)}
EVEN = dict.fromkeys(LEVELS, 1.0)


def counts(rows: list[int]) -> list[int]:
    return [sum(row in POOLS[level] for row in rows) for level in LEVELS]


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda w: sum(w) > 1e-3), st.integers(0, 1000))
def test_a_chunk_holds_each_level_within_one_of_its_share(weights: list[float], chunk: int) -> None:
    mixture = LevelMixture(LEVELS, dict(zip(LEVELS, weights, strict=True)), seed=1)
    rows = mixture.draw(chunk, POOLS, 32)
    assert len(rows) == 32
    for count, weight in zip(counts(rows), weights, strict=True):
        assert abs(count - 32 * weight / sum(weights)) <= 1 + 1e-6
        assert weight > 0 or count == 0


def test_a_restored_timeline_draws_the_same_chunks() -> None:
    first = LevelMixture(LEVELS, EVEN, seed=1)
    drawn = [first.draw(k, POOLS, 8) for k in range(3)]
    first.set({"len3": 0, "len4": 0, "len5": 1})
    drawn += [first.draw(k, POOLS, 8) for k in range(3, 6)]
    second = LevelMixture(LEVELS, EVEN, seed=1)
    second.timeline = list(first.timeline)
    assert [second.draw(k, POOLS, 8) for k in range(6)] == drawn
    assert all(row in POOLS["len5"] for rows in drawn[3:] for row in rows)


def test_chunks_and_seeds_differ() -> None:
    mixture = LevelMixture(LEVELS, EVEN, seed=1)
    assert mixture.draw(0, POOLS, 8) != mixture.draw(1, POOLS, 8)
    assert mixture.draw(0, POOLS, 8) != LevelMixture(LEVELS, EVEN, seed=2).draw(0, POOLS, 8)


def test_get_returns_the_normalised_weights_last_set() -> None:
    mixture = LevelMixture(LEVELS, EVEN, seed=1)
    mixture.set({"len3": 1, "len4": 3, "len5": 0})
    mixture.get()["len3"] = 9  # a copy: the mixture keeps its own
    assert mixture.get() == {"len3": 0.25, "len4": 0.75, "len5": 0.0}


@pytest.mark.parametrize(
    "weights",
    [
        {"len3": 1.0},
        {**EVEN, "len9": 1.0},
        dict.fromkeys(LEVELS, 0.0),
        {**EVEN, "len3": -0.1},
        {**EVEN, "len3": float("nan")},
        {**EVEN, "len3": float("inf")},
    ],
)
def test_bad_weights_are_refused_and_change_nothing(weights: dict[str, float]) -> None:
    mixture = LevelMixture(LEVELS, EVEN, seed=1)
    with pytest.raises(ValueError, match="mixture"):
        mixture.set(weights)
    assert mixture.get() == pytest.approx(dict.fromkeys(LEVELS, 1 / 3))


def test_the_sampler_repeats_rows_as_trl_expects() -> None:
    mixture = LevelMixture(LEVELS, EVEN, seed=1)
    sampler = MixtureSampler(mixture, [lv for lv in LEVELS for _ in range(10)], prompts=3, group_size=2, repeats=2)
    rows = list(islice(sampler, 24))
    assert rows[:6] == rows[6:12] and rows[12:18] == rows[18:]
    assert rows[0::2] == rows[1::2]
    assert rows[0:6:2] == mixture.draw(0, POOLS, 3)
