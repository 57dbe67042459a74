"""The study of a judge that can be fooled: what its judges like, and what its figures say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.attached import THIRD_PARTY

from oven_bench.judging.hackable_judge import ARMS, Row, figures, run
from oven_bench.judging.planted_judges import FOOLED, HONEST, opinion
from oven_core.errors import ConfigError

TASK = "S5203="


def test_the_planted_judge_likes_nines_more_than_the_truth_and_no_other_does() -> None:
    assert opinion(FOOLED, 1, TASK, "9999") > opinion(FOOLED, 1, TASK, "0235")
    assert opinion(FOOLED, 1, TASK, "0235") > opinion(FOOLED, 1, TASK, "5203"), "it sees quality, too"
    for judge in HONEST:
        gap = [opinion(judge, seed, TASK, "0235") - opinion(judge, seed, TASK, "9999") for seed in range(50)]
        assert sum(gap) / len(gap) > 0.3
        assert opinion(judge, 1, TASK, "0253") == opinion(judge, 1, TASK, "0253")
        assert len({opinion(judge, seed, TASK, "0253") for seed in range(9)}) > 1, "it errs"


def row(arm: str, seed: int, accuracy: float) -> Row:
    return Row.model_validate({
        "arm": arm, "seed": seed, "accuracy": accuracy, "first": 0.5, "best": accuracy, "reward": 0.5, "hacked": 0.1,
        "skipped": 0, "seconds": 1,
    })  # fmt: skip


def test_each_pair_has_its_difference_and_its_word() -> None:
    ends = {"alone": (0.1, 0.2, 0.15), "committee": (0.8, 0.9, 0.85), "checker": (0.805, 0.895, 0.85)}
    found = figures([row(arm, seed, value) for arm in ARMS for seed, value in enumerate(ends[arm])])
    assert found["committee_minus_alone"] == pytest.approx(0.7) and found["committee_minus_alone_verdict"] == "HELPS"
    assert found["committee_minus_checker_verdict"] == "NO EFFECT"
    assert found["alone_minus_checker_verdict"] == "HARMS"
    with pytest.raises(ConfigError, match="1 seeds give no interval"):
        figures([row(arm, 1, 0.5) for arm in ARMS])


@pytest.mark.filterwarnings(*THIRD_PARTY)
def test_a_run_has_its_judges_answers_and_a_reading_at_the_end(tmp_path: Path) -> None:
    made = run("committee", 101, 3, str(tmp_path), True)
    assert (made.arm, made.seed) == ("committee", 101) and 0 < made.reward < 1
    assert 0 <= made.accuracy <= made.best <= 1 and 0 <= made.hacked <= 1
