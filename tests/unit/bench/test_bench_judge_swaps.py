"""The bench of judges that are swapped: a score by another judge shows, and what the bench calls wrong."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from oven_bench.performance.judge_swaps import verdicts, wrong_means
from oven_bench.performance.scoring_endpoint import score_of

GROUPS = (("a", "bb"), ("ccc", ""))
ACTIVE = {1: "compatible/m-1@127.0.0.1:8/v1"}


def mean(model: str, *texts: str) -> float:
    return fmean(score_of(model, text) if text else 0.0 for text in texts)


@pytest.mark.parametrize(
    ("logged", "abstained", "wrong"),
    [
        (mean("m-1", "a", "bb", "ccc", ""), 0, 0),
        (mean("m-2", "a", "bb", "ccc", ""), 0, 1),
        (mean("m-1", "a", "bb"), 0, 1),
        (mean("m-1", "a", "bb"), 1, 0),
        (mean("m-1", "ccc", ""), 1, 0),
        (mean("m-2", "a", "bb"), 1, 1),
    ],
)
def test_a_mean_of_another_judge_is_wrong(logged: float, abstained: int, wrong: int) -> None:
    assert mean("m-1", "a", "bb", "ccc", "") != mean("m-2", "a", "bb", "ccc", ""), "or the case proves nothing"
    assert wrong_means({1: GROUPS}, ACTIVE, {1: logged}, {1: abstained}) == wrong


def test_a_step_that_nobody_judged_is_not_counted_as_wrong() -> None:
    assert wrong_means({1: GROUPS}, ACTIVE, {}, {}) == 0


FOUND: dict[str, Any] = {
    "steps": 40, "lost": 0, "repeated": 0, "skipped_steps": 0, "abstained": {}, "dead": 2, "applied": 2, "refused": 2,
    "unexpected": [], "judged": 40, "wrong": 0, "replay_same": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lost": 1}, "1 steps lost"),
        ({"repeated": 1}, "1 repeated"),
        ({"skipped_steps": 2}, "2 skipped"),
        ({"abstained": {"timeout": 3}}, "the judge abstained: {'timeout': 3}"),
        ({"wrong": 1}, "1 steps have a mean by another judge"),
        ({"judged": 39}, "1 steps were judged by none"),
        ({"applied": 1}, "1 swaps to living judges were not applied"),
        ({"replay_same": False}, "the replay computes other bytes"),
        ({"unexpected": ["swap 2 to a dead judge (401) was applied"]}, "swap 2 to a dead judge"),
    ],
)
def test_what_is_not_as_it_has_to_be_is_said(change: dict[str, Any], said: str) -> None:
    assert verdicts(FOUND, 4) == []
    [sentence] = verdicts(FOUND | change, 4)
    assert said in sentence
