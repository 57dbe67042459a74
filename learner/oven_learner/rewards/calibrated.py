"""A reward for answers that state how sure they are: I − λ(c − I)², with I how informative the answer is.

Both axes are needed. A calibration score alone is won by vague answers; informativeness alone leaves confidence free.
For an answer of mean informativeness m and variance v the reward's mean is m − λ((c − m)² + v): the best confidence is
m, so the rule is proper (Brier 1950; RLCR, Damani et al. 2025, arXiv 2507.16806, is λ = 1 with right or wrong).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.completions.plain_text import as_text
from oven_learner.rewards.calibration_error import binned, brier, null
from oven_learner.rewards.stated_confidence import OracleAnswer, parse_oracle_output

FORMAT_COST = -0.5
"""The reward of what is not in the form. To leave the form out never pays: an answer that states a confidence of 0
earns I − λI², which is 0 or more."""
NEWEST = 1000
"""Answers that calibration is measured of: the error of a perfect forecaster is .03 then, and .11 with the 64 of a
step."""
DRAWS = 300
"""Of the null, in each step: 6 ms of the training thread, where 1,000 take 19. `bench alerts` draws 200."""
KNOB = "reward.calibration"

METRICS = (
    MetricSpec(name="confidence/mean", unit="0 to 1, as stated in this batch"),
    MetricSpec(name="confidence/std", unit="of the confidences stated in this batch; 0: all alike"),
    MetricSpec(
        name="informativeness/mean", better="up", ceiling=1.0, unit="0 to 1, by the members, of answers in the form"
    ),
    MetricSpec(name="calibration/brier", better="down", unit=f"0 to 1, newest {NEWEST} answers"),
    MetricSpec(name="calibration/ece", better="down", unit=f"0 to 1, newest {NEWEST} answers"),
    MetricSpec(name="calibration/ece_null", unit="mean ECE of a perfect forecaster with the same confidences"),
    MetricSpec(name="calibration/ece_null_99", unit="what a perfect forecaster's ECE exceeds once in 100 times"),
    MetricSpec(
        name="calibration/unparsed",
        better="down",
        ceiling=0.0,
        unit=f"share of the newest {NEWEST} that are not in the form",
    ),
    MetricSpec(name="advantage/std", unit="of rewards around their group's mean; 0: nothing to learn from"),
)


class CalibratedReward:
    """The shape of a Committee whose policy states its confidence (`RewardShape`).

    Members see the data's columns `text` and `question`, and the answer without its mark: a judge that reads how sure
    the answer is may be swayed by it. Completions that are not in the form of `parse_oracle_output` cost FORMAT_COST,
    and are left out of calibration.

    `weight` is λ. Raises ConfigError for one outside [0, 1]: above 1 surely wrong beats sometimes right, since
    p − λp(1 − p) falls at p = 0.
    """

    def __init__(self, weight: float = 0.5) -> None:
        self.weight = weight
        self._newest: deque[tuple[float, float] | None] = deque(maxlen=NEWEST)
        """Confidence and informativeness; None for an answer that was not in the form."""

    @property
    def weight(self) -> float:
        """λ."""
        return self._weight

    @weight.setter
    def weight(self, given: float) -> None:
        if not 0 <= given <= 1:
            raise ConfigError(
                f"{KNOB} {given:g} is outside [0, 1]; give a number in it: above 1 a surely wrong answer could earn "
                "more than one that is sometimes right"
            )
        self._weight = float(given)

    def shown(
        self, prompts: Sequence[Any], written: Sequence[str], columns: Mapping[str, Any]
    ) -> tuple[list[str], list[str]]:
        """Text and question; the answer, empty where the completion is not in the form."""
        lacking = [name for name in ("text", "question") if columns.get(name) is None]
        if lacking:
            raise ConfigError(
                f"the data has no column {' or '.join(lacking)}; give the text behind the activations, and the question"
            )
        asked = [
            f"Text:\n{as_text(text)}\n\nQuestion about it:\n{as_text(question)}"
            for text, question in zip(columns["text"], columns["question"], strict=True)
        ]
        return asked, [answer.text if (answer := parse_oracle_output(one)) else "" for one in written]

    def rewards(self, written: Sequence[str], merits: Sequence[float]) -> list[float]:
        """I − λ(c − I)², or FORMAT_COST."""
        return [self._reward(parse_oracle_output(one), merit) for one, merit in zip(written, merits, strict=True)]

    def _reward(self, answer: OracleAnswer | None, merit: float) -> float:
        return FORMAT_COST if answer is None else merit - self._weight * (answer.confidence - merit) ** 2

    def measured(
        self, written: Sequence[Sequence[str]], merits: Sequence[Sequence[float]], rewards: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """See METRICS. A batch without a scored group has none."""
        pairs: list[tuple[float, float] | None] = [
            None if (answer := parse_oracle_output(one)) is None else (answer.confidence, merit)
            for group, of_group in zip(written, merits, strict=True)
            for one, merit in zip(group, of_group, strict=True)
        ]
        if not pairs:
            return {}
        self._newest.extend(pairs)
        metrics = {
            "calibration/unparsed": sum(pair is None for pair in self._newest) / len(self._newest),
            "advantage/std": float(np.std([one - math.fsum(group) / len(group) for group in rewards for one in group])),
        }
        if stated := [pair for pair in pairs if pair is not None]:
            confidences, merit = np.array(stated).T
            metrics |= {
                "confidence/mean": float(confidences.mean()),
                "confidence/std": float(confidences.std()),
                "informativeness/mean": float(merit.mean()),
            }
        if newest := [pair for pair in self._newest if pair is not None]:
            confidences, merit = np.array(newest).T
            by_chance = null(confidences, DRAWS)
            metrics |= {
                "calibration/brier": brier(confidences, merit),
                "calibration/ece": binned(confidences, merit).expected_error,
                "calibration/ece_null": by_chance.mean,
                "calibration/ece_null_99": by_chance.high,
            }
        return metrics

    def announced(self) -> tuple[MetricSpec, ...]:
        """METRICS."""
        return METRICS

    def announce(self, actuators: Actuators) -> None:
        """λ as `reward.calibration`. It moves the reward itself, so that only what is held out judges a change."""

        def write(value: float) -> None:
            self.weight = value

        actuators.scalar(KNOB, lambda: self.weight, write, low=0.0, high=1.0, unit="λ", moves_own_metric=True)

    def state_dict(self) -> dict[str, Any]:
        """The newest answers. λ is a knob, and comes back as knobs do."""
        return {"newest": list(self._newest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The newest answers of the checkpoint."""
        kept = state.get("newest", ())
        self._newest = deque((None if one is None else (one[0], one[1]) for one in kept), maxlen=NEWEST)
