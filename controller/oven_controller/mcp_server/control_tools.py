"""MCP tools that act on a run. They are operator actions, which the log records under the server's name.

The server offers these tools only with --control. The same bounds and guardrails apply as for a person's commands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from oven_controller.mcp_server.allowed_runs import AllowedRuns
from oven_controller.mcp_server.reading_tools import RunName
from oven_controller.mcp_server.tool_answer import answer
from oven_controller.mcp_server.tool_thread import Progress, as_tool_errors, run_on_thread
from oven_controller.stack import person_keys
from oven_core.errors import BusError
from oven_core.protocol.operator_actions import ACTIONS, Action, Argument, Kind
from oven_core.security import tls
from oven_runs.access.local_run import LocalRun
from oven_runs.access.remote_run import RemoteRun
from oven_runs.access.run_access import RunAccess
from oven_runs.log.command_result import CommandReport
from oven_runs.operator.operator_client import execute_command, new_command

NAME: Final = "mcp"
"""The name of the MCP server's operator in the log."""
TOOLS: Final = ("approve", "veto", "set", "hold", "resume")
"""Actions that are available as tools."""
Reason: Final = Annotated[str, Field(max_length=2000, description="the reason, recorded in the run's log")]
WaitSeconds: Final = Annotated[
    float | None,
    Field(
        ge=0.1,
        le=600,
        description="maximum seconds to wait for the receipt. By default, the wait ends after two steps, or after a "
        "minute without a step. A command that is not answered in time stays in the log and still takes effect",
    ),
]
ARGUMENT_TYPES: Final[Mapping[Kind, Any]] = {
    "decision": Annotated[str, Field(max_length=64)],
    "actuator": Annotated[str, Field(max_length=128)],
    "value": float | str | dict[str, float] | None,
}


def control_tools(allowed_runs: AllowedRuns) -> list[Callable[..., Any]]:
    """Return one function per entry in TOOLS, with the name, parameters and docstring that a client reads."""
    keys = ControlKeys()
    return [_build_tool(allowed_runs, keys, ACTIONS[name]) for name in TOOLS]


def _build_tool(allowed_runs: AllowedRuns, keys: ControlKeys, action: Action) -> Callable[..., Any]:
    """Return a function for the action. The MCP SDK derives the tool's schema from its signature and annotations."""

    async def act(
        context: Context, reason: str, run: str | None, wait_s: float | None, **arguments: Any
    ) -> CallToolResult:
        def find_access(_: Progress) -> RunAccess:
            return keys.as_operator(allowed_runs.find(run, running=True))

        access = await run_on_thread(context, find_access)
        fields = {argument.field: arguments[argument.name] for argument in action.arguments}
        with as_tool_errors():
            command = new_command(action.name, reason=reason, **fields)
            return answer(CommandReport.of_result(await execute_command(access, command, wait_s)))

    parameters = {
        "context": Context,
        **{argument.name: _annotate(argument) for argument in action.arguments},
        "reason": Reason,
        "run": RunName,
        "wait_s": WaitSeconds,
    }
    defaults = {"value": None, "run": None, "wait_s": None}
    act.__name__ = action.name
    act.__doc__ = f"{action.summary}. {action.detail}".strip()
    act.__annotations__ = parameters | {"return": Annotated[CallToolResult, CommandReport]}
    kind, no_default = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    signature = [
        inspect.Parameter(name, kind, default=defaults.get(name, no_default), annotation=annotation)
        for name, annotation in parameters.items()
    ]
    return_annotation = act.__annotations__["return"]
    act.__signature__ = inspect.Signature(signature, return_annotation=return_annotation)  # type: ignore[attr-defined]
    return act


def _annotate(argument: Argument) -> Any:
    return Annotated[ARGUMENT_TYPES[argument.kind], Field(description=argument.help)]


class ControlKeys:
    """Creates the server's operator key for each run, and keeps the access that the key gives."""

    def __init__(self) -> None:
        self._operator_access: dict[str, RunAccess] = {}

    def as_operator(self, access: RunAccess) -> RunAccess:
        """Return access to the run as the operator NAME. For a run on this machine, the first command creates the key
        and logs it. For a run on another machine, the server uses its user's key. Raises ConfigError if another machine
        manages the run's keys, and ProcessError or BusError if the run does not accept the key."""
        if not isinstance(access, LocalRun):
            return access
        folder = access.folder
        address = f"{folder.path} at {folder.info().url}"
        if address not in self._operator_access:
            server = person_keys.AdministeredServer.for_run(folder)
            person, delivery_failure = person_keys.grant(server, NAME, "operator")
            if delivery_failure:
                raise BusError(delivery_failure)
            trust = tls.trust_text(person.tls_ca, address) if person.tls_ca else None
            self._operator_access[address] = RemoteRun(
                person.run, folder.info().url, person.credentials, role="operator", keys=person.keys, trust=trust
            )
        return self._operator_access[address]
