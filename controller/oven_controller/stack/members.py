"""Committee members that come and go while the stack is up: on an operator's word in the log, as all do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from oven_controller.stack.processes import Processes, Stopped
from oven_core.cancellation import end
from oven_core.errors import OvenError
from oven_core.protocol.events import Event
from oven_core.protocol.judge_spec import member_of
from oven_core.protocol.messages import Receipt
from oven_core.protocol.names import NAME
from oven_core.protocol.operator_messages import OperatorCommand


class Members:
    """Give `hear` the judged events of the log that are new. One change at a time, in their order."""

    def __init__(self, processes: Processes, tell: Callable[[str], None]) -> None:
        """`tell` takes lines for people."""
        self._processes, self._tell = processes, tell
        self._one = asyncio.Lock()
        self._adding: dict[str, str] = {}  # command → member
        self._removing: dict[str, str] = {}
        self._changing: set[asyncio.Task[None]] = set()

    def hear(self, event: Event) -> None:
        """Start the process of a member that an operator adds: its key and settings are there by then. It ends where
        the learner does not take it, and when the learner has let it go, so that no request is out to it then."""
        match event.body:
            case OperatorCommand(action="add") as command if NAME.fullmatch(member := member_of(command.actuator)):
                self._adding[command.id] = member
                self._later(self._start(member), f"add {member}")
            case OperatorCommand(action="remove") as command if NAME.fullmatch(member := member_of(command.actuator)):
                self._removing[command.id] = member
            case Receipt() as receipt if receipt.command in self._adding:
                member = self._adding.pop(receipt.command)
                if receipt.status != "applied":
                    self._later(self._end(member), f"turn {member} down")
            case Receipt() as receipt if receipt.command in self._removing:
                member = self._removing.pop(receipt.command)
                if receipt.status == "applied":
                    self._later(self._end(member), f"remove {member}")
            case _:
                pass

    async def close(self) -> None:
        """The stack ends: what is on its way comes no more."""
        await end(*self._changing)

    def _later(self, change: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(change, name=name)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    async def _start(self, member: str) -> None:
        async with self._one:
            if self._processes.has_member(member):
                return
            try:
                await self._processes.start_members([member])
            except Stopped:
                pass
            except OvenError as error:
                self._tell(f"member {member} does not come: {error}")

    async def _end(self, member: str) -> None:
        async with self._one:
            await self._processes.end_member(member)
            self._tell(f"member {member} has left")
