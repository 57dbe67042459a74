"""The curriculum agent with a graph that knows what builds on what, with one that does not, and with none."""

from __future__ import annotations

import pytest
from tests.support.gauges import observe, started

from oven_agents.runtime.kg_client import AskPrior
from oven_agents.shipped.curriculum import Curriculum
from oven_bench.gym.closed_loop import AgentParticipant
from oven_core.protocol.messages import MetricSpec, Vote
from oven_kg.arrays.array_builder import Builder
from oven_kg.checked_graph import load
from oven_kg.service.endpoints import PriorService
from oven_kg.service.large_graph_endpoints import LargeGraphEndpoints

EASY = {"len3": 0.98, "len4": 0.02, "len5": 0.0}


def graph(*edges: tuple[str, str, str]) -> PriorService:
    builder = Builder()
    builder.add_edges(*zip(*edges, strict=True))
    return PriorService(load(), large=LargeGraphEndpoints(builder.finish()))


def vote(ask: AskPrior | None) -> Vote:
    """The first, where len4 is failed and nothing is known of len5."""
    participant = AgentParticipant("curriculum", Curriculum(), ask)
    run = started(EASY)
    held_out = MetricSpec(name="eval/accuracy", better="up", held_out=True)  # else the graph bars the change
    participant.absorb(run.model_copy(update={"metrics": (*run.metrics, held_out)}))
    for tick in range(1, 10):
        participant.absorb(observe(tick, reward=0.1, reward__len3=0.3, reward__len4=0.0))
        for word in participant.react():
            if isinstance(word, Vote):
                return word
    raise AssertionError("it said nothing")


def share(cast_vote: Vote, level: str) -> float:
    assert isinstance(cast_vote.value, dict)
    return cast_vote.value[level]


def test_the_graph_says_which_level_waits_for_which() -> None:
    source = graph(("len5", "REQUIRES", "len3"), ("len4", "REQUIRES", "len3"))
    cast_vote = vote(source)
    assert share(cast_vote, "len5") > 0.4, (
        "what it builds on is mastered well enough; len4, which is failed, is not that"
    )
    assert source.large is not None and f"curriculum:{source.large.sha[:12]}" in cast_vote.evidence
    assert cast_vote.rationale.endswith("; 2 prerequisites come from the graph")
    far = vote(graph(("len5", "REQUIRES", "sorting"), ("sorting", "REQUIRES", "len4")))
    assert share(far, "len5") == pytest.approx(0.1, abs=0.01)
    assert "waits: len5 builds on sorting builds on len4" in far.evidence
    assert "len5 waits for its prerequisites" in far.rationale


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (None, "no graph answered"),
        (PriorService(load()), "the graph knows none of them"),
        (lambda endpoint, request: b"{", "no graph answered"),
    ],
    ids=["away", "built-in", "nonsense"],
)
def test_without_its_word_levels_build_on_each_other_and_it_says_why(ask: AskPrior | None, why: str) -> None:
    cast_vote = vote(ask)
    assert share(cast_vote, "len5") == pytest.approx(0.1, abs=0.01)
    assert cast_vote.rationale.endswith(f"; each level is assumed to require the one before, because {why}")
