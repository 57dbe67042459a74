"""A reward for answers with a stated confidence, `[epistemic status: 85] The text is about cooking.`: I − λ(c − I)²,
where I is the answer's informativeness.

Both terms are needed. Vague answers would win a pure calibration score, and informativeness alone ignores confidence.
For an answer of mean informativeness m and variance v the mean reward is m − λ((c − m)² + v). The best confidence is m,
so the rule is proper (Brier 1950). RLCR (Damani et al. 2025, arXiv 2507.16806) has λ = 1 and a right-or-wrong I.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.completions.plain_text import as_text
from oven_learner.rewards.calibration_error import binned, brier, null

FORM = re.compile(r"\s*\[epistemic status: (100|[1-9]?[0-9])\]\s+(\S.*)", re.DOTALL)
"""The format of a whole answer: an integer from 0 to 100, then some text."""
MARK = "epistemicstatus"
"""Letters that the answer text must not contain in a row. A second mark would show the confidence to judges, and could
contradict the first."""
FORMAT_COST = -0.5
"""Reward of completions in the wrong format. Omitting the format never pays: an answer with a confidence of 0 earns I −
λI², which is at least 0."""
NEWEST = 1000
"""Number of recent answers for calibration metrics. The error of a perfect forecaster is then 0.03, instead of 0.11
with the 64 answers of one step."""
DRAWS = 300
"""Simulations of the null per step. They take 6 ms of the training thread; 1,000 would take 19 ms."""
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
        name="calibration/unparsed", better="down", ceiling=0.0,
        unit=f"share of the newest {NEWEST} that are not in the form",
    ),
    MetricSpec(name="advantage/std", unit="of rewards around their group's mean; 0: nothing to learn from"),
)  # fmt: skip


class OracleAnswer(NamedTuple):
    """An answer without its confidence mark, and the confidence from 0 to 1."""

    confidence: float
    text: str


def parse_oracle_output(text: str) -> OracleAnswer | None:
    """Return the answer, or None for a wrong format: no mark or two, a number outside 0 to 100, or no text.

    There is no default confidence, because with 0.5, omitting the mark would pay for half-right answers.
    """
    match = FORM.fullmatch(text)
    if match is None:
        return None
    # Letters only, normalised, so that spaces, signs and wide letters cannot hide a second mark.
    letters = "".join(filter(str.isalpha, unicodedata.normalize("NFKC", match[2]).casefold()))
    return None if MARK in letters else OracleAnswer(int(match[1]) / 100, match[2].strip())


class CalibratedReward:
    """A Committee's reward for policies that state their confidence. It prepares the members' input and converts their
    scores.

    Members see the data's columns `text` and `question`, and the answer without its confidence, which could sway a
    judge. Their scores are combined by weighted mean, because a group's standardised aggregate may leave [0, 1].
    Completions that `parse_oracle_output` rejects cost FORMAT_COST and are excluded from calibration.

    `weight` is λ. Raises ConfigError for a value outside [0, 1]. Above 1, a policy that is surely wrong beats one that
    is sometimes right, because p − λp(1 − p) falls at p = 0.
    """

    def __init__(self, weight: float = 0.5) -> None:
        self.set_weight(weight)
        self._newest: deque[tuple[float, float] | None] = deque(maxlen=NEWEST)
        """Recent pairs of (confidence, informativeness). None for an answer in the wrong format."""

    def set_weight(self, weight: float) -> None:
        """Set λ."""
        if not 0 <= weight <= 1:
            raise ConfigError(
                f"{KNOB} {weight:g} is outside [0, 1]; give a number in it: above 1 a surely wrong answer could earn "
                "more than one that is sometimes right"
            )
        self.weight = float(weight)

    def shown(
        self, prompts: Sequence[Any], written: Sequence[str], columns: Mapping[str, Any]
    ) -> tuple[list[str], list[str]]:
        """Return texts with questions, and the answers. An answer is empty if the completion has the wrong format."""
        lacking = [name for name in ("text", "question") if columns.get(name) is None]
        if lacking:
            raise ConfigError(
                f"the data has no column {' or '.join(lacking)}; add the text behind the activations, and the question"
            )
        questions = [
            f"Text:\n{as_text(text)}\n\nQuestion about it:\n{as_text(question)}"
            for text, question in zip(columns["text"], columns["question"], strict=True)
        ]
        return questions, [answer.text if (answer := parse_oracle_output(completion)) else "" for completion in written]

    def rewards(self, written: Sequence[str], merits: Sequence[float]) -> list[float]:
        """Return the rewards: I − λ(c − I)², or FORMAT_COST for a wrong format."""
        answers = [parse_oracle_output(completion) for completion in written]
        return [
            FORMAT_COST if answer is None else merit - self.weight * (answer.confidence - merit) ** 2
            for answer, merit in zip(answers, merits, strict=True)
        ]

    def measured(
        self, written: Sequence[Sequence[str]], merits: Sequence[Sequence[float]], rewards: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Return the values of METRICS. Empty without a scored group."""
        pairs: list[tuple[float, float] | None] = [
            None if (answer := parse_oracle_output(completion)) is None else (answer.confidence, merit)
            for group, of_group in zip(written, merits, strict=True)
            for completion, merit in zip(group, of_group, strict=True)
        ]
        if not pairs:
            return {}
        self._newest.extend(pairs)
        metrics = {
            "calibration/unparsed": sum(pair is None for pair in self._newest) / len(self._newest),
            "advantage/std": float(
                np.std([reward - math.fsum(group) / len(group) for group in rewards for reward in group])
            ),
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
        """Return METRICS."""
        return METRICS

    def announce(self, actuators: Actuators) -> None:
        """Register λ as `reward.calibration`. It changes the reward itself, so only held-out metrics can judge a
        change."""
        actuators.scalar(KNOB, lambda: self.weight, self.set_weight, low=0.0, high=1.0, unit="λ", moves_own_metric=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the newest answers. λ is a knob and is restored like other knobs."""
        return {"newest": list(self._newest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the checkpoint's newest answers."""
        newest = state.get("newest", ())
        self._newest = deque((None if pair is None else (pair[0], pair[1]) for pair in newest), maxlen=NEWEST)
