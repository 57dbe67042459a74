"""`bench oracle`: which way differences are signed, and which runs are still to be made."""

from __future__ import annotations

from typing import Any

import pytest

from oven_bench.training.oracle import figures, missing
from oven_bench.training.oracle_runs import ARMS, Arm, Row
from oven_core.errors import ConfigError


def row(arm: Arm, seed: int, **values: Any) -> Row:
    told = {"accuracy": 0.6, "shuffled": 0.5, "zero": 0.5, "brier": 0.3, "ece": 0.2, "unparsed": 0.0}
    told |= {"prompts": 0.5, "prompts_shuffled": 0.3, "prompts_zero": 0.3}
    return Row.model_validate({"arm": arm, "seed": seed, "changes": (), "seconds": 1.0, **told, **values})


def test_more_is_better_of_every_difference_and_lesser_scores_are_better() -> None:
    jitter = {1: 0.0, 2: 0.001, 3: 0.002}
    rows = [row(arm, seed, accuracy=0.6 + jitter[seed]) for arm in ARMS for seed in jitter]
    rows = [r if r.arm != "sft" else r.model_copy(update={"brier": 0.4 + jitter[r.seed]}) for r in rows]
    rows = [r if r.arm != "constant-on" else r.model_copy(update={"ece": 0.3 + jitter[r.seed]}) for r in rows]
    rows = [r if r.arm != "overconfident-on" else r.model_copy(update={"brier": None, "unparsed": 1.0}) for r in rows]
    found = figures(rows)
    assert found["seeds"] == [1, 2, 3]
    assert found["true_against_shuffled"]["accuracy"]["verdict"] == "HELPS"
    assert found["true_against_shuffled"]["accuracy"]["difference"] == pytest.approx(0.101)
    assert found["true_against_shuffled"]["prompts"]["difference"] == pytest.approx(0.2)
    assert found["grpo_against_sft"]["brier"]["verdict"] == "HELPS", "a lower Brier score is better"
    assert found["grpo_against_sft"]["accuracy"]["verdict"] == "NO EFFECT"
    assert found["agents_in_constant_confidence"]["ece"]["verdict"] == "HARMS"
    silent = {one["verdict"] for one in found["agents_in_overconfident"].values()}
    assert silent == {"INCONCLUSIVE"}, "runs that say nothing are not alike"


def test_a_seed_without_all_arms_counts_for_nothing() -> None:
    rows = [row(arm, seed) for seed in (1, 2) for arm in ARMS][:-1]
    assert missing([1, 2], rows) == [(ARMS[-1], 2)]
    with pytest.raises(ConfigError, match="1 seeds have all arms"):
        figures(rows)
