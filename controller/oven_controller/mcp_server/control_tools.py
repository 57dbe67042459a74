"""The tools that act on a run: the commands of an operator, under a key of the server's own, so that the log says who.

They are listed with --control only. What they do, bounds and guardrails included, is what the same commands do when a
person types them.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, TypeAlias

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field, ValidationError

from oven_controller.mcp_server.control_key import ControlKey
from oven_controller.mcp_server.reach import Reach
from oven_controller.mcp_server.reading_tools import Run
from oven_controller.mcp_server.tool_answer import answer
from oven_controller.mcp_server.tool_thread import Progress, on_thread, sentences
from oven_core.errors import ConfigError
from oven_core.errors import reason as wrong
from oven_core.protocol.operator_messages import OperatorCommand
from oven_runs.access.run_access import RunAccess
from oven_runs.log.command_result import CommandReport
from oven_runs.operator.operator_client import carried_out

Why: TypeAlias = Annotated[str, Field(max_length=2000, description="the reason, recorded in the run's log")]
Wait: TypeAlias = Annotated[
    float | None,
    Field(
        ge=0.1,
        le=600,
        description="seconds to wait for the receipt at most; without it until two steps have ended, or a minute in "
        "which none does. A command that is not answered in time is in the log, and counts all the same",
    ),
]


class ControlTools:
    """Each method is a tool; its docstring is what the client reads."""

    def __init__(self, reach: Reach) -> None:
        self._reach, self._key = reach, ControlKey()

    async def approve(
        self,
        context: Context,
        decision: Annotated[str, Field(max_length=64, description="an advised decision's id, or its actuator")],
        reason: Why,
        run: Run = None,
        wait_s: Wait = None,
    ) -> Annotated[CallToolResult, CommandReport]:
        """Have an advised decision applied: guardrails are checked again, and the value is read back. Advice lapses;
        `status` lists what may be approved now."""
        return await self._say(context, run, wait_s, action="approve", of=decision, reason=reason)

    async def veto(
        self,
        context: Context,
        ballot: Annotated[
            str, Field(max_length=64, description="an open ballot's id or its actuator, or an advised decision's")
        ],
        reason: Why,
        run: Run = None,
        wait_s: Wait = None,
    ) -> Annotated[CallToolResult, CommandReport]:
        """Reject an open ballot at once, or an advised decision for good."""
        return await self._say(context, run, wait_s, action="veto", of=ballot, reason=reason)

    async def set(
        self,
        context: Context,
        actuator: Annotated[str, Field(max_length=128, description="as `status` lists it under knobs")],
        reason: Why,
        value: Annotated[
            float | str | dict[str, float] | None,
            Field(description="a number, a choice's name, shares by name, or null for an action"),
        ] = None,
        run: Run = None,
        wait_s: Wait = None,
    ) -> Annotated[CallToolResult, CommandReport]:
        """Turn a knob within its bounds, whatever the agents say, and read it back."""
        return await self._say(context, run, wait_s, action="set", actuator=actuator, value=value, reason=reason)

    async def hold(
        self, context: Context, reason: Why, run: Run = None, wait_s: Wait = None
    ) -> Annotated[CallToolResult, CommandReport]:
        """Pause training at the next step. It costs the time until `resume`."""
        return await self._say(context, run, wait_s, action="hold", reason=reason)

    async def resume(
        self, context: Context, reason: Why, run: Run = None, wait_s: Wait = None
    ) -> Annotated[CallToolResult, CommandReport]:
        """Continue training after a hold."""
        return await self._say(context, run, wait_s, action="resume", reason=reason)

    async def _say(self, context: Context, run: str | None, wait_s: float | None, **fields: Any) -> CallToolResult:
        def reached(_: Progress) -> RunAccess:
            return self._key.commanding(self._reach.find(run, running=True))

        access = await on_thread(context, reached)
        with sentences():
            try:
                command = OperatorCommand(id=uuid.uuid4().hex, **fields)
            except ValidationError as error:
                raise ConfigError(f"the command cannot be sent: {wrong(error)}") from error
            return answer(CommandReport.of(await carried_out(access, command, wait_s)))
