"""Monitors each remote judge while it scores: its reliability, biases, and results of tests with known answers."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final

from oven_core.protocol.committee_requests import JudgeHealth
from oven_core.protocol.messages import MetricSpec
from oven_learner.rewards.aggregation import sees_difference, standardise
from oven_learner.rewards.reliability import Reliability
from oven_learner.rewards.verdicts import Abstention, Verdict

log = logging.getLogger("oven.learner")

ALPHA: Final = 0.001
"""False-alarm probability per run of one test on one judge. With two tests on each of five judges, 1 % of runs
have a false alarm."""
TUNING_VARIANCE: Final = 10.0
"""Variance V for which the test is tuned (ρ). It is reached after 70 groups of eight completions."""
MIN_CORRELATION: Final = 0.1
"""Minimum mean correlation for an alarm. Smaller ones are also detected in long runs, but hardly change advantages."""
FOOLED: Final = "fooled"
"""Kind of abstention of a member whose judge failed a test with a known answer."""
MIN_LENGTH_CORRELATION: Final = 0.2
"""Minimum excess of a judge's mean correlation with length over that of the other members, for an alarm. It is twice
the value for positions, because the value of an answer may depend on its length, and judges with different noise
reflect that to different degrees."""
LOW_RELIABILITY: Final = 0.5
"""Reliabilities below this value are logged."""
_METRICS: Final = {
    "reliability": "0.1 to 1, factor of its weight",
    "length": "correlation of its scores with the length of answers, mean over groups so far",
    "length_bias": "the same, minus the correlation of the other members' scores; alarm from 0.2",
    "order_bias": "correlation of its scores with the position of answers, mean over groups so far; alarm from 0.1",
    "order_flips": "share of pairs that changed order when a group was shown in reverse",
    "change_p": "p-value of its scores of old groups if the judge is unchanged; alarm up to 0.001",
    "changes": "number of times that the judge has changed so far",
    "controls_failed": "number of tests with known answers that it has failed so far",
    "quarantined": "1 if it is in quarantine and only gets tests",
    "cut_texts": "number of answers so far that were too long and were truncated",
}
"""Names of the metrics `committee/<member>/<name>` of remote members, and their units."""
_LOWER_IS_BETTER: Final = frozenset({"changes", "controls_failed", "quarantined", "order_flips", "cut_texts"})


class BiasTest:
    """A sequential test for scores that depend on an irrelevant quantity, such as the position of an answer. Each group
    yields one correlation over its completions. Without a bias its mean is 0 and its variance 1/(n − 1) for n
    completions, because positions are random. The sum S over groups, with variance V, then has the e-value of a normal
    mixture, √(ρ / (V + ρ)) · exp(S² / (2 (V + ρ))) (Robbins 1970; Howard et al. 2021, arXiv 1810.08240, eq. 14). The
    probability that it ever exceeds 1/α is at most α, regardless of the run's length and the number of checks.
    `min_correlation` is the minimum mean correlation for an alarm."""

    def __init__(self, min_correlation: float = MIN_CORRELATION) -> None:
        self._min_correlation = min_correlation
        self._sum = self._variance = 0.0
        self.groups = 0

    def add_group(self, scores: Sequence[float], irrelevant_values: Sequence[float]) -> None:
        """Add the scores of a group, and the values that they should not depend on. Constant values are ignored."""
        group_correlation = correlation(scores, irrelevant_values)
        if group_correlation is not None:
            self._sum += group_correlation
            self._variance += 1 / (len(scores) - 1)
            self.groups += 1

    @property
    def mean(self) -> float | None:
        """Mean correlation, or None before the first group."""
        return self._sum / self.groups if self.groups else None

    @property
    def has_alarm(self) -> bool:
        """Whether the bias is significant and large enough to matter."""
        variance = self._variance + TUNING_VARIANCE
        log_e_value = self._sum**2 / (2 * variance) - 0.5 * math.log(variance / TUNING_VARIANCE)
        return abs(self.mean or 0.0) >= self._min_correlation and log_e_value >= -math.log(ALPHA)


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the correlation, or None if either is constant."""
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    spread_a = math.sqrt(math.fsum((x - mean_a) ** 2 for x in a))
    spread_b = math.sqrt(math.fsum((y - mean_b) ** 2 for y in b))
    if min(spread_a, spread_b) < 1e-9:
        return None
    covariance = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, covariance / (spread_a * spread_b)))


