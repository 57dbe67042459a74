"""The reward of answers that state how sure they are, through a committee."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core.errors import ConfigError
from oven_learner.actuators import Actuators
from oven_learner.rewards import Committee
from oven_learner.rewards.calibrated_reward import FORMAT_COST, KNOB, CalibratedReward
from oven_learner.rewards.judge_knobs import register_committee_knobs

TEXT, QUESTION = "bread in the oven", "what is it about ?"


def stated(confidence: int, answer: str) -> str:
    return f"[epistemic status: {confidence}] {answer}"


def committee(shape: CalibratedReward, seen: list[Any] | None = None, score: float | None = None) -> Committee:
    """One rule, which gives each answer the share of `right` words in it."""

    def informative(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
        if seen is not None:
            seen.append((prompts, completions))
        return [score if score is not None else float(completion == "cooking") for completion in completions]

    made = Committee({"informative": informative}, calibration=shape)
    made.group_size = 4
    return made


def judged(panel: Committee, written: list[str], **more: Any) -> tuple[list[float | None], dict[str, float]]:
    metrics: dict[str, float] = {}
    rows = len(written)
    columns = {"text": [TEXT] * rows, "question": [QUESTION] * rows, **more}
    return panel(["Layer: 2\n ? \n"] * rows, written, log_metric=metrics.__setitem__, **columns), metrics


def test_members_see_text_question_and_an_answer_without_its_mark() -> None:
    seen: list[Any] = []
    written = [stated(90, "cooking"), stated(10, "law"), "cooking", stated(100, "trust me")]
    rewards, _ = judged(committee(CalibratedReward(), seen), written)
    ((prompts, shown),) = seen
    assert shown == ["cooking", "law", "", "trust me"]
    assert all(TEXT in prompt and QUESTION in prompt and "Layer" not in prompt for prompt in prompts)
    assert rewards == [pytest.approx(1 - 0.5 * 0.01), pytest.approx(-0.5 * 0.01), FORMAT_COST, pytest.approx(-0.5)]


def test_unparsed_answers_are_excluded_from_metrics() -> None:
    written = [stated(90, "cooking"), stated(10, "law"), "cooking", stated(50, "cooking")]
    rewards, metrics = judged(committee(CalibratedReward()), written)
    assert metrics["confidence/mean"] == pytest.approx(0.5)
    assert metrics["confidence/std"] == pytest.approx(math.sqrt((0.16 + 0.16) / 3))
    assert metrics["informativeness/mean"] == pytest.approx(2 / 3)
    assert metrics["calibration/brier"] == pytest.approx((0.01 + 0.01 + 0.25) / 3)
    assert metrics["calibration/ece"] == pytest.approx((0.1 + 0.1 + 0.5) / 3)
    assert metrics["calibration/unparsed"] == 0.25
    assert 0 < metrics["calibration/ece_null"] < metrics["calibration/ece_null_99"]
    scored = [reward for reward in rewards if reward is not None]
    mean = sum(scored) / 4
    assert metrics["advantage/std"] == pytest.approx(math.sqrt(sum((reward - mean) ** 2 for reward in scored) / 4))


def test_without_a_verdict_there_is_no_reward_and_no_metric() -> None:
    rewards, metrics = judged(committee(CalibratedReward(), score=math.nan), [stated(50, "x"), "y", "z", "w"])
    assert rewards == [None] * 4
    assert not [name for name in metrics if name.startswith(("confidence", "calibration", "advantage", "informative"))]


def test_the_newest_thousand_are_kept_over_a_checkpoint() -> None:
    shape = CalibratedReward()
    original = committee(shape)
    for _ in range(260):
        judged(original, [stated(90, "cooking"), stated(10, "law"), "x", stated(50, "cooking")])
    state = original.state_dict()
    assert len(state["calibration"]["newest"]) == 1000
    restored = committee(CalibratedReward())
    restored.load_state_dict(state)
    written = [stated(70, "cooking")] * 4
    assert judged(restored, written)[1] == judged(original, written)[1]


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_reward_is_proper_and_rises_with_being_right(weight: float, p: float, other_p: float, more: float) -> None:
    """Of an answer right with probability p: no confidence earns more than p; being right more often never earns
    less, where the confidence follows."""
    shape = CalibratedReward(weight)

    def expected(chance: float, confidence: float) -> float:
        right, wrong = (merit - shape.weight * (confidence - merit) ** 2 for merit in (1.0, 0.0))
        return chance * right + (1 - chance) * wrong

    assert expected(p, other_p) <= expected(p, p) + 1e-12
    low, high = sorted((p, more))
    assert expected(low, low) <= expected(high, high) + 1e-12
    assert expected(p, 0.0) >= FORMAT_COST


@pytest.mark.parametrize("weight", [-0.1, 1.01, 2.0, math.nan])
def test_a_weight_outside_0_to_1_is_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match=r"reward\.calibration .* outside \[0, 1\]"):
        CalibratedReward(weight)


def test_its_weight_is_a_knob_that_only_held_out_data_judges() -> None:
    shape, actuators = CalibratedReward(0.5), Actuators()
    register_committee_knobs(actuators, committee(shape))
    spec = next(spec for spec in actuators.specs() if spec.name == KNOB)
    assert (spec.low, spec.high, spec.value, spec.moves_own_metric) == (0.0, 1.0, 0.5, True)
    shape.set_weight(1.0)
    assert judged(committee(shape), [stated(100, "law")] * 4)[0] == [-1.0] * 4
