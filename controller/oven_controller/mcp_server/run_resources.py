"""What a person may mention to a client by its address, as `@oven:oven://runs/grpo-1121-0231/status`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.types import CallToolResult, TextContent

from oven_controller.mcp_server.reading_tools import ReadingTools

JSON: Final = "application/json"


def add_resources(server: MCPServer[Any], reading: ReadingTools) -> None:
    """The list of runs, and of each its status and its newest decisions: what the tools of these names answer."""

    @server.resource("oven://runs", name="runs", title="Runs", mime_type=JSON)
    async def runs() -> str:
        """The runs of this machine, the newest first."""
        return await _text(reading.runs())

    @server.resource("oven://runs/{run}/status", name="status", title="A run's status", mime_type=JSON)
    async def status(run: str, context: Context) -> str:
        """Step, newest metrics, knobs, advice, agents, and what is wrong."""
        return await _text(reading.status(context, run))

    @server.resource("oven://runs/{run}/decisions", name="decisions", title="A run's decisions", mime_type=JSON)
    async def decisions(run: str, context: Context) -> str:
        """The newest decisions."""
        return await _text(reading.decisions(context, run))


async def _text(answer: Awaitable[CallToolResult]) -> str:
    """Raises ResourceError with what the tool says."""
    try:
        (content,) = (await answer).content
    except ToolError as error:
        raise ResourceError(str(error)) from error
    assert isinstance(content, TextContent)
    return content.text
