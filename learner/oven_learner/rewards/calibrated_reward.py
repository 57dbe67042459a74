"""A reward for answers that state a confidence, such as `[epistemic status: 85] The text is about cooking.` Activation
oracles write such answers. They are models that answer questions about another model's activations.

The reward is I − λ(c − I)² for an answer with informativeness I and confidence c. I is the members' mean score. Both
terms are needed: vague answers would maximise a pure calibration score, and informativeness alone ignores confidence.
For answers with mean informativeness m and variance v, the mean reward is m − λ((c − m)² + v). It is highest for a
confidence of m, so the rule is proper (Brier 1950). RLCR (Damani et al. 2025, arXiv 2507.16806) is the special case of
λ = 1, where I is either 0 or 1.
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
from oven_learner.rewards.calibration_error import bin_answers, brier, null_error

ANSWER_FORMAT = re.compile(r"\s*\[epistemic status: (100|[1-9]?[0-9])\]\s+(\S.*)", re.DOTALL)
"""Format of a complete answer, which is an integer from 0 to 100 followed by text."""
MARK_LETTERS = "epistemicstatus"
"""Letters of the confidence mark. The answer's text must not contain a second mark, which would reveal the confidence
to judges and could contradict the first mark."""
FORMAT_COST = -0.5
"""Reward of completions in the wrong format. This format never pays, because a confidence of 0 earns I − λI² ≥ 0."""
WINDOW = 1000
"""Number of recent answers for calibration metrics. With fewer answers, even a perfect forecaster has a large
calibration error: 0.03 for 1,000 answers, but 0.11 for 64."""
SIMULATIONS = 300
"""Simulations of a perfect forecaster per step. They take about 6 ms of the training thread."""
KNOB = "reward.calibration"
METRICS = (
    MetricSpec(name="confidence/mean", unit="mean of the confidences stated in this batch, 0 to 1"),
    MetricSpec(name="confidence/std", unit="standard deviation of the confidences stated in this batch"),
    MetricSpec(
        name="informativeness/mean", better="up", ceiling=1.0, unit="members' mean score of well-formed answers, 0 to 1"
    ),
    MetricSpec(name="calibration/brier", better="down", unit=f"0 to 1, newest {WINDOW} answers"),
    MetricSpec(name="calibration/ece", better="down", unit=f"0 to 1, newest {WINDOW} answers"),
    MetricSpec(name="calibration/ece_null", unit="mean ECE of a perfect forecaster with the same confidences"),
    MetricSpec(name="calibration/ece_null_99", unit="99th percentile of the ECE of a perfect forecaster"),
    MetricSpec(
        name="calibration/unparsed", better="down", ceiling=0.0, unit=f"malformed share of the newest {WINDOW} answers"
    ),
    MetricSpec(name="advantage/std", unit="standard deviation of rewards around their group's mean"),
)  # fmt: skip


class OracleAnswer(NamedTuple):
    """An activation oracle's answer without its confidence mark, and the confidence from 0 to 1."""

    confidence: float
    text: str


def parse_oracle_output(text: str) -> OracleAnswer | None:
    """Return the answer, or None for a wrong format. The format is wrong if there is no mark or a second one, a number
    outside 0 to 100, or no text. There is no default confidence, so omitting the mark never pays."""
    match = ANSWER_FORMAT.fullmatch(text)
    if match is None:
        return None
    # Compare normalised letters only, so that spaces, signs and wide letters cannot hide a second mark.
    letters = "".join(filter(str.isalpha, unicodedata.normalize("NFKC", match[2]).casefold()))
    return None if MARK_LETTERS in letters else OracleAnswer(int(match[1]) / 100, match[2].strip())


