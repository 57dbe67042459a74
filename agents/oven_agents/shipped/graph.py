"""The knowledge graph's voice on other agents' ballots."""

from __future__ import annotations

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.alternative_plans import GraphReview
from oven_agents.sdk.window import Window
from oven_core.protocol.messages import BallotOpened


class Graph(Agent):
    """Signals: none of its own. It answers to the symptom that a proposer names, with what the knowledge graph says
    about the symptom's causes and about the proposed change (oven_kg.reasoning).

    Actions: votes for a change that the graph supports, and against one to which it objects. It vetoes a change whose
    precondition is not met, or that contradicts another change in flight. It never proposes a change.

    False alarms: the graph is general knowledge and has measured nothing in this run. So the mesh lets its vote second
    only a small change.

    Limits: without a symptom that the graph knows, it can only veto. If the prior service does not answer, it abstains.
    """

    def vote(self, window: Window) -> None:
        return None

    def review(self, ballot: BallotOpened, window: Window) -> GraphReview | None:
        return GraphReview(ballot, window.tick)
