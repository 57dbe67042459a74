"""Runs companions: background coroutines for work that is too slow for a vote, such as calling a language model.

An agent's `vote` is synchronous and must not wait. It leaves a question for the companion and reads the answer at a
later tick. Companions exist only in a live run. Replays, backtests and the gym do not start them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from oven_agents.runtime.kg_client import AskService, PriorClient
from oven_agents.sdk.agent_session import Session
from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.errors import BusError, reason
from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import read_batches

log = logging.getLogger("oven.agent")

ReadLog = Callable[[], Awaitable[list[Event]]]
"""A function that returns the verified events since its previous call. Raises BusError if no mesh replica answers."""


async def _refuse_to_read() -> list[Event]:
    raise BusError("this agent has no log to read")


@dataclass(frozen=True)
class RunContext:
    """The information about a run that a companion receives."""

    name: str
    """The name under which the agent votes."""
    folder: Path
    """The run's folder. It does not exist if the process runs on a different machine."""
    settings: dict[str, Any]
    """The run's settings that `oven-controller up` has resolved, or an empty dict if there is no folder."""
    ask_graph: AskService
    """Sends a request to the prior service."""
    read_log: ReadLog = _refuse_to_read
    """Reads the run's log from its beginning, then the events since the previous call."""

    @property
    def providers_file(self) -> str:
        """The user's file of language-model providers, or an empty string."""
        committee = self.settings.get("committee")
        return str(committee.get("providers") or "") if isinstance(committee, dict) else ""


@runtime_checkable
class HasCompanion(Protocol):
    """An agent with a companion."""

    def begin(self, context: RunContext) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine to run until the process ends, or None. Called once, before the first event."""
        ...


class Companions:
    """The companions of all agents in one process. If a companion fails, all agents still vote."""

    def __init__(self, sessions: Sequence[Session], bus: Bus, run: str = "", learner_key: str | None = None) -> None:
        """Start the companions. Reading the log needs `run` and the learner's public key."""
        self._tasks: list[asyncio.Task[None]] = []
        folder = Path(os.environ.get("OVEN_RUN_DIR") or os.devnull)
        settings: dict[str, Any] | None = None
        for session in sessions:
            if not isinstance(session.agent, HasCompanion):
                continue
            settings = _read_settings(folder) if settings is None else settings
            context = RunContext(
                session.name, folder, settings, PriorClient(bus).ask, _LogReader(bus, run, learner_key).read_new
            )
            companion = session.agent.begin(context)
            if companion is not None:
                task = asyncio.create_task(_run_and_log(session.name, companion), name=f"companion of {session.name}")
                self._tasks.append(task)

    async def end(self) -> None:
        await end(*self._tasks)


class _LogReader:
    """Reads the run's log piece by piece from the mesh replicas."""

    def __init__(self, bus: Bus, run: str, learner_key: str | None) -> None:
        self._bus, self._run, self._after, self._keyring = bus, run, 0, Keyring(learner_key)

    async def read_new(self) -> list[Event]:
        events: list[Event] = []
        async for batch in read_batches(self._bus, self._run, self._after):
            for event in map(self._keyring.verify, batch):
                events.append(event)
                self._after = event.seq
            await asyncio.sleep(0)  # a long log must not delay the votes of this process
        return events


async def _run_and_log(name: str, companion: Coroutine[Any, Any, None]) -> None:
    try:
        await companion
    except Exception as error:  # only the type, because the error's text may contain a prompt
        log.error("%s: the agent's companion raised %s and has stopped", name, type(error).__name__)


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the run's settings, or an empty dict if they cannot be read. Not every agent needs them."""
    config = folder / "config.json"
    if not config.is_file():
        return {}
    try:
        settings = json.loads(config.read_text())
    except (OSError, ValueError, RecursionError) as error:
        log.error("cannot read the run's settings from %s, which `up` writes: %s", config, reason(error))
        return {}
    return settings if isinstance(settings, dict) else {}
