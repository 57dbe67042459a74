"""The service's endpoints without a bus: a name and a request's bytes in, the answer's bytes out.

One state, which `outcome` moves, and which `posteriors` gives out. The bus's service answers with the same object, and
so does a program that holds it itself: `answers` is the entry point `kg` of the group `oven.in_process`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from oven_core.errors import ConfigError
from oven_core.mesh.actuator_values import clip
from oven_core.protocol.graph_requests import (
    CurriculumRequest,
    DiagnoseRequest,
    GraphInfoRequest,
    GraphQuery,
    JudgeRequest,
    OutcomeReport,
    OutcomeTaken,
    TokenPriorRequest,
)
from oven_core.protocol.messages import Message
from oven_kg.checked_graph import load
from oven_kg.graph.graph_yaml import Edge
from oven_kg.graph.knowledge import Knowledge
from oven_kg.reasoning.curriculum import curriculum, required
from oven_kg.reasoning.diagnosis import diagnose, posterior, severities
from oven_kg.reasoning.judgement import judge
from oven_kg.reasoning.posteriors import Learnt, Posteriors, Signature, learn
from oven_kg.reasoning.query import query
from oven_kg.token_prior.prior import label_scores, token_prior

if TYPE_CHECKING:
    from oven_kg.service.large_answers import LargeAnswers

POSTERIORS: Final = "posteriors"
"""Gives out all that was learnt, whatever is asked: for who holds the object itself. No endpoint of the bus, where a
message has a limit."""


_Asked = TypeVar("_Asked", bound=Message)


def read(kind: type[_Asked], request: bytes) -> _Asked:
    """A request of that kind. Raises ConfigError that names the first fault."""
    try:
        return kind.model_validate_json(request)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise ConfigError(clip(f"not a {kind.__name__}: {where}: {first['msg']}", 300)) from error


class Answers:
    """Holds a frozen graph and what outcomes taught. Not for use from several threads at once."""

    def __init__(
        self, graph: Knowledge, posteriors: Posteriors | None = None, large: LargeAnswers | None = None
    ) -> None:
        """`large`: a graph that answers what it can in place of this one."""
        self.graph = graph
        self.large = large
        self._posteriors = posteriors or Posteriors()
        self._learnt: dict[tuple[str, int], Learnt] = {}
        self._seen: dict[tuple[str, tuple[tuple[str, float], ...]], tuple[Signature, Mapping[str, float]]] = {}

    @property
    def posteriors(self) -> Posteriors:
        return self._posteriors

    @cached_property
    def endpoints(self) -> Mapping[str, tuple[type[Message], Callable[[Any], Message]]]:
        """Name → what is asked, and how it is answered."""
        return {
            "diagnose": (DiagnoseRequest, self._diagnose),
            "judge": (JudgeRequest, self._judge),
            "info": (GraphInfoRequest, self._info),
            "outcome": (OutcomeReport, self.take),
            "curriculum": (CurriculumRequest, partial(curriculum, self.graph.sha, required(self.graph))),
            "token_prior": (
                TokenPriorRequest,
                partial(token_prior, self.graph.sha, partial(label_scores, self.graph)),
            ),
            "query": (GraphQuery, partial(query, self.graph)),
            **(self.large.endpoints if self.large else {}),
        }

    def __call__(self, endpoint: str, request: bytes) -> bytes | None:
        """The answer, or None where there is no such endpoint. Raises ConfigError for a request that cannot be read, or
        not be answered."""
        if endpoint == POSTERIORS:
            return self._posteriors.body
        if endpoint not in self.endpoints:
            return None
        asked, answer = self.endpoints[endpoint]
        return answer(read(asked, request)).wire()

    def take(self, *reports: OutcomeReport) -> OutcomeTaken:
        """Learn from these. The answer's `remedies` are the last one's."""
        before = self._posteriors
        self._posteriors = before.with_(*reports)
        if new := self._posteriors is not before:
            self._learnt.clear()
        remedies = {id_: () for report in reports[-1:] for id_ in self._tried(report)}
        return OutcomeTaken(
            graph=self.graph.sha,
            posteriors=self._posteriors.sha,
            outcomes=len(self._posteriors.reports),
            new=new,
            remedies=tuple(remedies),
        )

    def _diagnose(self, asked: DiagnoseRequest) -> Message:
        found = diagnose(self.graph, asked, self.learnt_for(asked.phase, asked.parameters))
        return found.model_copy(update={"posteriors": self._posteriors.sha})

    def _judge(self, asked: JudgeRequest) -> Message:
        found = judge(self.graph, asked, self.learnt_for(asked.phase, asked.parameters))
        return found.model_copy(update={"posteriors": self._posteriors.sha})

    def _info(self, _: GraphInfoRequest) -> Message:
        learnt = {
            "posteriors": self._posteriors.sha,
            "outcomes": len(self._posteriors.reports),
            "large": self.large.sha if self.large else "",
        }
        return self.graph.info().model_copy(update=learnt)

    def learnt_for(self, phase: str, parameters: int) -> Learnt:
        key = (phase, len(str(parameters)) if parameters else 0)
        if key not in self._learnt:
            self._learnt[key] = learn(self._posteriors.weights(phase, parameters), self._signature, self._tried)
        return self._learnt[key]

    def _signature(self, report: OutcomeReport) -> tuple[Signature, Mapping[str, float]]:
        """The graph is frozen, so what it says of a report's symptoms is worked out once."""
        seen = severities(self.graph, report.symptoms)
        key = (report.phase, tuple(seen.items()))
        if key not in self._seen:
            self._seen[key] = tuple(seen), posterior(self.graph, seen, report.phase)
        return self._seen[key]

    def _tried(self, report: OutcomeReport) -> dict[str, list[Edge]]:
        """The remedies that the report's changes are, each with its SOLVES edges."""
        return {
            node.id: list(self.graph.out_of(node.id, "SOLVES"))
            for node in self.graph.of_kind("remedy")
            if node.changes and set(node.changes) == set(report.changes) and node.applies(report.phase)
        }


def answers(
    graph: Path | None = None,
    *,
    shuffled: int | None = None,
    posteriors: bytes | None = None,
    large: Path | None = None,
) -> Callable[[str, bytes], bytes | None]:
    """Entry point: the endpoints over the built-in graph, or the one in the file `graph`.

    `shuffled`: a seed; the graph's remedies then point at permuted targets (oven_kg/graph/randomized_control.py).
    `posteriors`: what the endpoint `posteriors` gave out before. `large`: the folder of a large graph, which then
    answers query, curriculum and token_prior. Raises ConfigError for a graph with faults, and for bytes that are none
    such.
    """
    known = Posteriors.load(posteriors) if posteriors else None
    return Answers(load(graph, shuffled=shuffled), known, opened(large) if large else None)


def opened(folder: Path) -> LargeAnswers:
    """What the large graph in the folder answers. Raises ConfigError for one that is not sound, and where numpy or
    scipy is not installed."""
    try:
        from oven_kg.service.large_answers import LargeAnswers
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'a large graph takes {error.name}, which is not installed: `pip install "oven-controller[kg]"`'
        ) from error
    return LargeAnswers.open(folder)
