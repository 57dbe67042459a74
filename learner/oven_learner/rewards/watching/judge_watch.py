"""What is seen of each remote judge while it scores: its reliability, its biases, and what its own tests said."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final

from oven_core.protocol.committee_requests import JudgeHealth
from oven_core.protocol.messages import MetricSpec
from oven_learner.rewards.aggregation import Reliability, sees_difference, standardised
from oven_learner.rewards.scores import Abstention, Verdict
from oven_learner.rewards.watching.bias_test import BiasTest, correlation

log = logging.getLogger("oven.learner")

FOOLED: Final = "fooled"
"""A member's own kind of abstention: its judge failed a test with a known answer."""
LENGTH: Final = 0.2
"""Mean correlation with length, beyond the other members', that is an alarm. Twice that of places: what an answer is
worth may well depend on its length, and judges of unlike noise see that unlike well."""
UNRELIABLE: Final = 0.5
"""A judge's reliability below it is said in the process log."""
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
"""Of each remote member, as `committee/<member>/<name>`: its unit."""
_DOWN: Final = frozenset({"changes", "controls_failed", "quarantined", "order_flips", "cut_texts"})


class JudgeWatch:
    """`judges`: the remote members. `weigh`: whether reliability changes weights; it is measured either way."""

    def __init__(self, judges: Sequence[str], *, weigh: bool = True) -> None:
        self._weigh = weigh
        self.reliability = Reliability(judges)
        self._seen = {judge: _Seen() for judge in judges}
        self._numbers = itertools.count(1)
        self._begun = dict.fromkeys(judges, 0)
        self._said: set[tuple[str, str]] = set()

    def announced(self) -> tuple[MetricSpec, ...]:
        """Its metrics of each judge."""
        return tuple(
            MetricSpec(name=f"committee/{judge}/{name}", unit=unit, better="down" if name in _DOWN else "neither")
            for judge in self._seen
            for name, unit in _METRICS.items()
        )

    def weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """The members' weights, each judge's multiplied by its reliability."""
        return self.reliability.weights(weights) if self._weigh else dict(weights)

    def saw(
        self, shown: Sequence[str], texts: Sequence[str], rows: Mapping[str, Verdict], weights: Mapping[str, float]
    ) -> None:
        """One group. `rows`: each voting member's verdict on `texts`, the group's completions in their order; `shown`:
        the distinct ones in the order in which judges saw them; `weights`: the members', before reliability."""
        first = [texts.index(text) for text in shown]  # equal texts have equal scores, and are one piece of evidence
        given = {name: [said[i] for i in first] for name, said in rows.items() if not isinstance(said, Abstention)}
        z = {name: standardised(said) for name, said in given.items() if sees_difference(said)}
        places, lengths = [float(n) for n in range(len(shown))], [math.log1p(len(text)) for text in shown]
        for judge, seen in self._seen.items():
            said = rows.get(judge)
            if isinstance(said, Abstention) and said.kind == FOOLED:
                self.reliability.failed_control(judge)
            if judge in z:
                seen.saw(z[judge], [z[name] for name in z if name != judge], places, lengths)
        self.reliability.saw(given, weights)

    @property
    def begun(self) -> dict[str, int]:
        """Judge → a number that is another one as soon as another judge has its name."""
        return dict(self._begun)

    def begin(self, judge: str) -> None:
        """This judge is new, or has the name of another one from here on: nothing was seen of it yet."""
        self._seen[judge] = _Seen()
        self._begun[judge] = next(self._numbers)
        self.reliability.begin(judge)
        self._said = {(name, kind) for name, kind in self._said if name != judge}

    def leave(self, judge: str) -> None:
        """Nothing more is seen of it."""
        del self._seen[judge], self._begun[judge]
        self.reliability.leave(judge)
        self._said = {(name, kind) for name, kind in self._said if name != judge}

    @property
    def alarms(self) -> dict[str, frozenset[str]]:
        """Judge → what stands against it: order, length, change, reliability, quarantine, cut."""
        return {judge: frozenset(kind.split()[0] for name, kind in self._said if name == judge) for judge in self._seen}

    def metrics(self, health: Mapping[str, JudgeHealth]) -> dict[str, float]:
        """Its metrics as they are now; says in the process log what is new. `health`: what judges' members found."""
        found: dict[str, float] = {}
        reliability = self.reliability.values()
        for judge, seen in self._seen.items():
            values = seen.values() | {"reliability": reliability[judge]} | _values(health.get(judge))
            found |= {f"committee/{judge}/{name}": value for name, value in values.items() if value is not None}
            self._tell(judge, values, seen)
        return found

    def _tell(self, judge: str, values: Mapping[str, float | None], seen: _Seen) -> None:
        """Each finding once, when it is made, and once more when it is over."""
        shaky = (values["reliability"] or 1.0) < UNRELIABLE
        order, beyond = values["order_bias"] or 0.0, values["length_bias"] or 0.0
        changes = values.get("changes") or 0.0
        standing = {
            "quarantine": (bool(values.get("quarantined")), "is in quarantine: it failed tests with known answers"),
            "order": (seen.order.alarm, f"scores by the place in which an answer is shown (correlation {order:+.2f})"),
            "length": (seen.length.alarm, f"scores by length, unlike the others (correlation {beyond:+.2f} beyond)"),
            "reliability": (shaky, "disagrees with the others; its weight is lowered"),
            f"change {changes:.0f}": (changes > 0, "scores old groups otherwise than before: its model has changed"),
            "cut": (bool(values.get("cut_texts")), "was shown long texts cut; committee.characters is the limit"),
        }
        for kind, (holds, said) in standing.items():
            if holds and (judge, kind) not in self._said:
                self._said.add((judge, kind))
                log.warning("committee member %s %s", judge, said)
            elif not holds and (judge, kind) in self._said:
                self._said.discard((judge, kind))
                log.info("committee member %s: no longer so: it %s", judge, said)


class _Seen:
    """Of one judge."""

    def __init__(self) -> None:
        self.order = BiasTest()
        self.length = BiasTest(LENGTH)
        self.lengths = _Mean()

    def saw(
        self,
        own: Sequence[float],
        others: Sequence[Sequence[float]],
        places: Sequence[float],
        lengths: Sequence[float],
    ) -> None:
        """Its standard scores of one group and the other members'."""
        self.order.saw(own, places)
        if (with_length := correlation(own, lengths)) is not None:
            self.lengths.append(with_length)
        if others:
            beyond = [mine - math.fsum(theirs) / len(others) for mine, *theirs in zip(own, *others, strict=True)]
            self.length.saw(beyond, lengths)

    def values(self) -> dict[str, float | None]:
        return {"length": self.lengths.value, "length_bias": self.length.mean, "order_bias": self.order.mean}


class _Mean:
    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def append(self, value: float) -> None:
        self._sum, self._count = self._sum + value, self._count + 1

    @property
    def value(self) -> float | None:
        return self._sum / self._count if self._count else None


def _values(health: JudgeHealth | None) -> dict[str, float | None]:
    if health is None:
        return {}
    return {
        "order_flips": health.order_flips,
        "change_p": health.change_p,
        "changes": float(health.changes),
        "controls_failed": float(health.controls_failed),
        "quarantined": float(health.quarantined),
        "cut_texts": float(health.cut_texts),
    }
