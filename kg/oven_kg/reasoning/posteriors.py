"""Posteriors: Beta counts that outcomes add to SOLVES edges, and to what was tried for these symptoms.

A remedy's outcome is shared out over the causes that it may have been for (cause back-off): with success r and
P(c | symptoms) of the frozen graph, the edge remedy → c gets α += P · r and β += P · (1 − r). An edge's strength s is
the prior of its Beta, worth n₀ = `PSEUDO` observations by its grade. What an outcome says of a remedy is how it did
beside the usual one, for how often anything succeeds is a matter of noise and horizon, and lower than the strengths
that sources give: counted as it is, every remedy that was ever tried would sink below those that never were. So with
n = α + β and the usual success u of the scope, the strength in force is (n₀ · s + α + n · (s − u)) / (n₀ + n), within
0 to 1.

What is kept are the reports themselves, one an id; the counts are worked out of them by correctly rounded sums
(math.fsum). So a report that comes twice, or in another order, gives the same bytes; and since P never depends on what
was learnt, the counts hold for another graph as soon as it is asked. Of two reports with one id the greater counts (by
`at`, then bytes), and beyond `LIMIT` the oldest are let go: both choices are of a total order, so no order of arrival
shows. Forgetting goes by the reports' own clock: a report that is `half_life` older than the newest weighs half.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.protocol.graph_requests import OutcomeReport
from oven_kg.graph.graph_yaml import Edge
from oven_kg.reasoning.thompson import Draw

LIMIT: Final = 10_000
PSEUDO: Final[Mapping[str, float]] = MappingProxyType({"A": 8.0, "B": 6.0, "D": 4.0, "C": 3.0})
"""Grade → the observations that an edge's strength is worth. A choice: above 10 a wrong prior would outlast a run."""
TRIED: Final = 4.0
"""Observations that the score by causes is worth against what was tried for exactly these symptoms."""
EVEN: Final = 20.0
"""Observations that even odds are worth as the usual success: of a few outcomes no one knows what is usual."""

Signature = tuple[str, ...]


@dataclass(frozen=True)
class Posteriors:
    """Immutable; `with_` gives the next one. `half_life`: in the reports' own unit of `at`; 0: nothing is forgotten."""

    reports: Mapping[str, OutcomeReport] = field(default_factory=dict)
    half_life: int = 0
    encoded: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Each report in canonical JSON, so that one more does not cost all of them again."""

    def with_(self, *reports: OutcomeReport) -> Posteriors:
        kept, encoded, changed = dict(self.reports), dict(self.encoded), False
        for report in reports:
            id_, body = report.id, _canonical(_plain(report))
            if id_ not in kept or (kept[id_].at, encoded[id_]) < (report.at, body):
                kept[id_], encoded[id_], changed = report, body, True
        if not changed:
            return self
        for id_ in sorted(kept, key=lambda id_: (kept[id_].at, id_))[: max(0, len(kept) - LIMIT)]:
            del kept[id_], encoded[id_]
        return self if kept == self.reports else Posteriors(kept, self.half_life, encoded)

    @cached_property
    def body(self) -> bytes:
        """Canonical JSON: the same bytes for the same reports, however they came."""
        reports = b",".join(self.encoded[id_] for id_ in sorted(self.encoded))
        return b'{"half_life":%d,"reports":[%b],"v":1}' % (self.half_life, reports)

    @cached_property
    def sha(self) -> str:
        """Of `body`; empty if nothing was learnt."""
        return hashlib.sha256(self.body).hexdigest() if self.reports else ""

    @classmethod
    def load(cls, body: bytes) -> Posteriors:
        """What `body` wrote. Raises ConfigError for anything else."""
        try:
            found = json.loads(body)
            if found["v"] != 1:
                raise ValueError(f"version {found['v']!r} is unknown; this reads 1")
            half_life = found["half_life"]
            if not isinstance(half_life, int) or half_life < 0:
                raise ValueError(f"half_life is {half_life!r}; it is a whole number from 0")
            reports = [OutcomeReport.model_validate(report) for report in found["reports"]]
        except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
            raise ConfigError(
                f"these are not posteriors: {reason(error)[:200]}; `oven-controller kg learn` writes them"
            ) from error
        return cls(half_life=half_life).with_(*reports)

    def weights(self, phase: str, parameters: int) -> Iterable[tuple[OutcomeReport, float]]:
        """The reports that speak for such a run, with what time left of each. One that does not say its phase or size
        speaks for all, and all speak for a run that does not; sizes are alike within a decade."""
        newest = max((report.at for report in self.reports.values()), default=0)
        for id_ in sorted(self.reports):
            report = self.reports[id_]
            if phase and report.phase and report.phase != phase:
                continue
            if parameters and report.parameters and _decade(report.parameters) != _decade(parameters):
                continue
            yield report, 0.5 ** ((newest - report.at) / self.half_life) if self.half_life else 1.0


@dataclass(frozen=True)
class Beta:
    """Weighted successes and failures."""

    good: float = 0.0
    bad: float = 0.0

    @property
    def n(self) -> float:
        return self.good + self.bad

    def mean(self, prior: float, worth: float, usual: float) -> float:
        """`prior`, moved by how much better or worse than `usual` these did."""
        return max(0.0, min(1.0, prior + (self.good - usual * self.n) / (worth + self.n)))


@dataclass(frozen=True)
class Learnt:
    """What a scope's outcomes say: by edge, and by what was seen and done about it. The empty one changes nothing."""

    edges: Mapping[str, Beta] = field(default_factory=dict)
    tried: Mapping[tuple[Signature, str], Beta] = field(default_factory=dict)
    usual: float = 0.5
    """How often anything succeeds in this scope."""
    draw: Draw | None = None
    """Of which remedies are scored by one draw instead of by the mean."""

    def drawn(self, seed: str) -> Learnt:
        """The same, for scores by the draw of this seed."""
        return replace(self, draw=Draw(seed))

    def strength(self, edge: Edge) -> float:
        """The edge's own, or what outcomes made of it."""
        beta = self.edges.get(edge.id)
        return edge.strength if beta is None else beta.mean(edge.strength, PSEUDO[edge.grade], self.usual)

    def weight(self, edge: Edge, seen: Signature) -> float:
        """The strength by which an edge counts in a score: drawn, unless the score itself is, since its remedy has been
        tried for exactly these symptoms."""
        strength = self.strength(edge)
        if self.draw is None or (seen, edge.src) in self.tried:
            return strength
        return self.draw.beta(edge.id, strength, PSEUDO[edge.grade] + self.edges.get(edge.id, Beta()).n)

    def score(self, score: float, seen: Signature, remedy: str, limit: float) -> float:
        """A score by causes (log-odds), moved towards what this remedy did for exactly these symptoms. Harm that the
        graph speaks of fades as trials come in; what they show is benefit or none."""
        beta = self.tried.get((seen, remedy))
        if beta is None:
            return score
        benefit = beta.mean(1 - math.exp(-max(score, 0.0)), TRIED, self.usual)
        if self.draw is not None:
            benefit = self.draw.beta(f"tried {remedy}", benefit, TRIED + beta.n)
        harm = min(score, 0.0) * TRIED / (TRIED + beta.n)
        return max(-limit, min(limit, harm - math.log(max(1 - benefit, 1e-9))))

    def observations(self, seen: Signature, remedy: str, edges: Iterable[Edge]) -> float:
        """The weight of the outcomes behind a score: of these very symptoms, or else what its edges were given."""
        by_edges = math.fsum(self.edges[edge.id].n for edge in edges if edge.id in self.edges)
        return max(self.tried.get((seen, remedy), Beta()).n, by_edges)


