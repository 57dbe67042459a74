"""The endpoints for a large graph: query, curriculum and token_prior.

This module imports numpy and scipy, so import it only if there is a large graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from oven_core.protocol.graph_requests import CurriculumRequest, GraphQuery, TokenPriorRequest
from oven_core.protocol.messages import Message
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.reasoning.curriculum import curriculum, requirements_in_arrays
from oven_kg.reasoning.large_query import LargeQuery
from oven_kg.token_prior.label_scores import name_scores
from oven_kg.token_prior.token_prior_endpoint import token_prior


class LargeGraphEndpoints:
    """The endpoints for a large graph. Not thread-safe."""

    def __init__(self, arrays: GraphArrays) -> None:
        self.arrays = arrays
        self.sha = arrays.sha
        self.endpoints: Mapping[str, tuple[type[Message], Callable[[Any], Message]]] = {
            "query": (GraphQuery, LargeQuery(arrays)),
            "curriculum": (CurriculumRequest, partial(curriculum, arrays.sha, requirements_in_arrays(arrays))),
            "token_prior": (TokenPriorRequest, partial(token_prior, arrays.sha, partial(name_scores, arrays))),
        }
