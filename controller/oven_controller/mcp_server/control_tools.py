"""The tools that act on a run: actions of an operator, under a key of the server's own, so that the log names
it.

The server lists them with --control only. Bounds and guardrails hold as for a person who types the command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from oven_controller.mcp_server.control_key import ControlKey
from oven_controller.mcp_server.reach import Reach
from oven_controller.mcp_server.reading_tools import Run
from oven_controller.mcp_server.tool_answer import answer
from oven_controller.mcp_server.tool_thread import Progress, on_thread, sentences
from oven_core.protocol.operator_actions import ACTIONS, Action, Argument, Kind
from oven_runs.access.run_access import RunAccess
from oven_runs.log.command_result import CommandReport
from oven_runs.operator.operator_client import carried_out, new_command

TOOLS: Final = ("approve", "veto", "set", "hold", "resume")
"""The actions that are offered."""
REASON: Final = Annotated[str, Field(max_length=2000, description="the reason, recorded in the run's log")]
WAIT: Final = Annotated[
    float | None,
    Field(
        ge=0.1,
        le=600,
        description="maximum seconds to wait for the receipt; without it, until two steps have ended, or a minute in "
        "which none does. A command that is not answered in time is in the log, and counts all the same",
    ),
]
TYPES: Final[Mapping[Kind, Any]] = {
    "decision": Annotated[str, Field(max_length=64)],
    "actuator": Annotated[str, Field(max_length=128)],
    "value": float | str | dict[str, float] | None,
}


def control_tools(reach: Reach) -> list[Callable[..., Any]]:
    """One function for each of TOOLS, named and documented as a client reads it."""
    key = ControlKey()
    return [_tool(reach, key, ACTIONS[name]) for name in TOOLS]


def _tool(reach: Reach, key: ControlKey, action: Action) -> Callable[..., Any]:
    async def act(context: Context, reason: str, run: str | None, wait_s: float | None, **given: Any) -> CallToolResult:
        def reached(_: Progress) -> RunAccess:
            return key.commanding(reach.find(run, running=True))

        access = await on_thread(context, reached)
        fields = {argument.field: given[argument.name] for argument in action.arguments}
        with sentences():
            command = new_command(action.name, reason=reason, **fields)
            return answer(CommandReport.of(await carried_out(access, command, wait_s)))

    parameters = {"context": Context, **{one.name: _annotation(one) for one in action.arguments}, "reason": REASON}
    defaults = {"value": None} | {"run": None, "wait_s": None}
    parameters |= {"run": Run, "wait_s": WAIT}
    act.__name__ = action.name
    act.__doc__ = f"{action.summary}. {action.detail}".strip()
    act.__annotations__ = parameters | {"return": Annotated[CallToolResult, CommandReport]}
    act.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, inspect.Parameter.empty),
                annotation=annotation,
            )
            for name, annotation in parameters.items()
        ],
        return_annotation=act.__annotations__["return"],
    )
    return act


def _annotation(argument: Argument) -> Any:
    return Annotated[TYPES[argument.kind], Field(description=argument.help)]
