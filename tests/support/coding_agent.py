"""A coding agent over a run that is up: a client of `mcp --control` over stdio, which looks, acts and is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import TextContent

ACTING = ["approve", "veto", "set", "hold", "resume"]


class CodingAgent:
    """A client that checks its calls against the tools' schemas."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def tools(self) -> list[str]:
        self._tools = {tool.name: tool for tool in (await self._client.list_tools()).tools}
        return list(self._tools)

    async def call(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool and return its structured answer."""
        tool = self._tools[name]
        jsonschema.validate(arguments, tool.input_schema)
        result = await self._client.call_tool(name, arguments)
        (content,) = result.content
        assert isinstance(content, TextContent) and not result.is_error, content
        assert tool.output_schema is not None and json.loads(content.text) == result.structured_content
        jsonschema.validate(result.structured_content, tool.output_schema)
        return result.structured_content

    async def refused(self, name: str, /, **arguments: Any) -> str:
        """Call a tool that must fail and return its error message."""
        result = await self._client.call_tool(name, arguments)
        (content,) = result.content
        assert isinstance(content, TextContent) and result.is_error, content
        return content.text


async def steer(
    run: str, actuator: str, lapsed: str, env: Mapping[str, str], folder: Path, revoke: Callable[[], object]
) -> None:
    """Act on a running run, whose knob has the bounds 0.1 to 10, until `revoke` revokes its key. `lapsed`: the id of
    lapsed advice."""
    arguments = ["-m", "oven_controller.cli.main", "mcp", run, "--control"]
    parameters = StdioServerParameters(command=sys.executable, args=arguments, env=dict(env), cwd=folder)
    async with Client(stdio_client(parameters)) as client:
        agent = CodingAgent(client)
        assert (await agent.tools())[-5:] == ACTING
        assert (await agent.call("status"))["status"] == "running"
        reply = await agent.call("set", actuator=actuator, value=-50, reason="too far")
        assert reply["code"] == 1 and "bounds 0.1 to 10" in reply["line"]
        reply = await agent.call("set", actuator="grad.clap", value=1, reason="misspelt")
        assert reply["code"] == 1 and f"its actuators: {actuator}" in reply["line"]
        reply = await agent.call("approve", decision=lapsed, reason="late")
        assert reply["code"] == 1 and reply["answer"]["done"] is False
        reply = await agent.call("veto", ballot="nothing", reason="there is none")
        assert reply["code"] == 1
        reply = await agent.call("set", actuator=actuator, value=3.5, reason="ann asked for it")
        assert reply["code"] == 0 and reply["receipt"]["after"] == 3.5 and reply["answer"]["operator"] == "mcp"
        for action in ("hold", "resume"):
            reply = await agent.call(action, reason="a look")
            assert (reply["code"], reply["receipt"]["status"]) == (0, "applied")
        (row,) = (await agent.call("decisions", agent="mcp"))["decisions"]
        assert (row["who"], row["by_operator"], row["after"]) == ("mcp", True, 3.5)
        assert "ann asked for it" in (await agent.call("explain", decision=row["id"]))["decision"]["reason"]
        revoke()
        assert "refused the credentials of 'mcp'" in await agent.refused("hold", reason="not any more")
        assert "serves run" in await agent.refused("set", actuator=actuator, value=1, reason="no", run="other")
