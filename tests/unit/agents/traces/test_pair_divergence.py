"""What pairs say beside random pairs of the same states."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from tests.support.scripted_replay import PLANTED, STATES, ScriptedReplay, scripted, shuffled

from oven_llm.trace_replay.pair_divergence import FEATURES, information, log_ratio_feature
from oven_llm.trace_replay.pairs import MinedPair, grouped, mined
from oven_runs.traces.comparable_actions import Action


def pairs(replay: ScriptedReplay) -> list[MinedPair]:
    return mined(replay.traces, grouped(replay.replies)).pairs


@pytest.fixture(scope="module")
def planted() -> ScriptedReplay:
    return scripted(PLANTED, STATES, random.Random(3))


def test_a_planted_signal_is_detected_and_shuffled_replies_have_none(planted: ScriptedReplay) -> None:
    result = information(pairs(planted), permutations=199)
    assert result is not None
    assert result.p <= 0.05
    assert result.by_feature["preferred tool"].value > result.by_feature["preferred tool"].null_high
    # Of 8 shuffles 3 or more are below .05 once in two hundred times; the seeds are fixed.
    low = 0
    for seed in range(8):
        tested = information(pairs(shuffled(planted, random.Random(seed))), permutations=99, seed=seed)
        low += tested is not None and tested.p <= 0.05
    assert low <= 2


def test_length_bias_is_detected_against_the_candidates(planted: ScriptedReplay) -> None:
    (item,) = pairs(planted)[:1]
    long, short = Action("a", "1" * 41), Action("a", "1")
    state = replace(item, chosen=long, rejected=short, candidates=(short, long))
    result = information([state] * 12, FEATURES, permutations=199)
    assert result is not None
    assert (result.length.longer, result.length.shorter) == (12, 0)
    assert result.length.mean_log_ratio == pytest.approx(math.log2(44 / 4))
    assert result.length.p <= 0.01


def test_log_ratios_are_tested_only_for_fully_scored_pairs(planted: ScriptedReplay) -> None:
    made = pairs(planted)
    known, feature = log_ratio_feature(made, lambda index, action: -1.0 if action == index.chosen else -2.0)
    result = information(known, {"log_ratio": feature}, permutations=99)
    assert len(known) == len(made)
    assert result is not None
    assert result.p <= 0.01
    known, feature = log_ratio_feature(made, lambda index, action: None)
    assert known == []
    assert information(known, {"log_ratio": feature}) is None
    with pytest.raises(ValueError, match="0 permutations"):
        information(made, permutations=0)