class JudgeWatch:
    """A monitor of the remote members `judges`. Reliability changes weights only if `applies_reliability`."""

    def __init__(self, judges: Sequence[str], *, applies_reliability: bool = True) -> None:
        self._applies_reliability = applies_reliability
        self.reliability = Reliability(judges)
        self._evidence: dict[str, _JudgeEvidence] = {}
        self._version_numbers = itertools.count()
        self._versions: dict[str, int] = {}
        self._reported: set[tuple[str, str]] = set()
        for judge in judges:
            self.reset(judge)

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        """Return the metrics of each judge."""
        return tuple(
            MetricSpec(
                name=f"committee/{judge}/{name}", unit=unit, better="down" if name in _LOWER_IS_BETTER else "neither"
            )
            for judge in self._evidence
            for name, unit in _METRICS.items()
        )

    def weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the members' weights. The weights of judges are multiplied by their reliability."""
        return self.reliability.weights(weights) if self._applies_reliability else dict(weights)

    def add_group(
        self,
        requested_texts: Sequence[str],
        texts: Sequence[str],
        verdicts: Mapping[str, Verdict],
        weights: Mapping[str, float],
    ) -> None:
        """Add one group. `verdicts` are the voting members' verdicts on `texts`, the group's completions in order.
        `requested_texts` are the distinct texts in the order in which judges see them. `weights` do not
        include reliability."""
        indices = [texts.index(text) for text in requested_texts]  # equal texts have equal scores and count once
        scores = {
            name: [verdict[i] for i in indices]
            for name, verdict in verdicts.items()
            if not isinstance(verdict, Abstention)
        }
        standard_scores = {name: standardise(values) for name, values in scores.items() if sees_difference(values)}
        positions = [float(n) for n in range(len(requested_texts))]
        lengths = [math.log1p(len(text)) for text in requested_texts]
        for judge, evidence in self._evidence.items():
            verdict = verdicts.get(judge)
            if isinstance(verdict, Abstention) and verdict.kind == FOOLED:
                self.reliability.record_failed_control(judge)
            if judge in standard_scores:
                others = [values for name, values in standard_scores.items() if name != judge]
                evidence.add_group(standard_scores[judge], others, positions, lengths)
        self.reliability.add_group(scores, weights)

    @property
    def versions(self) -> dict[str, int]:
        """Each judge's version, a number that changes whenever another model replaces the judge."""
        return dict(self._versions)

    def reset(self, judge: str) -> None:
        """Reset the evidence for a new judge, or for one that another model has replaced."""
        self._evidence[judge] = _JudgeEvidence()
        self._versions[judge] = next(self._version_numbers)
        self.reliability.reset(judge)
        self._reported = {(name, kind) for name, kind in self._reported if name != judge}

    def leave(self, judge: str) -> None:
        """Stop watching a judge."""
        del self._evidence[judge], self._versions[judge]
        self.reliability.leave(judge)
        self._reported = {(name, kind) for name, kind in self._reported if name != judge}

    def metrics(self, health: Mapping[str, JudgeHealth]) -> dict[str, float]:
        """Return the current metrics, and log new findings. `health` contains the members' reports on their judges."""
        metrics: dict[str, float] = {}
        reliability = self.reliability.values()
        for judge, evidence in self._evidence.items():
            values = evidence.values() | {"reliability": reliability[judge]} | _health_values(health.get(judge))
            metrics |= {f"committee/{judge}/{name}": value for name, value in values.items() if value is not None}
            self._log_findings(judge, values, evidence)
        return metrics

    def _log_findings(self, judge: str, values: Mapping[str, float | None], evidence: _JudgeEvidence) -> None:
        """Log each finding once when it appears, and once when it ends."""
        order_bias, length_bias = evidence.order.mean or 0.0, evidence.length.mean or 0.0
        is_unreliable = (values["reliability"] or 1.0) < LOW_RELIABILITY
        changes = values.get("changes") or 0.0
        order_message = f"gives scores that depend on the position of an answer (correlation {order_bias:+.2f})"
        length_message = f"favours a length more than the others do (correlation {length_bias:+.2f} relative to theirs)"
        findings = {
            "quarantine": (bool(values.get("quarantined")), "is in quarantine: it failed tests with known answers"),
            "order": (evidence.order.has_alarm, order_message),
            "length": (evidence.length.has_alarm, length_message),
            "reliability": (is_unreliable, "disagrees with the others; its weight is reduced"),
            f"change {changes:.0f}": (changes > 0, "scores old groups differently than before: its model has changed"),
            "cut": (bool(values.get("cut_texts")), "reads long answers only up to committee.characters"),
        }
        for kind, (is_present, message) in findings.items():
            if is_present and (judge, kind) not in self._reported:
                self._reported.add((judge, kind))
                log.warning("committee member %s %s", judge, message)
            elif not is_present and (judge, kind) in self._reported:
                self._reported.discard((judge, kind))
                log.info("committee member %s: resolved: it %s", judge, message)


class _JudgeEvidence:
    """The correlations of one judge's scores with position and length."""

    def __init__(self) -> None:
        self.order, self.length = BiasTest(), BiasTest(MIN_LENGTH_CORRELATION)
        self._length_sum = 0.0
        """Sum of the correlations with length."""
        self._length_count = 0

    def add_group(
        self,
        scores: Sequence[float],
        others: Sequence[Sequence[float]],
        positions: Sequence[float],
        lengths: Sequence[float],
    ) -> None:
        """Add the standard scores of one group by this judge and by the other members."""
        self.order.add_group(scores, positions)
        length_correlation = correlation(scores, lengths)
        if length_correlation is not None:
            self._length_sum += length_correlation
            self._length_count += 1
        if others:
            residuals = [
                score - math.fsum(other_scores) / len(others)
                for score, *other_scores in zip(scores, *others, strict=True)
            ]
            self.length.add_group(residuals, lengths)

    def values(self) -> dict[str, float | None]:
        length = self._length_sum / self._length_count if self._length_count else None
        return {"length": length, "length_bias": self.length.mean, "order_bias": self.order.mean}


def _health_values(health: JudgeHealth | None) -> dict[str, float | None]:
    if health is None:
        return {}
    values = {"order_flips": health.order_flips, "change_p": health.change_p}
    for name in ("changes", "controls_failed", "quarantined", "cut_texts"):
        values[name] = float(getattr(health, name))
    return values
