"""The SDK for writing agents, and the agents that ship with Oven Controller."""

from oven_agents.sdk.agent import Agent, Notice
from oven_agents.sdk.alternative_plans import Alternatives, Plan
from oven_agents.sdk.window import Knob, Window
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import BallotOpened, Observation, RunStarted, Vote

__all__ = [
    "Agent",
    "Alert",
    "Alternatives",
    "BallotOpened",
    "Knob",
    "Notice",
    "Observation",
    "Plan",
    "RunStarted",
    "Vote",
    "Window",
]
