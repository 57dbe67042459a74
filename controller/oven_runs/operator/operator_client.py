"""Client of an operator's commands: into the log, and back from there the answer."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg
from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, RefusedError
from oven_core.protocol import names
from oven_core.protocol.events import UNKNOWN, Event
from oven_core.protocol.messages import Observation
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import history
from oven_runs.access.run_access import RunAccess
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.receipt_wait import ReceiptWait

AGAIN_S = 0.1
LOGGED_S = 5.0
"""For a command to get into the log, in seconds, where no other limit is given: no step has to end for that."""
PACE_EVENTS = 512
"""Events before the command, among which the newest steps' length is looked for."""


@dataclass
class _UnderWay:
    result: CommandResult
    wait: ReceiptWait
    changed: Callable[[CommandResult], object]
    news: asyncio.Event = field(default_factory=asyncio.Event)


class OperatorClient:
    """A connection as an operator, over which several commands may be under way.

    What is heard on its way into the log counts: a hold has to work without the mesh, and without it there is no
    `history`. It counts if it is signed by whom it should be.
    """

    def __init__(self, bus: Bus, run: str, by: str, keyring: Keyring) -> None:
        self.bus = bus
        self._run, self._by, self._keyring = run, by, keyring
        self._under_way: dict[str, _UnderWay] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, access: RunAccess) -> AsyncIterator[OperatorClient]:
        """Raises RefusedError where the key may not command, BusError where no server answers."""
        on = names.Subjects(access.run)
        async with access.connected("operator") as bus:
            client = cls(bus, access.run, access.by, await access.keyring_now(bus))
            for subject in (on.decision("*"), on.answer("*"), on.receipt, on.observation):
                await bus.subscribe(subject, client._hear)
            await bus.flush()
            yield client

    async def _hear(self, message: Msg) -> None:
        if not self._under_way:
            return
        said = Event.carried(0, message.subject, message.data, UNKNOWN, message.headers)
        body = self._keyring.verify(said).body
        for one in list(self._under_way.values()):
            if isinstance(body, Observation):
                if one.result.logged:
                    one.wait.boundary(body.tick, _now())
            elif one.result.take(body):
                one.changed(one.result)
            one.news.set()

    async def carry_out(
        self,
        command: OperatorCommand,
        limit_s: float | None = None,
        *,
        result: CommandResult | None = None,
        changed: Callable[[CommandResult], object] = lambda _: None,
    ) -> CommandResult:
        """Log the command, and wait for what becomes of it: at most `limit_s`, or by steps (`ReceiptWait`). `result`,
        if given, is the one that is filled; `changed` is called whenever it was. Raises BusError when the command does
        not get into the log in time."""
        result = result if result is not None else CommandResult(self._run, command)
        one = self._under_way[command.id] = _UnderWay(result, ReceiptWait(_now(), limit_s), changed)
        try:
            result.logged = await self._logged(command, limit_s if limit_s is not None else LOGGED_S)
            changed(result)
            await self._until_whole(one)
            if not result.whole:  # a connection that was lost and made anew has missed what was said meanwhile
                with contextlib.suppress(BusError, TimeoutError):
                    async with asyncio.timeout(1):
                        for event in await history(self.bus, self._run, result.logged):
                            result.take(self._keyring.verify(event).body)
            result.waited = one.wait.waited()
            changed(result)
        finally:
            del self._under_way[command.id]
        return result

    async def _until_whole(self, one: _UnderWay) -> None:
        """Or until the wait is over. Where no step ends, it is asked once how long the steps before took."""
        paced = False
        while not one.result.whole:
            one.news.clear()
            left = one.wait.deadline - _now()
            if left <= 0:
                if paced or not one.wait.still:
                    return
                paced = True
                one.wait.paced(await self._step_s(one.result.logged))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await one.news.wait()

    async def _step_s(self, logged: int) -> float:
        """The length of the newest step before an event of the log, in seconds; 0 where it is not known."""
        try:
            events = await history(self.bus, self._run, max(0, logged - PACE_EVENTS))
        except BusError:
            return 0.0
        times = [event.time for event in events if event.seq < logged and isinstance(event.body, Observation)]
        return (times[-1] - times[-2]).total_seconds() if len(times) > 1 else 0.0

    async def _logged(self, command: OperatorCommand, limit_s: float) -> int:
        """The sequence that the command got. Raises RefusedError where the key may not command, BusError."""
        why, deadline = "no answer", _now() + limit_s
        subject = names.Subjects(self._run).operator(self._by)
        while _now() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self.bus.append(subject, command.wire(), message_id=command.id)
            except BusError as error:
                if any("permissions violation" in said.lower() for said in self.bus.errors):
                    raise RefusedError(
                        f"the key of {self.bus.name!r} may not {command.action}: it is not an operator's of this run; "
                        "ask for one by `oven-controller creds add NAME --operator`"
                    ) from error
                why = str(error)
                await asyncio.sleep(AGAIN_S)
            except TimeoutError:
                break
        raise BusError(f"{command.action} is not in the log after {limit_s:g} s ({why})")


def new_command(action: str, **fields: Any) -> OperatorCommand:
    """A command with an id of its own. Raises ConfigError that names the value that cannot be sent."""
    try:
        return OperatorCommand.model_validate({"id": uuid.uuid4().hex, "action": action, **fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise ConfigError(f"{name} {str(fields.get(name))[:80]!r} cannot be sent: {first['msg']}") from error


async def carried_out(access: RunAccess, command: OperatorCommand, limit_s: float | None = None) -> CommandResult:
    """Log one command over its own connection, and wait for what becomes of it. Raises RefusedError where the key
    may not command, BusError when the command does not get into the log in time."""
    async with OperatorClient.connected(access) as client:
        return await client.carry_out(command, limit_s)


def _now() -> float:
    return asyncio.get_running_loop().time()
