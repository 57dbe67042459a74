"""Rules that the prior service adds to a run's before it starts.

From then on the rules stand in `RunStarted`: the mesh bars by the log alone, whether the service lives or not.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol import names
from oven_core.protocol.graph_requests import GraphInfo, GraphInfoRequest
from oven_core.protocol.rules import Rules

_Rules = TypeVar("_Rules", bound=Rules)


def merged(rules: _Rules, info: GraphInfo) -> _Rules:
    """`rules` with the graph's contradictions and requirements that they don't have yet. The user's own stay, and stay
    first; a contradiction counts as had in either order. Merging twice changes nothing.
    """
    contradictions = list(rules.contradictions)
    for pair in info.contradictions:
        if pair not in contradictions and pair[::-1] not in contradictions:
            contradictions.append(pair)
    requires = tuple(dict.fromkeys((*rules.requires, *info.requirements)))
    return rules.model_copy(update={"contradictions": tuple(contradictions), "requires": requires})


async def ask(bus: Bus, timeout_s: float = 2.0) -> GraphInfo:
    """What the service's graph holds. Raises BusError when it does not answer, or not with that."""
    answer = await bus.request(names.kg("info"), GraphInfoRequest().wire(), timeout_s)
    try:
        return GraphInfo.model_validate_json(answer)
    except ValidationError as error:
        raise BusError(f"{names.kg('info')} answered no GraphInfo ({error.error_count()} faults)") from error
