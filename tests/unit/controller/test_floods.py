"""Who says more than anybody could mean is found, once; who says much while ticks pass is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.mesh_log import RUN, event

from oven_controller.stack.message_floods import MAX_EXCESS, MESSAGES_PER_TICK, FloodDetector
from oven_core.protocol.messages import AgentStatus, Observation


def flooding_agents(traffic: list[tuple[str, int]]) -> list[str]:
    """Who is let out, of (agent or "" for an observation, tick or count)."""
    names: list[str] = []
    floods, seq = FloodDetector(names.append), 0
    for who, number in traffic:
        for n in range(1 if not who else number):
            seq += 1
            if who:
                floods.on_event(event(seq, f"oven.{RUN}.agent.{who}", AgentStatus(state="done", tick=0, seen=str(n))))
            else:
                observation = Observation(incarnation=1, n=seq, tick=number, step=number, progress=0.0, metrics={})
                floods.on_event(event(seq, f"oven.{RUN}.observation", observation))
    return names


def test_a_flood_is_reported_once_and_affects_no_other_agent() -> None:
    assert flooding_agents([("eve", MAX_EXCESS), ("amy", MAX_EXCESS)]) == []
    assert flooding_agents([("amy", MAX_EXCESS), ("eve", 10 * MAX_EXCESS)]) == ["eve"]


def test_allowance_grows_with_ticks() -> None:
    ticks = [step for tick in range(1, 200) for step in (("", tick), ("amy", MESSAGES_PER_TICK))]
    assert flooding_agents(ticks) == []
    assert flooding_agents(
        [step for tick in range(1, 200) for step in (("", tick), ("eve", 3 * MESSAGES_PER_TICK))]
    ) == ["eve"]


@given(st.lists(st.integers(0, MESSAGES_PER_TICK)))
def test_an_agent_within_its_share_is_never_dropped(counts: list[int]) -> None:
    assert flooding_agents([step for tick, count in enumerate(counts) for step in (("", tick), ("amy", count))]) == []
