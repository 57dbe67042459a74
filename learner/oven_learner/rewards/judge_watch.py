"""Monitor each remote judge during scoring: its reliability, its biases, and the results of its tests."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final

from oven_core.protocol.committee_requests import JudgeHealth
from oven_core.protocol.messages import MetricSpec
from oven_learner.rewards.aggregation import sees_difference, standardised
from oven_learner.rewards.reliability import Reliability
from oven_learner.rewards.scores import Abstention, Verdict

log = logging.getLogger("oven.learner")

ALPHA: Final = 0.001
"""False-alarm probability of one test on one judge per run. With two tests on each of five judges, one run in a hundred
has a false alarm."""
TUNED: Final = 10.0
"""The value of V for which the test is tuned (ρ), reached after 70 groups of eight completions."""
SMALLEST: Final = 0.1
"""Smallest mean correlation for an alarm. Long runs also detect smaller ones, which change no advantage."""
FOOLED: Final = "fooled"
"""The kind of abstention of a member whose judge failed a test with a known answer."""
LENGTH: Final = 0.2
"""Smallest mean correlation with length, beyond the other members', for an alarm. Twice that of positions: an answer's
value may depend on its length, and judges with different noise see that to different degrees."""
UNRELIABLE: Final = 0.5
"""Reliabilities below this value are logged."""
_METRICS: Final = {
    "reliability": "0.1 to 1, its weight is multiplied by it",
    "length": "correlation of its scores with the answers' length, mean over groups so far",
    "length_bias": "the same beyond what the other members' scores show; an alarm from 0.2 on",
    "order_bias": "correlation of its scores with the place shown, mean over groups so far; an alarm from 0.1 on",
    "order_flips": "share of pairs that turned round when a group was shown in reverse",
    "change_p": "probability of its scores of old groups, had it not changed; an alarm to 0.001",
    "changes": "times so far that it was found to be another judge than before",
    "controls_failed": "tests with known answers that it got wrong so far",
    "quarantined": "1: it is asked for tests only",
    "cut_texts": "texts so far that were too long to be shown whole",
}
"""The unit of each remote member's metrics `committee/<member>/<name>`."""
_DOWN: Final = frozenset({"changes", "controls_failed", "quarantined", "order_flips", "cut_texts"})


class BiasTest:
    """A sequential test for scores that depend on an irrelevant quantity, such as the position of an answer.

    Each group yields one correlation over its completions. Without a bias its mean is 0 and its variance 1/(n − 1) for
    n completions, because positions are random. The sum over groups S with variance V then has the e-value of a normal
    mixture, √(ρ / (V + ρ)) · exp(S² / (2 (V + ρ))) (Robbins 1970; Howard et al. 2021, arXiv 1810.08240, eq. 14). It
    exceeds 1/α with probability at most α in a whole run, for any length and any number of looks. `smallest` is the
    smallest mean correlation that can raise an alarm.
    """

    def __init__(self, smallest: float = SMALLEST) -> None:
        self._smallest = smallest
        self._sum = self._variance = 0.0
        self.groups = 0

    def add_group(self, scores: Sequence[float], followed: Sequence[float]) -> None:
        """Add one group: its scores, and the values that they should not depend on. Ignored if either is constant."""
        measured = correlation(scores, followed)
        if measured is not None:
            self._sum += measured
            self._variance += 1 / (len(scores) - 1)
            self.groups += 1

    @property
    def mean(self) -> float | None:
        """The mean correlation, or None before the first group."""
        return self._sum / self.groups if self.groups else None

    @property
    def alarm(self) -> bool:
        """Whether the bias is significant and large enough to matter."""
        wide = self._variance + TUNED
        evidence = self._sum**2 / (2 * wide) - 0.5 * math.log(wide / TUNED)  # the logarithm of the e-value
        return abs(self.mean or 0.0) >= self._smallest and evidence >= -math.log(ALPHA)


def correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the correlation, or None if either is constant."""
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    spread_a = math.sqrt(math.fsum((x - mean_a) ** 2 for x in a))
    spread_b = math.sqrt(math.fsum((y - mean_b) ** 2 for y in b))
    if min(spread_a, spread_b) < 1e-9:
        return None
    together = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return max(-1.0, min(1.0, together / (spread_a * spread_b)))


class JudgeWatch:
    """A monitor of the remote members `judges`. Reliability is always measured, and `weigh` applies it to weights."""

    def __init__(self, judges: Sequence[str], *, weigh: bool = True) -> None:
        self._weigh = weigh
        self.reliability = Reliability(judges)
        self._evidence_of: dict[str, _JudgeEvidence] = {}
        self._numbers = itertools.count()
        self._begun: dict[str, int] = {}
        self._reported: set[tuple[str, str]] = set()
        for judge in judges:
            self.begin(judge)

    def announced(self) -> tuple[MetricSpec, ...]:
        """Return the metrics of each judge."""
        return tuple(
            MetricSpec(name=f"committee/{judge}/{name}", unit=unit, better="down" if name in _DOWN else "neither")
            for judge in self._evidence_of
            for name, unit in _METRICS.items()
        )

    def weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the members' weights. Those of judges are multiplied by reliability."""
        return self.reliability.weights(weights) if self._weigh else dict(weights)

    def add_group(
        self, shown: Sequence[str], texts: Sequence[str], rows: Mapping[str, Verdict], weights: Mapping[str, float]
    ) -> None:
        """Add one group.

        `rows`: each voting member's verdict on `texts`, the group's completions in order. `shown`: the distinct texts
        in the order shown to judges. `weights`: the members' weights before reliability.
        """
        first = [texts.index(text) for text in shown]  # equal texts have equal scores and count once
        scores = {
            name: [verdict[i] for i in first] for name, verdict in rows.items() if not isinstance(verdict, Abstention)
        }
        z = {name: standardised(values) for name, values in scores.items() if sees_difference(values)}
        places, lengths = [float(n) for n in range(len(shown))], [math.log1p(len(text)) for text in shown]
        for judge, evidence in self._evidence_of.items():
            verdict = rows.get(judge)
            if isinstance(verdict, Abstention) and verdict.kind == FOOLED:
                self.reliability.failed_control(judge)
            if judge in z:
                evidence.add_group(z[judge], [z[name] for name in z if name != judge], places, lengths)
        self.reliability.add_group(scores, weights)

    @property
    def begun(self) -> dict[str, int]:
        """A number per judge that changes whenever another judge takes over the name."""
        return dict(self._begun)

    def begin(self, judge: str) -> None:
        """Start afresh for a new judge, or for a name that another judge takes over."""
        self._evidence_of[judge] = _JudgeEvidence()
        self._begun[judge] = next(self._numbers)
        self.reliability.begin(judge)
        self._reported = {(name, kind) for name, kind in self._reported if name != judge}

    def leave(self, judge: str) -> None:
        """Stop watching a judge."""
        del self._evidence_of[judge], self._begun[judge]
        self.reliability.leave(judge)
        self._reported = {(name, kind) for name, kind in self._reported if name != judge}

    def metrics(self, health: Mapping[str, JudgeHealth]) -> dict[str, float]:
        """Return the current metrics, and log new findings. `health`: the reports of the judges' members."""
        metrics: dict[str, float] = {}
        reliability = self.reliability.values()
        for judge, evidence in self._evidence_of.items():
            values = evidence.values() | {"reliability": reliability[judge]} | _values(health.get(judge))
            metrics |= {f"committee/{judge}/{name}": value for name, value in values.items() if value is not None}
            self._log_findings(judge, values, evidence)
        return metrics

    def _log_findings(self, judge: str, values: Mapping[str, float | None], evidence: _JudgeEvidence) -> None:
        """Log each finding once when it appears, and once when it ends."""
        order, beyond = evidence.order.mean or 0.0, evidence.length.mean or 0.0
        shaky, changes = (values["reliability"] or 1.0) < UNRELIABLE, values.get("changes") or 0.0
        by_place = f"scores by the place in which an answer is shown (correlation {order:+.2f})"
        by_length = f"scores by length, unlike the others (correlation {beyond:+.2f} beyond)"
        standing = {
            "quarantine": (bool(values.get("quarantined")), "is in quarantine: it failed tests with known answers"),
            "order": (evidence.order.alarm, by_place),
            "length": (evidence.length.alarm, by_length),
            "reliability": (shaky, "disagrees with the others; its weight is lowered"),
            f"change {changes:.0f}": (changes > 0, "scores old groups otherwise than before: its model has changed"),
            "cut": (bool(values.get("cut_texts")), "was shown long texts cut; committee.characters is the limit"),
        }
        for kind, (holds, message) in standing.items():
            if holds and (judge, kind) not in self._reported:
                self._reported.add((judge, kind))
                log.warning("committee member %s %s", judge, message)
            elif not holds and (judge, kind) in self._reported:
                self._reported.discard((judge, kind))
                log.info("committee member %s: no longer so: it %s", judge, message)


class _JudgeEvidence:
    """The evidence about one judge."""

    def __init__(self) -> None:
        self.order, self.length = BiasTest(), BiasTest(LENGTH)
        self._lengths = [0.0, 0]
        """Sum and number of the correlations with length."""

    def add_group(
        self,
        own: Sequence[float],
        others: Sequence[Sequence[float]],
        places: Sequence[float],
        lengths: Sequence[float],
    ) -> None:
        """Add the judge's standard scores of one group, and those of the other members."""
        self.order.add_group(own, places)
        if (with_length := correlation(own, lengths)) is not None:
            self._lengths = [self._lengths[0] + with_length, self._lengths[1] + 1]
        if others:
            beyond = [mine - math.fsum(theirs) / len(others) for mine, *theirs in zip(own, *others, strict=True)]
            self.length.add_group(beyond, lengths)

    def values(self) -> dict[str, float | None]:
        total, count = self._lengths
        length = total / count if count else None
        return {"length": length, "length_bias": self.length.mean, "order_bias": self.order.mean}


def _values(health: JudgeHealth | None) -> dict[str, float | None]:
    if health is None:
        return {}
    counts = ("changes", "controls_failed", "quarantined", "cut_texts")
    return {"order_flips": health.order_flips, "change_p": health.change_p} | {
        name: float(getattr(health, name)) for name in counts
    }
