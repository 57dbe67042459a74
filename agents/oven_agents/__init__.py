"""The SDK for agents, and the agents that ship with Oven Controller, one a file."""

from oven_agents.agent import Agent, Notice
from oven_agents.knobs import Knob
from oven_agents.remedies import Alternatives, Plan
from oven_agents.window import Window
from oven_controller.messages import BallotOpened, Observation, RunStarted, Vote

__all__ = [
    "Agent",
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
