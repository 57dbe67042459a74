"""Adds the knowledge graph's rules to a run before it starts. They come from the prior service, which serves the graph.
RunStarted contains them, so that the mesh can apply them from the log without the prior service."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol import names
from oven_core.protocol.graph_requests import GraphInfo, GraphInfoRequest
from oven_core.protocol.rules import Rules

_Rules = TypeVar("_Rules", bound=Rules)


def with_graph_rules(rules: _Rules, info: GraphInfo) -> _Rules:
    """Add the knowledge graph's contradictions and requirements after those of the user's rules, without duplicates. A
    contradiction is a pair whose order does not matter."""
    contradictions = list(rules.contradictions)
    for pair in info.contradictions:
        if pair not in contradictions and pair[::-1] not in contradictions:
            contradictions.append(pair)
    requires = tuple(dict.fromkeys((*rules.requires, *info.requirements)))
    return rules.model_copy(update={"contradictions": tuple(contradictions), "requires": requires})


async def request_graph_info(bus: Bus, timeout_s: float = 2.0) -> GraphInfo:
    """Request the knowledge graph's rules from the prior service. Raises BusError if there is no valid reply."""
    reply = await bus.request(names.kg("info"), GraphInfoRequest().wire(), timeout_s)
    try:
        return GraphInfo.model_validate_json(reply)
    except ValidationError as error:
        raise BusError(f"{names.kg('info')} sent an invalid GraphInfo ({error.error_count()} errors)") from error
