"""What an agent may have beside its votes: its own coroutine, for something that takes longer than a vote may.

`vote` stays synchronous and waits for nothing: it leaves what it wants to know, and finds the answer at a later tick.
Only the process of a run has companions: a replay, a gym and a backtest give an agent none.
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

from oven_agents.runtime.kg_client import AWAY_S, DEADLINE_S
from oven_agents.sdk.session import Session
from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.errors import BusError, reason
from oven_core.protocol import names
from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import batches

log = logging.getLogger("oven.agent")

AskGraph = Callable[[str, bytes], Awaitable[bytes | None]]
"""(endpoint, request) → the prior service's reply; None: no one answered in time."""
ReadLog = Callable[[], Awaitable[list[Event]]]
"""The events behind those of the call before, judged. Raises BusError where no mesh answers."""


async def _no_log() -> list[Event]:
    raise BusError("this agent has no log to read")


@dataclass(frozen=True)
class Surroundings:
    """What an agent's process has around it."""

    name: str
    """Under which the agent votes."""
    folder: Path
    """The run's; it may not be there, where the process runs on another machine."""
    settings: dict[str, Any]
    """The run's, as `up` resolved them; empty where there is no folder."""
    ask_graph: AskGraph
    read_log: ReadLog = _no_log
    """Of the run's whole log, for this agent alone."""

    @property
    def providers_file(self) -> str:
        """The user's overlay of the catalogue of language models' providers; empty: there is none."""
        committee = self.settings.get("committee")
        return str(committee.get("providers") or "") if isinstance(committee, dict) else ""


@runtime_checkable
class Companioned(Protocol):
    """An agent with something to wait for."""

    def begin(self, around: Surroundings) -> Coroutine[Any, Any, None] | None:
        """Called once, before the first event: what to run beside the agent until the process ends; None: nothing."""
        ...


class Companions:
    """The coroutines beside the agents of one process. One that raises takes no agent's vote with it."""

    def __init__(self, sessions: Sequence[Session], bus: Bus, run: str = "", pin: str | None = None) -> None:
        """`run` and `pin`, the learner's key, are for those that read the log."""
        self._tasks: list[asyncio.Task[None]] = []
        folder = Path(os.environ.get("OVEN_RUN_DIR") or os.devnull)
        settings: dict[str, Any] | None = None
        for session in sessions:
            if not isinstance(session.agent, Companioned):
                continue
            settings = _settings(folder) if settings is None else settings
            beside = session.agent.begin(_surroundings(session, folder, settings, bus, run, pin))
            if beside is not None:
                self._tasks.append(asyncio.create_task(_watched(session.name, beside), name=f"beside {session.name}"))

    async def end(self) -> None:
        """What they wait for is given up."""
        await end(*self._tasks)


def _surroundings(
    session: Session, folder: Path, settings: dict[str, Any], bus: Bus, run: str, pin: str | None
) -> Surroundings:
    return Surroundings(session.name, folder, settings, _graph(bus), _Log(bus, run, pin).news)


class _Log:
    """The run's log as the mesh tells it, read from where the last reading ended."""

    def __init__(self, bus: Bus, run: str, pin: str | None) -> None:
        self._bus, self._run, self._after, self._keyring = bus, run, 0, Keyring(pin)

    async def news(self) -> list[Event]:
        found: list[Event] = []
        async for batch in batches(self._bus, self._run, self._after):
            for event in map(self._keyring.verify, batch):
                found.append(event)
                self._after = event.seq
            await asyncio.sleep(0)  # a long log must not hold up the votes of this process
        return found


async def _watched(name: str, beside: Coroutine[Any, Any, None]) -> None:
    try:
        await beside
    except Exception as error:  # its text may hold what was sent to a model
        log.error("%s: what runs beside the agent raised %s; it has no more answers", name, type(error).__name__)


def _graph(bus: Bus) -> AskGraph:
    away_until = 0.0

    async def ask(endpoint: str, request: bytes) -> bytes | None:
        nonlocal away_until
        now = asyncio.get_running_loop().time()
        if now < away_until:
            return None
        try:
            return await bus.request(names.kg(endpoint), request, DEADLINE_S)
        except BusError:
            away_until = now + AWAY_S
            return None

    return ask


def _settings(folder: Path) -> dict[str, Any]:
    """Nothing where they cannot be read, which is said: the other agents of the process need none."""
    config = folder / "config.json"
    if not config.is_file():
        return {}
    try:
        found = json.loads(config.read_text())
    except (OSError, ValueError, RecursionError) as error:
        log.error("%s does not hold the run's settings (%s); `up` writes it", config, reason(error))
        return {}
    return found if isinstance(found, dict) else {}
