"""The prior service's endpoints without a bus. Each takes a request as bytes and returns the answer as bytes.

Call `load_prior_service` in a program that loads the graph itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.mesh.actuator_values import clip
from oven_core.protocol.graph_requests import (
    CurriculumRequest,
    DiagnoseRequest,
    GraphInfo,
    GraphInfoRequest,
    GraphQuery,
    JudgeRequest,
    TokenPriorRequest,
)
from oven_core.protocol.messages import Message
from oven_kg.checked_graph import load
from oven_kg.graph.knowledge_graph import KnowledgeGraph
from oven_kg.reasoning.curriculum import curriculum, requirements
from oven_kg.reasoning.diagnosis import diagnose, judge
from oven_kg.reasoning.query import query
from oven_kg.token_prior.token_prior_endpoint import Encode, token_prior

if TYPE_CHECKING:
    from oven_kg.service.large_graph_endpoints import LargeGraphEndpoints

RequestT = TypeVar("RequestT", bound=Message)


def parse(kind: type[RequestT], request: bytes) -> RequestT:
    """Parse a request of this type. Raises ConfigError with the first fault."""
    try:
        return kind.model_validate_json(request)
    except ValidationError as error:
        raise ConfigError(clip(f"not a {kind.__name__}: {reason(error)}", 300)) from error


class PriorService:
    """A callable that answers requests to all endpoints for one frozen graph. Not thread-safe."""

    def __init__(self, graph: KnowledgeGraph, large: LargeGraphEndpoints | None = None) -> None:
        """A `large` graph answers query, curriculum and token_prior instead of `graph`."""
        self.graph = graph
        self.large = large

    @cached_property
    def endpoints(self) -> Mapping[str, tuple[type[Message], Callable[[Any], Message]]]:
        """The request type and the handler of each endpoint."""
        return {
            "diagnose": (DiagnoseRequest, partial(diagnose, self.graph)),
            "judge": (JudgeRequest, partial(judge, self.graph)),
            "info": (GraphInfoRequest, self._info),
            "curriculum": (CurriculumRequest, partial(curriculum, self.graph.sha, requirements(self.graph))),
            "token_prior": (TokenPriorRequest, partial(token_prior, self.graph.sha, self._label_scores)),
            "query": (GraphQuery, partial(query, self.graph)),
            **(self.large.endpoints if self.large else {}),
        }

    def __call__(self, endpoint: str, request: bytes) -> bytes | None:
        """Return the answer, or None if the endpoint does not exist."""
        if endpoint not in self.endpoints:
            return None
        kind, answer = self.endpoints[endpoint]
        return answer(parse(kind, request)).wire()

    def _info(self, _: GraphInfoRequest) -> GraphInfo:
        return self.graph.info().model_copy(update={"large": self.large.sha if self.large else ""})

    def _label_scores(self, encode: Encode) -> dict[int, float]:
        from oven_kg.token_prior.label_scores import label_scores  # imports numpy

        return label_scores(self.graph, encode)


def load_prior_service(graph: Path | None = None, *, large: Path | None = None) -> PriorService:
    """Return the service for the built-in graph, or for the graph in the file `graph`. `large` is the folder of a
    large graph, which then answers query, curriculum and token_prior. Raises ConfigError for a graph with faults."""
    return PriorService(load(graph), open_large(large) if large else None)


def open_large(folder: Path) -> LargeGraphEndpoints:
    """Open the large graph in the folder. Raises ConfigError if it is damaged, or if numpy or scipy is missing."""
    try:
        from oven_kg.arrays.graph_folder import open_folder
        from oven_kg.service.large_graph_endpoints import LargeGraphEndpoints
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'a large graph needs {error.name}, which is not installed: `pip install "oven-controller[kg]"`'
        ) from error
    return LargeGraphEndpoints(open_folder(folder))