NOTHING: Final = Learnt()


class Tally:
    """Collects weighted successes by key, and sums them so that no order shows."""

    def __init__(self) -> None:
        self._found: dict[Any, tuple[list[float], list[float]]] = {}

    def add(self, key: Any, weight: float, success: float) -> None:
        good, bad = self._found.setdefault(key, ([], []))
        good.append(weight * success)
        bad.append(weight * (1 - success))

    def betas(self) -> dict[Any, Beta]:
        return {key: Beta(math.fsum(good), math.fsum(bad)) for key, (good, bad) in self._found.items()}


def learn(
    weighted: Iterable[tuple[OutcomeReport, float]],
    seen: Callable[[OutcomeReport], tuple[Signature, Mapping[str, float]]],
    edges: Callable[[OutcomeReport], Mapping[str, Iterable[Edge]]],
) -> Learnt:
    """`seen`: a report's symptoms that the graph knows, and P of each cause; `edges`: the SOLVES edges of each remedy
    that the report's changes are."""
    by_edge, tried = Tally(), Tally()
    weights, successes = [EVEN], [EVEN / 2]
    for report, weight in weighted:
        weights.append(weight)
        successes.append(weight * report.success)
        signature, causes = seen(report)
        for remedy, solves in edges(report).items():
            tried.add((signature, remedy), weight, report.success)
            for edge in solves:
                if p := causes.get(edge.dst, 0.0):
                    by_edge.add(edge.id, weight * p, report.success)
    return Learnt(by_edge.betas(), tried.betas(), math.fsum(successes) / math.fsum(weights))


def _plain(report: OutcomeReport) -> dict[str, Any]:
    """Symptoms and changes are sets: the order in which a report names them says nothing."""
    plain = report.model_dump(mode="json", exclude={"v", "type"}, exclude_defaults=True)
    plain["changes"] = sorted(set(plain["changes"]))
    plain["symptoms"] = sorted(plain["symptoms"], key=lambda symptom: (symptom["id"], symptom.get("severity", 1.0)))
    return plain


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _decade(parameters: int) -> int:
    return len(str(parameters))