class CalibratedReward:
    """A Committee's reward for policies that state their confidence. It prepares the members' inputs and converts their
    scores. Members see the data columns `text` and `question`, and the answer without its confidence, which could
    influence a judge. The reward uses the weighted mean of their scores, because a standardised aggregate may leave
    [0, 1]. Completions in the wrong format get FORMAT_COST and are excluded from calibration.

    `weight` is λ. Raises ConfigError for a value outside [0, 1]. With λ above 1, a policy that is always wrong could
    beat one that is correct with a small probability p, whose best mean reward is p − λp(1 − p)."""

    def __init__(self, weight: float = 0.5) -> None:
        self.set_weight(weight)
        self._recent_answers: deque[tuple[float, float] | None] = deque(maxlen=WINDOW)
        """Recent pairs of (confidence, informativeness). None for an answer in the wrong format."""

    def set_weight(self, weight: float) -> None:
        """Set λ."""
        if not 0 <= weight <= 1:
            raise ConfigError(
                f"{KNOB} {weight:g} is outside [0, 1]; use a value in this range, because above 1 a wrong answer could "
                "earn more than one that is sometimes correct"
            )
        self.weight = float(weight)

    def judge_inputs(
        self, prompts: Sequence[Any], completions: Sequence[str], columns: Mapping[str, Any]
    ) -> tuple[list[str], list[str]]:
        """Return the prompts and answers for judges. An answer is empty if the completion has the wrong format."""
        missing_columns = [name for name in ("text", "question") if columns.get(name) is None]
        if missing_columns:
            raise ConfigError(
                f"the data has no column {' or '.join(missing_columns)}; add the text behind the activations, "
                "and the question"
            )
        questions = [
            f"Text:\n{as_text(text)}\n\nQuestion about it:\n{as_text(question)}"
            for text, question in zip(columns["text"], columns["question"], strict=True)
        ]
        answers = [parse_oracle_output(completion) for completion in completions]
        return questions, [answer.text if answer is not None else "" for answer in answers]

    def rewards(self, completions: Sequence[str], scores: Sequence[float]) -> list[float]:
        """Return the reward I − λ(c − I)² per completion, or FORMAT_COST for a wrong format. `scores` are the I."""
        rewards = []
        for completion, score in zip(completions, scores, strict=True):
            answer = parse_oracle_output(completion)
            rewards.append(FORMAT_COST if answer is None else score - self.weight * (answer.confidence - score) ** 2)
        return rewards

    def metrics(
        self,
        completions: Sequence[Sequence[str]],
        scores: Sequence[Sequence[float]],
        rewards: Sequence[Sequence[float]],
    ) -> dict[str, float]:
        """Return the values of METRICS for the scored groups, or {} if no group was scored."""
        pairs: list[tuple[float, float] | None] = []
        for group, group_scores in zip(completions, scores, strict=True):
            for completion, score in zip(group, group_scores, strict=True):
                answer = parse_oracle_output(completion)
                pairs.append(None if answer is None else (answer.confidence, score))
        if not pairs:
            return {}
        self._recent_answers.extend(pairs)
        unparsed_count = sum(pair is None for pair in self._recent_answers)
        advantages = [reward - math.fsum(group) / len(group) for group in rewards for reward in group]
        metrics = {
            "calibration/unparsed": unparsed_count / len(self._recent_answers),
            "advantage/std": float(np.std(advantages)),
        }
        parsed_pairs = [pair for pair in pairs if pair is not None]
        if parsed_pairs:
            confidences, informativeness = np.array(parsed_pairs).T
            metrics |= {
                "confidence/mean": float(confidences.mean()),
                "confidence/std": float(confidences.std()),
                "informativeness/mean": float(informativeness.mean()),
            }
        recent_pairs = [pair for pair in self._recent_answers if pair is not None]
        if recent_pairs:
            confidences, informativeness = np.array(recent_pairs).T
            null = null_error(confidences, SIMULATIONS)
            metrics |= {
                "calibration/brier": brier(confidences, informativeness),
                "calibration/ece": bin_answers(confidences, informativeness).expected_error,
                "calibration/ece_null": null.mean,
                "calibration/ece_null_99": null.percentile_99,
            }
        return metrics

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        """Return the descriptions of all metrics of this reward."""
        return METRICS

    def register_knob(self, actuators: Actuators) -> None:
        """Register λ as `reward.calibration`. It changes the reward, so only held-out metrics can judge a change."""
        actuators.scalar(KNOB, lambda: self.weight, self.set_weight, low=0.0, high=1.0, unit="λ", moves_own_metric=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the recent answers. λ is not included, because it is restored like other knobs."""
        return {"newest": list(self._recent_answers)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the recent answers from a checkpoint."""
        newest = state.get("newest", ())
        self._recent_answers = deque((None if pair is None else (pair[0], pair[1]) for pair in newest), maxlen=WINDOW)
