"""Keeps the monitor's operator connection open, so that it can send commands immediately."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from oven_core.bus import NatsError
from oven_core.errors import OvenError, RefusedError, reason
from oven_runs.access.run_access import RunAccess
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.operator_client import OperatorClient

RETRY_S: Final = 1.0
"""Seconds between attempts to connect, and between checks of the connection."""
CONNECT_S: Final = 5.0
"""Maximum seconds that a command waits for a connection before it fails."""


class OperatorSession:
    """A connection that `run` keeps open and `send` uses for commands. It survives failures of the bus."""

    def __init__(self, access: RunAccess, on_refusal: Callable[[str], object] = lambda _: None) -> None:
        """`on_refusal` is called once with the reason if this key may not send commands."""
        self._access = access
        self._on_refusal = on_refusal
        self._client: OperatorClient | None = None
        self._ready = asyncio.Event()
        self._problem = "not connected yet"
        self.refusal = ""
        """The reason why this key may not send commands. It is empty if the server has not refused the key."""

    async def run(self) -> None:
        """Keep the connection open until cancelled, or until the server refuses the key."""
        while True:
            try:
                if self._access.is_up():
                    async with OperatorClient.connect(self._access) as self._client:
                        self._ready.set()
                        while not self._client.bus.client.is_closed:
                            await asyncio.sleep(RETRY_S)
                else:
                    self._problem = f"run {self._access.run} is down; `oven-controller up --resume` continues it"
            except RefusedError as error:
                self.refusal = reason(error)
                self._ready.set()
                self._on_refusal(self.refusal)
                return
            except (OvenError, NatsError, OSError) as error:
                self._problem = reason(error)
            finally:
                self._client = None
                if not self.refusal:
                    self._ready.clear()
            await asyncio.sleep(RETRY_S)

    async def send(self, result: CommandResult, on_update: Callable[[CommandResult], object]) -> None:
        """Send `result.command`. Update `result` with the command's progress in the log and with errors, and call
        `on_update` after each update."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._ready.wait()
        except TimeoutError:
            result.failure = f"not sent within {CONNECT_S:g} s: {self._problem}"
        if self._client is None:
            result.failure = result.failure or self.refusal or self._problem
            on_update(result)
            return
        try:
            await self._client.carry_out(result.command, result=result, on_change=on_update)
        except (OvenError, NatsError, OSError) as error:
            if not result.logged_seq:
                result.failure = reason(error)
            on_update(result)
