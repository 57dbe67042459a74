"""Send operators' commands to a run, and wait for the responses of the mesh and the learner."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from oven_core.bus import Msg
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, RefusedError
from oven_core.protocol import names
from oven_core.protocol.events import UNKNOWN_TIME, Event
from oven_core.protocol.messages import Observation, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import read_batches, read_history
from oven_runs.access.run_access import RunAccess
from oven_runs.log.command_result import CommandResult

RETRY_S: Final = 0.1
"""Seconds between two attempts to log a command."""
CHECK_S: Final = 0.5
"""Seconds between two checks that the run is up, because a killed learner sends no message."""
LOG_TIMEOUT_S: Final = 5.0
"""Default timeout in seconds for logging a command, which does not need to wait for a step."""
HISTORY_TIMEOUT_S: Final = 1.0
"""Timeout in seconds for reading the log through a mesh, so that a hung mesh does not block a command."""
PACE_EVENTS: Final = 512
"""Number of events before the command that are searched for the newest step's length."""
AWAITED_BOUNDARIES: Final = 2
"""Number of step boundaries to wait for. The learner applies a command at the first, and its decision at the second."""
MIN_WAIT_S: Final = 5.0
"""Minimum wait in seconds. If steps take milliseconds, the mesh cannot answer within two of them."""
SETTLE_S: Final = 1.0
"""Seconds to wait after the last boundary, because a receipt may arrive after the observation that was sent with it."""
MAX_STEP_WAIT_S: Final = 60.0
"""Maximum seconds to wait for a step to end. While the run is held or stuck, or without a learner, no step ends."""
MAX_STEP_LENGTHS: Final = 3.0
"""Maximum wait as a multiple of the newest step's length, if that is longer than MAX_STEP_WAIT_S."""


class ReceiptWait:
    """The time that a command waits for its receipt: a number of step boundaries, or a time limit in seconds."""

    def __init__(self, now: float, limit_s: float | None = None) -> None:
        """`limit_s` is the user's time limit, or None to wait for steps."""
        self._start = self._last_boundary = now
        self._limit_s = limit_s
        self._tick: int | None = None
        self._max_wait_s = MAX_STEP_WAIT_S
        self.boundaries = 0
        """Step boundaries since the command was logged."""

    def record_boundary(self, tick: int, now: float) -> None:
        """Record that the learner reported a step. Repeats of the same step count once."""
        if tick != self._tick:
            self._tick, self._last_boundary = tick, now
            self.boundaries += 1

    def set_pace(self, step_s: float) -> None:
        """Record how long the newest step took."""
        self._max_wait_s = max(MAX_STEP_WAIT_S, MAX_STEP_LENGTHS * step_s)

    @property
    def deadline(self) -> float:
        """Time at which the wait ends. Each completed step moves the deadline."""
        if self._limit_s is not None:
            return self._start + self._limit_s
        if self.waits_for_step:
            return self._last_boundary + self._max_wait_s
        return max(self._start + MIN_WAIT_S, self._last_boundary + SETTLE_S)

    @property
    def waits_for_step(self) -> bool:
        return self._limit_s is None and self.boundaries < AWAITED_BOUNDARIES

    def describe_wait(self) -> str:
        """Return the length of the wait as a phrase that completes a sentence."""
        if self._limit_s is not None:
            return f"within {self._limit_s:g} s"
        if self.waits_for_step:
            return f"within {self._max_wait_s:.0f} s in which no step ended"
        return f"within {self.boundaries} steps"


@dataclass
class _Pending:
    """A command whose result is pending."""

    result: CommandResult
    wait: ReceiptWait
    on_change: Callable[[CommandResult], object]
    message_received: asyncio.Event = field(default_factory=asyncio.Event)


