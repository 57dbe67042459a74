"""What a large graph answers: query, curriculum and token_prior, each under its own hash.

It imports numpy and scipy, so it is imported where there is such a graph alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from oven_core.protocol.graph_requests import CurriculumRequest, GraphQuery, TokenPriorRequest
from oven_core.protocol.messages import Message
from oven_kg.arrays.folder import open_folder
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.reasoning.curriculum import curriculum, required_in
from oven_kg.reasoning.large_query import LargeQuery
from oven_kg.token_prior.prior import token_prior


class LargeAnswers:
    """The endpoints over a graph in a folder, which stays mapped into memory. Not for use from several threads at
    once."""

    def __init__(self, arrays: GraphArrays) -> None:
        self.arrays = arrays
        self.sha = arrays.sha
        self._query = LargeQuery(arrays)
        self.endpoints: Mapping[str, tuple[type[Message], Callable[[Any], Message]]] = {
            "query": (GraphQuery, self._query),
            "curriculum": (CurriculumRequest, partial(curriculum, arrays.sha, required_in(arrays))),
            "token_prior": (TokenPriorRequest, self._token_prior),
        }

    @classmethod
    def open(cls, folder: Path) -> LargeAnswers:
        """Raises ConfigError for a folder that is not sound."""
        return cls(open_folder(folder))

    def prepare(self) -> None:
        """Make now what the first queries would wait for."""
        self._query.prepare()

    def _token_prior(self, asked: TokenPriorRequest) -> Message:
        from oven_kg.token_prior.large_prior import name_scores  # scipy's matrices, for this alone

        return token_prior(self.sha, partial(name_scores, self.arrays), asked)
