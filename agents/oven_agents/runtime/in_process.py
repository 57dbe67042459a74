"""Installed agents as participants of a closed loop, in one process and without a bus."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from oven_agents.runtime.kg_client import Ask, consider
from oven_agents.runtime.loader import load, repeatable_agents
from oven_agents.sdk.agent import Agent
from oven_agents.sdk.session import Session
from oven_core.protocol.alerts import Alert
from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import AgentStatus, LogMessage, Vote
from oven_runs.log.closed_loop import Participant

log = logging.getLogger("oven.agent")


def participants(names: Sequence[str] | None = None, ask: Ask | None = None) -> list[Participant]:
    """The agents of these names (or files), each in its own session; None: all that are installed, which is what a
    run has unless its settings say otherwise, but for those that ask something outside. `ask` puts a question to the
    prior service; None: there is none.

    Raises UnknownNameError, ConfigError.
    """
    if names is None:
        names = repeatable_agents()
    return [AgentParticipant(name, agent, ask) for name, agent in map(load, names)]


class AgentParticipant:
    """What an agent's process is on the bus: a session, and the prior's word on what it says."""

    def __init__(self, name: str, agent: Agent, ask: Ask | None = None) -> None:
        self._session = Session(agent, name)
        self._ask = ask or _away

    @property
    def name(self) -> str:
        return self._session.name

    def absorb(self, body: LogMessage | Malformed) -> None:
        self._session.absorb(body)

    def react(self) -> Sequence[Vote | AgentStatus | Alert]:
        session = self._session
        said = session.react()
        for problem in session.problems:
            log.error("%s: the agent raised; it abstains on this window\n%s", session.name, problem)
        session.problems.clear()
        return consider(said, session.run, session.knobs, session.in_flight, self._ask) if said else []


def _away(endpoint: str, request: bytes) -> None:
    """No prior service."""