class OperatorClient:
    """A connection as an operator. Several commands can be pending at a time.

    The client reads live messages instead of asking the mesh for the log, because a hold has to work without a mesh.
    """

    def __init__(self, bus: Bus, access: RunAccess, keyring: Keyring) -> None:
        self.bus = bus
        self._run, self._user, self._is_up, self._keyring = access.run, access.user, access.is_up, keyring
        self._pending: dict[str, _Pending] = {}
        self._has_started = False

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, access: RunAccess) -> AsyncIterator[OperatorClient]:
        """Connect. Raises RefusedError if the key may not send commands, and BusError if no server answers."""
        subjects = names.Subjects(access.run)
        async with access.connect("operator") as bus:
            client = cls(bus, access, await access.live_keyring(bus))
            result_subjects = (subjects.decision("*"), subjects.answer("*"), subjects.receipt, subjects.run)
            for subject in (*result_subjects, subjects.observation):
                await bus.subscribe(subject, client._on_message)
            await bus.flush()
            yield client

    async def _on_message(self, message: Msg) -> None:
        if not self._pending:
            return
        event = Event.from_message(0, message.subject, message.data, UNKNOWN_TIME, message.headers)
        body = self._keyring.verify(event).body
        for pending in list(self._pending.values()):
            if isinstance(body, Observation):
                if pending.result.logged_seq:
                    pending.wait.record_boundary(body.tick, _now())
            elif pending.result.feed(body):
                pending.on_change(pending.result)
            pending.message_received.set()

    async def carry_out(
        self,
        command: OperatorCommand,
        limit_s: float | None = None,
        *,
        result: CommandResult | None = None,
        on_change: Callable[[CommandResult], object] = lambda _: None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> CommandResult:
        """Log the command and wait for its result, until the limit (see ReceiptWait) or until the run ends.

        `result`, if passed, is filled in. `on_change` is called after every change to the result. `has_ended` is an
        additional check for the run's end. Raises ConfigError if the training has not started, and BusError if the
        command does not get into the log in time.
        """
        await self._check_started()
        result = result if result is not None else CommandResult(self._run, command)
        pending = self._pending[command.id] = _Pending(result, ReceiptWait(_now(), limit_s), on_change)
        try:
            result.logged_seq = await self._log(command, limit_s if limit_s is not None else LOG_TIMEOUT_S)
            on_change(result)
            await self._wait(pending, has_ended)
            if not result.is_final:  # messages may have been missed while the connection was lost
                with contextlib.suppress(BusError, TimeoutError):
                    async with asyncio.timeout(HISTORY_TIMEOUT_S):
                        for event in await read_history(self.bus, self._run, result.logged_seq):
                            result.feed(self._keyring.verify(event).body)
            result.wait_text = pending.wait.describe_wait()
            on_change(result)
        finally:
            del self._pending[command.id]
        return result

    async def _check_started(self) -> None:
        """Raise ConfigError if the log does not contain the run's start, because a command before it has no effect.
        If no mesh answers, this cannot be checked, and the command is sent."""
        if self._has_started:
            return
        with contextlib.suppress(BusError):
            async for batch in read_batches(self.bus, self._run, timeout_s=HISTORY_TIMEOUT_S):
                self._has_started = any(isinstance(event.body, RunStarted) for event in batch)
                if self._has_started:
                    return
            raise ConfigError(
                f"run {self._run!r} has not started training yet, so a command would have no effect; try again when "
                f"`oven-controller status {self._run}` shows a step"
            )

    async def _wait(self, pending: _Pending, has_ended: Callable[[], bool]) -> None:
        """Wait until the result is final, the run ended, or the deadline passed. If no step ends, look up once how long
        earlier steps took."""
        is_pace_known, result = False, pending.result
        while not (result.is_final or result.run_ended):
            pending.message_received.clear()
            if has_ended() or not self._is_up():
                result.run_ended = True
                return
            remaining_s = pending.wait.deadline - _now()
            if remaining_s <= 0:
                if is_pace_known or not pending.wait.waits_for_step:
                    return
                is_pace_known = True
                pending.wait.set_pace(await self._newest_step_s(pending.result.logged_seq))
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(remaining_s, CHECK_S)):
                    await pending.message_received.wait()

    async def _newest_step_s(self, command_seq: int) -> float:
        """Return the length in seconds of the newest step before the command's event, or 0 if unknown."""
        try:
            events = await read_history(self.bus, self._run, max(0, command_seq - PACE_EVENTS))
        except BusError:
            return 0.0
        times = [event.time for event in events if event.seq < command_seq and isinstance(event.body, Observation)]
        return (times[-1] - times[-2]).total_seconds() if len(times) > 1 else 0.0

    async def _log(self, command: OperatorCommand, limit_s: float) -> int:
        """Append the command and return its sequence number. Raises BusError, or RefusedError without permission."""
        cause, deadline = "no answer", _now() + limit_s
        subject = names.Subjects(self._run).operator(self._user)
        while _now() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    return await self.bus.append(subject, command.wire(), message_id=command.id)
            except BusError as error:
                if any("permissions violation" in error_text.lower() for error_text in self.bus.errors):
                    raise RefusedError(
                        f"the key of {self.bus.name!r} may not {command.action}: it is not an operator's key for this "
                        "run; ask for one, which `oven-controller creds add NAME --operator` creates"
                    ) from error
                cause = str(error)
                await asyncio.sleep(RETRY_S)
            except TimeoutError:
                break
        raise BusError(f"{command.action} was not logged within {limit_s:g} s ({cause})")


def new_command(action: str, **fields: Any) -> OperatorCommand:
    """Return a command with a new id. Raises ConfigError for an invalid value."""
    try:
        return OperatorCommand.model_validate({"id": uuid.uuid4().hex, "action": action, **fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise ConfigError(f"{name} {str(fields.get(name))[:80]!r} is invalid: {first['msg']}") from error


async def execute_command(
    access: RunAccess,
    command: OperatorCommand,
    limit_s: float | None = None,
    has_ended: Callable[[], bool] = lambda: False,
) -> CommandResult:
    """Send one command over its own connection and wait for its result, as `carry_out` does. Raises RefusedError if the
    key may not send commands, and BusError if the command does not get into the log in time."""
    async with OperatorClient.connect(access) as client:
        return await client.carry_out(command, limit_s, has_ended=has_ended)


def _now() -> float:
    return asyncio.get_running_loop().time()
