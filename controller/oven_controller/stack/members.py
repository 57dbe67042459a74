"""Committee members that come and go while the stack is up: on an operator's word in the log, as all do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oven_controller.cancellation import end
from oven_controller.errors import OvenError
from oven_controller.protocol.events import Event
from oven_controller.protocol.judge_spec import member_of
from oven_controller.protocol.names import NAME
from oven_controller.protocol.operator_messages import OperatorCommand
from oven_controller.stack.processes import Processes, Stopped


class Members:
    """Give `hear` the judged events of the log that are new. One change at a time, in their order."""

    def __init__(self, processes: Processes, tell: Callable[[str], None]) -> None:
        """`tell` takes lines for people."""
        self._processes, self._tell = processes, tell
        self._one = asyncio.Lock()
        self._changing: set[asyncio.Task[None]] = set()

    def hear(self, event: Event) -> None:
        """Start the process of a member that is added, and end that of one that is removed. The key and the settings
        are there by then: the command that says so has made them."""
        command = event.body
        if not isinstance(command, OperatorCommand) or command.action not in ("add", "remove"):
            return
        member = member_of(command.actuator)
        if NAME.fullmatch(member):
            task = asyncio.create_task(self._change(command.action == "add", member), name=f"{command.action} {member}")
            self._changing.add(task)
            task.add_done_callback(self._changing.discard)

    async def close(self) -> None:
        """The stack ends: what is on its way comes no more."""
        await end(*self._changing)

    async def _change(self, comes: bool, member: str) -> None:
        async with self._one:
            try:
                if not comes:
                    await self._processes.end_member(member)
                elif not self._processes.has_member(member):
                    await self._processes.start_members([member])
            except Stopped:
                pass
            except OvenError as error:
                self._tell(f"member {member} does not come: {error}")
